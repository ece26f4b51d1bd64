"""Sampler and rollout: which tasks a step takes, and how many trajectories of each.

In order: `uniform`, `RolloutPlan`, `group`. The chance is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.trainers.parts.registry import part


@part("sampler")
def uniform(weights: Sequence[float], count: int, generator: random.Random) -> tuple[int, ...]:
    """Return `count` positions of tasks, drawn with their weights, without repeats while they last.

    Args:
        weights: Weight of each task, at least one above 0.
        count: Number of tasks.
        generator: Source of chance.

    Raises:
        ValueError: If no weight is above 0.
    """
    if not any(weight > 0 for weight in weights):
        raise ValueError("no task has a weight above 0")
    chosen: list[int] = []
    while len(chosen) < count:
        # Efraimidis and Spirakis: the largest u^(1/w) are a weighted draw without repeats.
        keys = [(generator.random() ** (1 / w), at) for at, w in enumerate(weights) if w > 0]
        chosen.extend(at for _, at in sorted(keys, reverse=True)[: count - len(chosen)])
    return tuple(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What the engine is asked for."""

    task: int
    """Position of the task."""
    count: int
    """Number of trajectories from its start state."""


@part("rollout")
def group(tasks: Sequence[int], size: int) -> tuple[RolloutPlan, ...]:
    """Return one group of `size` trajectories for each task.

    Args:
        tasks: Positions of the tasks.
        size: Trajectories of a task.
    """
    return tuple(RolloutPlan(task=task, count=size) for task in tasks)
