"""Every setting there is, by dotted name, made from the schema."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentgym.config.schema import SECTIONS, RunConfig
from agentgym.errors import nearest

SLOTS: frozenset[str] = frozenset(
    {
        *("sampler", "rows", "probes", "rewards", "mixer", "filters", "terms", "combine", "critic"),
        *("spread", "reshape", "anchor", "ratio", "correction", "bounds", "gate", "aggregation"),
        *("regularizers", "group_objective", "hooks", "schedule", "controllers"),
    }
)
"""First words of the parameters of a preset. `rollout` is a section here: a preset's own rollout
slot is reached as `preset_overrides.rollout.NAME`."""

RENAMED: Mapping[str, str] = {
    "batch_size": "rollout.groups_per_step",
    "clip_high": "gate.clip_high",
    "clip_low": "gate.clip_low",
    "cliprange": "gate.clip_low and gate.clip_high",
    "env": "envs",
    "eval_every": "eval.every",
    "generations": "rollout.group_size",
    "grad_clip": "optim.max_grad_norm",
    "kl_coef": "regularizers",
    "lora_r": "model.lora_rank",
    "lr": "optim.learning_rate",
    "max_completion_length": "rollout.max_new_tokens",
    "max_prompt_length": "limits.max_context_tokens",
    "max_steps": "steps",
    "model_name_or_path": "policy",
    "n_samples_per_prompt": "rollout.group_size",
    "num_generations": "rollout.group_size",
    "num_train_epochs": "optim.epochs",
    "output_dir": "run_dir",
    "ppo_epochs": "optim.epochs",
    "rollouts_per_prompt": "rollout.group_size",
    "save_steps": "checkpoint.every",
    "temp": "rollout.temperature",
    "total_steps": "steps",
    "train_batch_size": "rollout.groups_per_step",
}
"""What a setting is called elsewhere -> what it is called here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Example:
        Option(key="optim.learning_rate", annotation=float, default=1e-05, description="Peak ...")
    """

    key: str
    """Dotted name."""
    annotation: Any
    """Type without its bounds, such as `int | None`."""
    default: Any
    """Value where nothing is said."""
    description: str
    """One line from the schema."""

    @property
    def members(self) -> tuple[Any, ...]:
        """Return the types that are accepted, `None`'s too."""
        return _members(self.annotation)

    @property
    def is_optional(self) -> bool:
        """True if none is a value."""
        return type(None) in self.members

    @property
    def is_text(self) -> bool:
        """True if any text is taken as it is written."""
        return str in self.members


def _members(annotation: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:  # its bounds stand beside the type
        return _members(typing.get_args(annotation)[0])
    if origin in (types.UnionType, typing.Union):
        return tuple(m for part in typing.get_args(annotation) for m in _members(part))
    return (annotation,)


@cache
def options() -> Mapping[str, Option]:
    """Return every setting by dotted name, in the schema's order."""
    found: dict[str, Option] = {}
    for name, field in RunConfig.model_fields.items():
        section = SECTIONS.get(name)
        fields = {name: field} if section is None else section.model_fields
        for inner, inner_field in fields.items():
            key = inner if section is None else f"{name}.{inner}"
            found[key] = Option(
                key=key,
                annotation=inner_field.annotation,
                default=inner_field.default,
                description=inner_field.description or "",
            )
    return types.MappingProxyType(found)


def is_preset_key(key: str) -> bool:
    """Return whether `key` names a parameter of a preset's part, such as `gate.clip_high`."""
    first, dot, rest = key.partition(".")
    return bool(dot) and bool(rest) and first in SLOTS


def advice(key: str) -> str:
    """Return what to write in place of the unknown `key`, as the end of a sentence."""
    if key in SLOTS:
        return (
            ": it is a part of the preset, whose values are written below 'preset_overrides', or "
            f"with dots: '{key}.NAME'"
        )
    section, _, name = key.rpartition(".")
    homes = [known for known in options() if known.rpartition(".")[2] == name]
    if homes:
        return f"; {name!r} belongs {_place(homes)}"
    if name in RENAMED:
        return f"; here it is called {RENAMED[name]!r}"
    if section in SECTIONS:
        siblings = SECTIONS[section].model_fields
        if difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
            return nearest(name, siblings)
    # Reversed, so that of two settings with one name the first section's is suggested.
    by_name = {known.rpartition(".")[2]: known for known in reversed(list(options()))}
    close = difflib.get_close_matches(name, sorted(by_name), n=1, cutoff=0.7)
    if close:
        return f" (did you mean {by_name[close[0]]!r}?)"
    return nearest(key, [*options(), *SECTIONS])


def _place(homes: list[str]) -> str:
    return " or ".join(
        f"in section {home.rpartition('.')[0]!r}: {home!r}"
        if "." in home
        else f"at the top level: {home!r}"
        for home in homes
    )
