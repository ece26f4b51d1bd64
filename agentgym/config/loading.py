"""From a file, a command line or plain data to a `RunConfig`, with every problem in one report.

Later layers win: the schema's defaults, the policy's defaults, the file, the command line. In
order: `load_config`, then flattening, the search for unknown keys, validation and its messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pydantic

from agentgym.config.command_line import parse_assignments, parse_sources
from agentgym.config.consistency import without_effect
from agentgym.config.error_messages import sentence
from agentgym.config.options import advice, is_preset_key, options
from agentgym.config.schema import SECTIONS, RunConfig
from agentgym.config.validation import MOST_LINES, InvalidInputError, Problem
from agentgym.config.yaml_files import ParsedFile, read_file
from agentgym.errors import ConfigError
from agentgym.redaction import REDACTED, remember

POLICY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # A new model knows nothing: it learns the form from demonstrations first, and is small enough
    # to take large steps.
    "tiny": {
        "warmstart.steps": 2200,
        "warmstart.learning_rate": 1e-3,
        "optim.learning_rate": 3e-4,
        "rollout.max_new_tokens": 64,
        "eval.max_new_tokens": 64,
    },
    "smollm2": {
        "warmstart.steps": 100,
        "warmstart.batch_size": 16,
        "warmstart.learning_rate": 2e-4,
        "warmstart.warmup_steps": 10,
        "rollout.max_new_tokens": 128,
        "eval.max_new_tokens": 128,
    },
}
"""Family of a policy -> its own defaults, where one number cannot suit every size of model."""

_NONE_WORDS = {"none", "null", "~", ""}


def load_config(
    *,
    file: str | Path | None = None,
    assignments: Sequence[str] = (),
    settings: object = None,
    extra: Mapping[str, Any] | None = None,
    is_training: bool = True,
) -> RunConfig:
    """Return the run that a file, plain data and `key=value` arguments describe.

    Args:
        file: A YAML or TOML file.
        assignments: `key=value` texts with dotted keys; they win over everything else.
        settings: A mapping (nested or with dotted keys), a dataclass or a `RunConfig`; it wins over
            the file.
        extra: Further settings by dotted key; they win over `settings`.
        is_training: False for an evaluation, which no contradiction of training concerns.

    Raises:
        InvalidInputError: With one line for each problem, all of them together.
    """
    problems: list[Problem] = []
    layers: list[ParsedFile] = []
    for read in (
        lambda: read_file(Path(file)) if file is not None else None,
        lambda: ParsedFile(tree=as_mapping(settings), places={}) if settings is not None else None,
        lambda: ParsedFile(tree=extra, places={}) if extra else None,
        lambda: parse_assignments(assignments),
    ):
        try:
            layer = read()
        except InvalidInputError as error:
            problems.extend(error.problems)
        else:
            layers.extend([layer] if layer is not None else [])
    unread = bool(problems)
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    written: set[str] = set()
    for layer in layers:
        flat, where, found = _flatten(layer)
        values |= flat
        places |= where
        problems.extend(found)
        written = {*flat} if _is_resolved(flat) else written - {*flat}
    config, found = _build(values, is_training=is_training, written=written)
    problems.extend(dataclasses.replace(p, where=places.get(p.key, p.where)) for p in found)
    if problems:
        # Of a file that could not be read nothing is known: there is no rest to look at.
        raise InvalidInputError(problems, rest=None if unread else config)
    return config


def _is_resolved(flat: Mapping[str, Any]) -> bool:
    """Return whether a layer gives every setting: as a run writes it, whether it is read or not."""
    return options().keys() - {"preset_overrides"} <= flat.keys()


def _lost_secrets(values: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each setting that a run wrote without its secret."""
    return [
        Problem(key=key, text=f"{key!r} holds a secret, which is not stored: give it again")
        for key, value in values.items()
        if REDACTED in str(value)
    ]


def as_mapping(settings: object) -> dict[str, Any]:
    """Return settings in any of the accepted forms as nested dicts.

    Raises:
        InvalidInputError: If `settings` is none of them.
    """
    if isinstance(settings, pydantic.BaseModel):
        return settings.model_dump(mode="json", exclude_unset=True)
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return dataclasses.asdict(settings)
    if _is_mapping(settings):
        items = cast("Mapping[Any, Any]", settings).items()
        return {str(key): _plain(value) for key, value in items}
    text = f"settings must be a mapping, a dataclass or a RunConfig (got {type(settings).__name__})"
    raise InvalidInputError([Problem(text=text)])


def _is_mapping(value: object) -> bool:
    # Wrapped mappings of other libraries need not derive from Mapping.
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "items"))


