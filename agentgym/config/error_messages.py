"""What pydantic finds wrong, as one sentence: what is wrong, what was got, what is accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentgym.config.validation import Problem
from agentgym.errors import nearest

_KINDS: Mapping[str, str] = {
    "bool": "true or false",
    "dict": "a mapping of names to values",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "mapping": "a mapping of names to values",
    "model": "a mapping of names to values",
    "string": "text",
    "tuple": "a list",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("> {:g}", "gt"),
    "greater_than_equal": (">= {:g}", "ge"),
    "less_than": ("< {:g}", "lt"),
    "less_than_equal": ("<= {:g}", "le"),
}


def sentence(error: Any, *, entry_keys: Collection[str] = ()) -> Problem:
    """Return one of pydantic's error entries as a problem with its dotted key.

    Args:
        error: The entry.
        entry_keys: Settings of an entry of `envs`, for the nearest name.
    """
    location = [str(piece) for piece in error["loc"]]
    key, name = _names(location)
    return Problem(key=key, text=_text(error, name, entry_keys))


def _names(location: list[str]) -> tuple[str, str]:
    """Return the setting that an error belongs to, and the full name of the place."""
    name = ".".join(location)
    is_deep = location[:1] in (["envs"], ["preset_overrides"])
    return (location[0] if is_deep else ".".join(location[:2])), name


def _text(error: Any, name: str, entry_keys: Collection[str]) -> str:
    kind, got = str(error["type"]), error["input"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if not name:  # of the whole, such as settings that contradict each other
        return str(context.get("error", error["msg"]))
    if kind == "extra_forbidden":
        leaf = name.rpartition(".")[2]
        hint = nearest(leaf, entry_keys) if name.startswith("envs.") else ""
        return f"unknown setting {name!r}{hint}; arguments of an environment go into 'kwargs'"
    if kind == "missing":
        return f"{name!r} is missing"
    if kind in _BOUNDS:
        pattern, bound = _BOUNDS[kind]
        return f"{name!r} must be {pattern.format(context[bound])} (got {got!r})"
    if kind == "enum":
        return f"{name!r} must be {context['expected']} (got {got!r}){_nearest_word(got, context)}"
    if kind == "string_too_short":
        return f"{name!r} must not be empty"
    if kind == "finite_number":
        return f"{name!r} must be a finite number (got {got!r})"
    accepted = _KINDS.get(kind.partition("_")[0])
    if accepted is not None:
        return f"{name!r} must be {accepted} (got {got!r})"
    return f"{name!r}: {error['msg']} (got {got!r})"


def _nearest_word(got: object, context: Mapping[str, Any]) -> str:
    words = [word for word in str(context["expected"]).split("'") if word.isidentifier()]
    return nearest(str(got), set(words) - {"or"})
