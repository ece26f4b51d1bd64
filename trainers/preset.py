"""Presets: an objective as data, read from YAML into a frozen record.

In order: the record (`PartConfig`, `TermConfig`, `SourceNote`, `Preset`), `list_presets` and
`load_preset`. Everything wrong with a preset is reported at once, with the nearest valid names.
What parts exist and which parameters they take is `agentgym.trainers.parts.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml

from agentgym.errors import ConfigError
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Need, Slot
from agentgym.trainers.preset_merge import apply_override, merge

_FROZEN = pydantic.ConfigDict(frozen=True, extra="forbid")


class PartConfig(pydantic.BaseModel):
    """One part by name, with its parameters; `name` where other slots refer to it."""

    model_config = _FROZEN

    part: str
    name: str | None = None
    parameters: dict[str, Any] = {}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fold(cls, raw: object) -> object:
        """Read `{part: clip, clip_low: 0.2}`, or the bare name of a part without parameters."""
        if isinstance(raw, str):
            return {"part": raw}
        if isinstance(raw, dict) and "parameters" not in raw:
            rest = {key: raw[key] for key in raw if key not in ("part", "name")}
            kept = {key: raw[key] for key in ("part", "name") if key in raw}
            return {**kept, "parameters": rest}
        return raw


class TermConfig(pydantic.BaseModel):
    """A named, weighted chain of operations over one or several rewards."""

    model_config = _FROZEN

    name: str
    reward: dict[str, float]
    ops: tuple[PartConfig, ...] = ()
    weight: float = 1.0

    @pydantic.field_validator("reward", mode="before")
    @classmethod
    def _weigh(cls, raw: object) -> object:
        """Read one name, a list of names, or names with weights."""
        if isinstance(raw, str):
            return {raw: 1.0}
        if isinstance(raw, list | tuple):
            return {str(name): 1.0 for name in raw}
        return raw


class SourceNote(pydantic.BaseModel):
    """Where an objective comes from."""

    model_config = _FROZEN

    authors: str
    year: int
    arxiv: str = ""
    where: str = ""

    def __str__(self) -> str:
        """Return `authors year, arXiv:id, where`."""
        arxiv = f"arXiv:{self.arxiv}" if self.arxiv else ""
        return ", ".join(
            piece for piece in (f"{self.authors} {self.year}", arxiv, self.where) if piece
        )


class Preset(pydantic.BaseModel):
    """An objective: a part for each slot of a step, in the order of the step."""

    model_config = _FROZEN

    name: str
    source: SourceNote
    status: Literal["faithful", "inspired_by"]
    formula: str
    bias: str
    notes: tuple[str, ...] = ()
    sampler: PartConfig
    rollout: PartConfig
    rows: PartConfig
    probes: tuple[PartConfig, ...] = ()
    rewards: tuple[PartConfig, ...]
    mixer: PartConfig
    filters: tuple[PartConfig, ...] = ()
    terms: tuple[TermConfig, ...] = ()
    combine: PartConfig | None = None
    critic: PartConfig | None = None
    spread: PartConfig | None = None
    reshape: tuple[PartConfig, ...] = ()
    anchor: PartConfig
    ratio: PartConfig
    correction: PartConfig
    bounds: PartConfig
    gate: PartConfig
    aggregation: PartConfig
    regularizers: tuple[PartConfig, ...] = ()
    group_objective: PartConfig | None = None
    hooks: tuple[PartConfig, ...] = ()
    schedule: PartConfig
    controllers: tuple[PartConfig, ...] = ()

    def parts(self) -> tuple[tuple[str, Slot, PartConfig], ...]:
        """Return every part of the preset as (path, slot, config), in the order of a step."""
        found: list[tuple[str, Slot, PartConfig]] = []
        for path, slot in _PLACES.items():
            value = getattr(self, path)
            if isinstance(value, PartConfig):
                found.append((path, slot, value))
            elif value is not None:
                found.extend((f"{path}.{at}", slot, item) for at, item in enumerate(value))
            if path == "filters":
                found.extend(
                    (f"terms.{term.name}.ops.{at}", Slot.OP, op)
                    for term in self.terms
                    for at, op in enumerate(term.ops)
                )
        return tuple(found)

    @property
    def needs(self) -> frozenset[Need]:
        """Return the union of what the parts need beside the records."""
        return frozenset().union(
            *(
                registry.find(slot, config.part).all_needs(config.parameters)
                for _, slot, config in self.parts()
            )
        )

    @property
    def can_skip_proximal(self) -> bool:
        """Return whether, in a step of one update, the policy may stand for its own anchor.

        True where nothing before the loss reads the proximal log-probabilities: then the separate
        pass that computes them can be left out.
        """
        readers = (self.correction.part != "none", self.critic is not None, bool(self.hooks))
        return self.anchor.part == "proximal" and not any(readers)


_PLACES: dict[str, Slot] = {
    "sampler": Slot.SAMPLER,
    "rollout": Slot.ROLLOUT,
    "rows": Slot.ROWS,
    "probes": Slot.PROBE,
    "rewards": Slot.REWARD,
    "mixer": Slot.MIXER,
    "filters": Slot.FILTER,
    "combine": Slot.COMBINE,
    "critic": Slot.CRITIC,
    "spread": Slot.SPREAD,
    "reshape": Slot.RESHAPE,
    "anchor": Slot.ANCHOR,
    "ratio": Slot.RATIO,
    "correction": Slot.CORRECTION,
    "bounds": Slot.BOUNDS,
    "gate": Slot.GATE,
    "aggregation": Slot.AGGREGATION,
    "regularizers": Slot.REGULARIZER,
    "group_objective": Slot.GROUP_OBJECTIVE,
    "hooks": Slot.HOOK,
    "schedule": Slot.SCHEDULE,
    "controllers": Slot.CONTROLLER,
}


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
            named by its position, its `name` or its `part`. Text is read as YAML.
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
        if not path.is_file():
            raise ConfigError(f"preset file {name_or_path!r} does not exist")
        text = path.read_text(encoding="utf-8")
    else:
        if name_or_path not in list_presets():
            hint = registry.hint(name_or_path, list_presets())
            raise ConfigError(f"unknown preset {name_or_path!r}{hint}")
        folder = resources.files("agentgym.trainers") / "presets"
        text = (folder / f"{name_or_path}.yaml").read_text(encoding="utf-8")
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"preset {name_or_path!r} is no YAML: {reason}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"preset {name_or_path!r} must be a mapping (got {type(raw).__name__})")
    return raw


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


def contradictions(preset: Preset, *, group_size: int | None = None) -> tuple[str, ...]:
    """Return what parts of the preset cannot do together, one sentence each."""
    return (
        *_name_problems(preset),
        *_shape_problems(preset),
        *_need_problems(preset, group_size),
    )


def _name_problems(preset: Preset) -> list[str]:
    """Return references to rewards and terms that do not exist, and names that come twice."""
    problems: list[str] = []
    rewards = [config.name or config.part for config in preset.rewards]
    terms = [term.name for term in preset.terms]
    for kind, names in (("reward", rewards), ("term", terms)):
        twice = sorted({name for name in names if names.count(name) > 1})
        problems.extend(f"two {kind}s are named {name!r}" for name in twice)
    for term in preset.terms:
        problems.extend(
            f"terms.{term.name}: unknown reward {name!r}{registry.hint(name, rewards)}"
            for name in term.reward
            if name not in rewards
        )
    for path, key in (("combine", "accumulate"), ("bounds", "term")):
        config = getattr(preset, path)
        wanted = config.parameters.get(key) if config is not None else None
        if wanted is not None and wanted not in terms:
            problems.append(f"{path}.{key}: unknown term {wanted!r}{registry.hint(wanted, terms)}")
    return problems


def _shape_problems(preset: Preset) -> list[str]:
    """Return slots that exclude or require each other."""
    problems: list[str] = []
    if preset.critic is not None and preset.terms:
        problems.append("'critic' stands instead of 'terms': give one of the two (got both)")
    if preset.critic is None and not preset.terms and preset.group_objective is None:
        problems.append("an advantage is needed: give 'terms' or a 'critic' (got neither)")
    if preset.terms and (preset.combine is None or preset.spread is None):
        problems.append("'terms' need a 'combine' and a 'spread' part")
    if preset.anchor.part == "behavior" and preset.correction.part != "none":
        problems.append(
            f"correction {preset.correction.part!r} is always 1 with the anchor 'behavior': use "
            "the anchor 'proximal', or the correction 'none'"
        )
    return problems


def _need_problems(preset: Preset, group_size: int | None) -> list[str]:
    """Return needs that other slots, or the run, cannot meet."""
    problems: list[str] = []
    gate = registry.find(Slot.GATE, preset.gate.part)
    if Need.CLIP_WIDTHS in preset.needs and "clip_low" not in gate.parameters:
        problems.append(
            f"bounds {preset.bounds.part!r} sets clip widths, which gate {preset.gate.part!r} "
            "has not"
        )
    if group_size is not None and group_size < 2 and Need.GROUP in preset.needs:
        problems.append(
            "a group baseline needs 2 or more trajectories of a task (got group size "
            f"{group_size!r}); raise the group size or take a preset without one: 'reinforce'"
        )
    if Need.BELIEF in preset.needs and not preset.probes:
        problems.append("a belief reward needs a probe: give 'probes' (got none)")
    return problems