def _plain(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    is_nested = isinstance(value, pydantic.BaseModel) or dataclasses.is_dataclass(value)
    return as_mapping(value) if is_nested or _is_mapping(value) else value


# ------------------------------------------------------------------------------ flat dotted keys


def _flatten(layer: ParsedFile) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """Return dotted key -> value, where each stands, and what is wrong with the layout."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []

    def put(key: str, value: Any, where: str) -> None:
        if key in values:
            text = f"{key!r} is given twice, once as a dotted key"
            problems.append(Problem(key=key, where=where, text=text))
        values[key], places[key] = value, where

    for name, value in layer.tree.items():
        where = layer.places.get(name, "")
        if name not in SECTIONS and name != "preset_overrides":
            key = name.removeprefix("preset_overrides.")
            # Past the prefix every key is the preset's, a `rollout` part's too.
            put(f"preset_overrides.{key}" if key != name else key, value, where)
        elif isinstance(value, Mapping):
            for inner, content in _inner(name, cast("Mapping[Any, Any]", value)):
                key = f"{name}.{inner}"
                put(key, content, layer.places.get(key, where))
        elif value is not None:  # a section with nothing below it is empty
            text = f"{name!r} is a section: write its settings below it (got {value!r})"
            problems.append(Problem(key=name, where=where, text=text))
    return values, places, problems


def _inner(section: str, content: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Return the settings of a section; a preset's overrides may be nested to any depth.

    What stands below a dotted key is that parameter's value, such as a mapping of weights.
    """
    if section != "preset_overrides":
        return [(str(key), value) for key, value in content.items()]
    found: list[tuple[str, Any]] = []
    for key, value in content.items():
        nested: list[tuple[str, Any]] = []
        if isinstance(value, Mapping) and "." not in str(key):
            nested = _inner(section, cast("Mapping[Any, Any]", value))
        found.extend((f"{key}.{inner}", leaf) for inner, leaf in nested)
        if not nested:
            found.append((str(key), cast("Any", value)))
    return found


# ------------------------------------------------------------------------- values to a RunConfig


def _build(
    given: Mapping[str, Any], *, is_training: bool, written: Collection[str]
) -> tuple[RunConfig, list[Problem]]:
    """Return the config of the settings that can be read, and all that is wrong.

    Args:
        given: Values by dotted key.
        is_training: Whether contradictions of training count.
        written: Settings that a run wrote: nobody chose those that have no effect.
    """
    problems: list[Problem] = []
    known: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for key, value in given.items():
        if key.startswith("preset_overrides."):
            overrides[key.removeprefix("preset_overrides.")] = value
        elif key in options():
            wrong = _wrong_kind(key, value)
            if wrong is None:
                known[key] = _normalised(key, value, problems)
            else:
                problems.append(wrong)
        elif is_preset_key(key):
            overrides[key] = value
        else:
            # Of many more than are shown, the nearest name would take minutes.
            hint = advice(key) if len(problems) < MOST_LINES else ""
            problems.append(Problem(key=key, text=f"unknown setting {key!r}{hint}"))
    if overrides:
        known["preset_overrides"] = overrides
    defaults = _policy_defaults(known)
    bad = {problem.key for problem in problems}
    config, contradictions, wrong = _validate({**defaults, **known}, bad)
    problems.extend(wrong)
    remember(config.to_dict())
    if is_training:
        problems.extend(_lost_secrets(given))
        problems.extend(contradictions)
        chosen = [key for key in _chosen(known, defaults) if key not in {*bad, *written}]
        problems.extend(without_effect(config, chosen))
    return config, problems


def _wrong_kind(key: str, value: Any) -> Problem | None:
    """Return a problem for a truth value where a number or a text is wanted.

    Pydantic would read True as 1.
    """
    members = options()[key].members
    if isinstance(value, bool) and bool not in members and (int in members or float in members):
        return Problem(key=key, text=f"{key!r} must be a number (got {value!r})")
    return None


def _normalised(key: str, value: Any, problems: list[Problem]) -> Any:
    """Return the value with what may be written in several ways written in one."""
    option = options()[key]
    if option.is_optional and isinstance(value, str) and value.lower() in _NONE_WORDS:
        return None
    if key == "envs":
        return _normalised_envs(value, problems)
    if key == "eval.suites" and isinstance(value, str):
        return [name for name in value.strip("[]").replace(" ", "").split(",") if name]
    return value


def _normalised_envs(value: Any, problems: list[Problem]) -> Any:
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        return value
    sources: list[Any] = []
    for item in cast("Sequence[Any]", value):
        try:
            sources.extend(parse_sources(item) if isinstance(item, str) else [item])
        except InvalidInputError as error:
            problems.extend(error.problems)
    return sources


def _policy_defaults(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's own defaults, less what the given settings speak against."""
    family = str(known.get("policy", options()["policy"].default)).partition(":")[0]
    defaults = dict(POLICY_DEFAULTS.get(family, {}))
    if known.get("warmstart.path") is not None:
        defaults.pop("warmstart.steps", None)
    return defaults


def _chosen(known: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the settings that say something else than the default."""
    return [
        key
        for key, value in known.items()
        if key != "preset_overrides" and value != _as_written(key, defaults)
    ]


def _as_written(key: str, defaults: Mapping[str, Any]) -> Any:
    """Return a setting's default as a file holds it, with a list for a tuple."""
    value = defaults.get(key, options()[key].default)
    return [*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return tree


def _validate(
    flat: dict[str, Any], bad: set[str]
) -> tuple[RunConfig, list[Problem], list[Problem]]:
    """Return the config, its contradictions, and the values that are wrong.

    Wrong values are left out to find contradictions between the others too.
    """
    problems: list[Problem] = []
    contradictions: list[Problem] = []
    for _ in range(len(flat) + 1):
        contradictions.clear()
        try:
            config = RunConfig.model_validate(
                _nested(flat), context={"contradictions": contradictions}
            )
        except pydantic.ValidationError as error:
            found = [sentence(item, entry_keys=RunConfig.entry_keys) for item in error.errors()]
            problems.extend(found)
            bad |= {problem.key for problem in found}
            flat = {key: value for key, value in flat.items() if key not in bad}
            continue
        apart = [p for p in contradictions if not any(f"'{key}'" in p.text for key in bad)]
        return config, apart, problems
    raise ConfigError("a config could not be validated: " + "; ".join(map(str, problems)))
