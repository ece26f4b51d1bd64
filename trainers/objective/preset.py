"""Presets: an objective as data, read from YAML into a frozen record.

In order: `list_presets` and `load_preset`. Everything wrong with a preset is reported at once, with
the nearest valid names. The record is `agentgym.trainers.objective.preset_schema`; which parts
exist, and with which parameters, says `agentgym.trainers.parts.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from agentgym.config.yaml_files import read_file
from agentgym.errors import ConfigError
from agentgym.trainers.objective.preset_checks import contradictions
from agentgym.trainers.objective.preset_merge import apply_override, merge
from agentgym.trainers.objective.preset_schema import CriticConfig, PartConfig, Preset, TermConfig
from agentgym.trainers.parts import registry

__all__ = ["CriticConfig", "PartConfig", "Preset", "TermConfig", "list_presets", "load_preset"]


def list_presets() -> tuple[str, ...]:
    """Return the names of the presets that ship with the package, sorted."""
    folder = resources.files("agentgym.trainers") / "presets"
    files = (item.name for item in folder.iterdir() if item.name.endswith(".yaml"))
    return tuple(sorted(name.removesuffix(".yaml") for name in files))


def load_preset(
    name_or_path: str,
    overrides: Mapping[str, object] | None = None,
    *,
    group_size: int | None = None,
) -> Preset:
    """Return a preset by name, or from a YAML file, with single values replaced.

    Args:
        name_or_path: Name of a shipped preset, or a path that ends in `.yaml` or `.yml`.
        overrides: Dotted path to value, such as `{"gate.clip_high": 0.3}`. A list's element is
            named by its position, its `name` or its `part`.
        group_size: Trajectories of a task, where it is known, to find a group baseline of one.

    Raises:
        ConfigError: If the preset is unknown, unreadable or contradicts itself; one line for each
            problem, all of them together.
    """
    raw = _resolve(name_or_path, trail=())
    problems: list[str] = []
    # A new part empties its place, so it is set before the parameters that go with it.
    ordered = sorted((overrides or {}).items(), key=lambda item: not item[0].endswith(".part"))
    for path, value in ordered:
        problems.extend(apply_override(raw, path, value, tuple(Preset.model_fields)))
    preset, found = _build(raw)
    problems.extend(found)
    if preset is not None:
        problems.extend(contradictions(preset, group_size=group_size))
    if problems or preset is None:
        raise ConfigError("\n".join(f"preset {name_or_path!r}: {problem}" for problem in problems))
    return preset


def _resolve(name_or_path: str, trail: tuple[str, ...]) -> dict[str, Any]:
    """Return the raw mapping with everything it extends merged under it."""
    if name_or_path in trail:
        raise ConfigError(
            f"preset {trail[0]!r} extends itself ({' -> '.join((*trail, name_or_path))})"
        )
    raw = _read(name_or_path)
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    is_near = str(parent).endswith((".yaml", ".yml")) and not Path(str(parent)).is_absolute()
    place = str(Path(name_or_path).parent / str(parent)) if is_near else str(parent)
    base = _resolve(place, (*trail, name_or_path))
    base.pop("notes", None)
    return merge(base, raw)


def _read(name_or_path: str) -> dict[str, Any]:
    """Return the mapping of one YAML file."""
    if name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        if not path.exists():
            raise ConfigError(f"preset file {name_or_path!r} does not exist")
    else:
        if name_or_path not in list_presets():
            hint = registry.hint(name_or_path, list_presets())
            raise ConfigError(
                f"unknown preset {name_or_path!r}{hint}; `agentgym presets list` shows all of them"
            )
        path = Path(str(resources.files("agentgym.trainers") / "presets" / f"{name_or_path}.yaml"))
    return dict(read_file(path).tree)


def _build(raw: dict[str, Any]) -> tuple[Preset | None, list[str]]:
    """Return the preset with converted parameters, and every problem found on the way."""
    try:
        draft = Preset.model_validate(raw)
    except pydantic.ValidationError as error:
        return None, [_sentence(item) for item in error.errors()]
    problems: list[str] = []
    for path, slot, config in draft.parts():
        try:
            found = registry.find(slot, config.part)
        except LookupError as error:
            problems.append(f"{path}: {error.args[0]}")
            continue
        values, wrong = registry.check_parameters(found, config.parameters)
        problems.extend(f"{path} ({config.part}): {sentence}" for sentence in wrong)
        config.parameters.clear()
        config.parameters.update(values)
    return (None, problems) if problems else (draft, [])


def _sentence(item: Any) -> str:
    """Return one of pydantic's errors as `path: what (got …)`, with the nearest key."""
    path = ".".join(str(piece) for piece in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {path!r}{registry.hint(str(item['loc'][-1]), Preset.model_fields)}"
    if item["type"] == "missing":
        return f"key {path!r} is missing"
    return f"{path}: {item['msg']} (got {item['input']!r})"
