"""Which of several evaluations is better, task by task: `compare`, `combine`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.evaluation.result import EvaluationResult
from agentgym.evaluation.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    unpaired_difference,
)

# Below this share of common tasks a paired difference speaks of too few of them.
_LEAST_COMMON = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far one side is ahead of another.

    Example:
        Difference(interval=Interval(mean=0.12, low=0.08, high=0.16, count=300), is_paired=True)
    """

    interval: Interval
    """Mean outcome of the second side less that of the first."""
    is_paired: bool
    """True if the same tasks were compared; else the sides' tasks are taken for samples."""

    @property
    def is_above_zero(self) -> bool:
        """True if the second side is ahead by its whole interval."""
        return self.interval.low > 0


def task_values(results: Sequence[EvaluationResult]) -> dict[str, float]:
    """Return task -> mean outcome over several evaluations, such as seeds or last checks.

    Each evaluation counts the same; a task that some of them lack is averaged over the others.
    """
    values: dict[str, list[float]] = {}
    for result in results:
        for task, mean in result.task_means().items():
            values.setdefault(task, []).append(mean)
    return {task: math.fsum(of_task) / len(of_task) for task, of_task in values.items()}


def combine(results: Sequence[EvaluationResult]) -> Interval:
    """Return the mean outcome over several evaluations with its interval, clustered by task.

    Raises:
        ConfigError: If there is none.
    """
    interval = mean_interval(list(task_values(results).values()))
    if interval is None:
        raise ConfigError("a mean over evaluations needs one or more (got none)")
    return interval


def compare(
    first: Sequence[EvaluationResult], second: Sequence[EvaluationResult]
) -> Difference | None:
    """Return how far `second` is ahead of `first`; None where one side has too few tasks.

    Tasks that both sides have are compared in pairs. Where fewer than half of the tasks of a side
    are common, all tasks of both are compared as two samples.
    """
    before, after = task_values(first), task_values(second)
    common = len(before.keys() & after.keys())
    if common >= _LEAST_COMMON * max(len(before), len(after), 1):
        interval = paired_difference(before, after)
        return Difference(interval=interval, is_paired=True) if interval is not None else None
    interval = unpaired_difference(list(before.values()), list(after.values()))
    return Difference(interval=interval, is_paired=False) if interval is not None else None
