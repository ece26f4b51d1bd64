"""The objective of a run: its preset as the loop runs it, with what its sampler asks for.

In order: `preset_of`, `measures_gap`, `refuse_what_is_missing`, `say_what_age_does`,
`say_where_beliefs_are_missing`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.config import RunConfig
from agentgym.errors import ConfigError
from agentgym.records import Task
from agentgym.trainers.objective.preset import Preset, load_preset
from agentgym.trainers.parts.registry import Need

logger = logging.getLogger(__name__)

_NOT_GIVEN = frozenset({Need.TEACHER, Need.TOP_K, Need.SUM_PI_SQ})

_STANDS_FOR = {"sampler": "uniform", "rollout": "group", "mixer": "none", "schedule": "joint"}
"""Slots whose one part the loop does itself, without a call: it would ignore another."""

_TRUNCATED = {"correction.part": "truncated", "correction.level": "token", "correction.cap": 2.0}
"""As in Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy training": a
token's weight is the ratio learner / sampler, cut off at 2."""


def preset_of(
    config: RunConfig, name: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Preset:
    """Return the preset of a run, or another one under its settings.

    Where vLLM samples, its log-probabilities differ from the learner's for the very same weights.
    A preset that neither corrects that nor measures the ratio from the sampler (anchor `behavior`)
    then gets truncated importance weights; `correction.part=none` among the overrides is heeded.

    Args:
        config: Settings of the run.
        name: Another preset than the run's.
        overrides: Its settings, in place of the run's.

    Raises:
        ConfigError: If the preset is unknown or contradicts itself.
    """
    chosen = name if name is not None else config.preset
    own = dict(config.preset_overrides if overrides is None else overrides)
    size = config.rollout.group_size
    preset = load_preset(chosen, own, group_size=size)
    is_blind = preset.correction.part == "none" and preset.anchor.part == "proximal"
    is_told = any(key.partition(".")[0] == "correction" for key in own)
    if not (config.is_sampled_by_vllm and is_blind) or is_told:
        return preset
    return load_preset(chosen, {**own, **_TRUNCATED}, group_size=size)


def measures_gap(config: RunConfig) -> bool:
    """Return whether the gap from sampler to learner is measured in every step.

    Where tokens may be older than the weights, or come from vLLM, a policy that stands for its own
    anchor would hide it.
    """
    return config.is_sampled_by_vllm or config.rollout.max_staleness > 0


def refuse_what_is_missing(preset: Preset) -> None:
    """Raise where a preset asks for what this trainer does not have.

    Raises:
        ConfigError: With the part's slot and what it asks for.
    """
    missing = sorted(need.value for need in preset.needs & _NOT_GIVEN)
    chosen = {slot: getattr(preset, slot).part for slot in _STANDS_FOR}
    missing += [f"{slot} {part!r}" for slot, part in chosen.items() if part != _STANDS_FOR[slot]]
    if preset.controllers:
        missing.append("controllers")
    if preset.group_objective is not None:
        missing.append("group_objective")
    if missing:
        raise ConfigError(
            f"preset {preset.name!r} asks for {', '.join(missing)}, which the training loop does "
            "not give; `agentgym presets list` shows presets that it runs"
        )


def say_what_age_does(config: RunConfig, preset: Preset) -> None:
    """Say so where older tokens would be trained as if they were fresh."""
    bound = config.rollout.max_staleness
    is_blind = preset.correction.part == "none" and preset.anchor.part == "proximal"
    if bound and is_blind and preset.group_objective is None:
        logger.warning(
            "preset %r trains tokens that are up to %d updates old as if they were fresh; "
            "correction.part=truncated correction.level=token correction.cap=2 weighs them",
            preset.name,
            bound,
        )


def say_where_beliefs_are_missing(preset: Preset, tasks: Sequence[Task]) -> None:
    """Say so where a preset asks for the belief in a gold answer and a task has none."""
    if Need.BELIEF not in preset.needs:
        return
    without = [task.id for task in tasks if not task.answers]
    if without:
        logger.warning(
            "preset %r rewards the belief in a gold answer, which %d of the first %d tasks do not "
            "have (such as %r): they are trained on their outcome alone "
            "('trajectories_without_belief_reward' counts them)",
            *(preset.name, len(without), len(tasks), without[0]),
        )
