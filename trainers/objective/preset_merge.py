"""How the raw data of presets is put together: `merge` for `extends`, `apply_override` for keys.

Rules: mappings are merged, lists are replaced. A mapping that names another part is replaced
whole, since the parameters of one part mean nothing to another; so is `source`, since one paper's
identifier is wrong beside the authors of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgym.trainers.parts.registry import hint

_WHOLE = frozenset({"source"})


def merge(base: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the child's keys over it."""
    result = dict(base)
    for key, value in child.items():
        old = result.get(key)
        other_part = (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and "part" in value
            and value["part"] != old.get("part")
        )
        is_merged = key not in _WHOLE and not other_part
        if isinstance(old, Mapping) and isinstance(value, Mapping) and is_merged:
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def apply_override(
    raw: dict[str, Any], path: str, value: object, slots: Iterable[str]
) -> tuple[str, ...]:
    """Write one value into the raw preset; return what is wrong with the path, if anything.

    Args:
        raw: The raw preset, changed in place.
        path: Dotted path; an element of a list by position, `name` or `part`.
        value: The new value.
        slots: Valid first words.
    """
    pieces = path.split(".")
    known = tuple(slots)
    if pieces[0] not in known:
        return (f"unknown key {path!r}{hint(pieces[0], known)}",)
    node: Any = raw
    for depth, piece in enumerate(pieces[:-1]):
        step = _enter(node, piece)
        if step is None:
            where = ".".join(pieces[:depth]) or "the preset"
            return (f"override {path!r}: nothing named {piece!r} in {where}{_names(node, piece)}",)
        container, key = step
        child = container[key]
        # A part may be written as its bare name; give it a body before entering it.
        container[key] = {"part": child} if isinstance(child, str) else _copy(child)
        node = container[key]
    return _write(node, pieces[-1], value, path)


def _copy(child: Any) -> Any:
    """Return a shallow copy, so that an override never changes a parent's data."""
    if isinstance(child, Mapping):
        return dict(child)
    return list(child) if isinstance(child, list | tuple) else child


def _position(items: list[Any], piece: str) -> int | None:
    """Return the position of a list's element by number, name or part."""
    if piece.isdigit():
        return int(piece) if int(piece) < len(items) else None
    for position, item in enumerate(items):
        names = (item.get("name"), item.get("part")) if isinstance(item, Mapping) else (item,)
        if piece in names:
            return position
    return None


def _enter(node: Any, piece: str) -> tuple[Any, Any] | None:
    """Return the container and the key of a step down, or None."""
    if isinstance(node, list):
        position = _position(node, piece)
        return None if position is None else (node, position)
    if isinstance(node, dict) and isinstance(node.get(piece), Mapping | list | str):
        return node, piece
    return None


def _names(node: Any, piece: str) -> str:
    if isinstance(node, list):
        return hint(piece, [str(item.get("name") or item.get("part")) for item in node])
    return hint(piece, [str(key) for key in node]) if isinstance(node, dict) else ""


def _write(node: Any, key: str, value: object, path: str) -> tuple[str, ...]:
    """Set the last piece of the path."""
    if isinstance(node, list):
        position = _position(node, key)
        if position is None:
            return (f"override {path!r}: nothing named {key!r}{_names(node, key)}",)
        node[position] = value
    elif isinstance(node, dict):
        if key == "part" and value != node.get("part"):
            node.clear()
        node[key] = value
    else:
        return (f"override {path!r}: {'.'.join(path.split('.')[:-1])!r} has no keys",)
    return ()
