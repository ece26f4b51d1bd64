"""The record of a preset: `PartConfig` and its kinds, `SourceNote`, `Preset`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Need, Slot

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
            own = set(cls.model_fields) - {"parameters"}
            rest = {key: raw[key] for key in raw if key not in own}
            kept = {key: raw[key] for key in raw if key in own}
            return {**kept, "parameters": rest}
        return raw


def _weigh(raw: object) -> object:
    """Read one name, a list of names, or names with weights."""
    if isinstance(raw, str):
        return {raw: 1.0}
    if isinstance(raw, list | tuple):
        return {str(name): 1.0 for name in raw}
    return raw


Weighted = Annotated[dict[str, float], pydantic.BeforeValidator(_weigh)]
"""Names of rewards with their weights; one name or a list of names weighs 1."""


class RegularizerConfig(PartConfig):
    """A further loss, with its own coefficient and aggregation."""

    coefficient: float
    aggregation: PartConfig | None = None
    """How its tokens are added up; None for the preset's own aggregation."""


class CriticConfig(PartConfig):
    """A learned baseline, with how its value head is trained."""

    reward: Weighted
    value_width: Annotated[float, pydantic.Field(gt=0)]
    """Largest counted change of a value in one step."""
    value_coefficient: Annotated[float, pydantic.Field(ge=0)]
    """Weight of the value loss, a mean over the trained tokens of the batch."""
    warmup_updates: Annotated[int, pydantic.Field(ge=0)]
    """First updates that train the value head alone."""
    at_truncation: Literal["outcome", "bootstrap"]
    """What an episode counts that a limit from outside the task (time, the model's window) cut
    short: its outcome, or in its place the value of its final prompt. Never both."""


class TermConfig(pydantic.BaseModel):
    """A named, weighted chain of operations over one or several rewards."""

    model_config = _FROZEN

    name: str
    reward: Weighted
    ops: tuple[PartConfig, ...] = ()
    weight: float = 1.0


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
    critic: CriticConfig | None = None
    spread: PartConfig | None = None
    reshape: tuple[PartConfig, ...] = ()
    anchor: PartConfig
    ratio: PartConfig
    correction: PartConfig
    bounds: PartConfig
    gate: PartConfig
    aggregation: PartConfig
    regularizers: tuple[RegularizerConfig, ...] = ()
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
            if path == "regularizers":
                found.extend(
                    (f"{path}.{at}.aggregation", Slot.AGGREGATION, item.aggregation)
                    for at, item in enumerate(self.regularizers)
                    if item.aggregation is not None
                )
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
        others = (
            registry.find(slot, config.part).all_needs(config.parameters)
            for path, slot, config in self.parts()
            if path != "anchor"
        )
        return self.anchor.part == "proximal" and not any(
            Need.PROXIMAL in needs for needs in others
        )


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
