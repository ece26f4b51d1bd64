"""Which of several evaluations is better, task by task: `compare`, `combine`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.evaluation.inherited import shown
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


def unlike(first: EvaluationResult, second: EvaluationResult) -> str | None:
    """Return why the means of two evaluations must not be compared; None if they may.

    Unlike are evaluations of other suites or splits, under other arguments of an environment, or
    with other system prompts for a task that both have. Sampling may differ: it belongs to the
    policy.
    """
    if set(first.suites) != set(second.suites):
        return f"one is on {', '.join(first.suites)}, the other on {', '.join(second.suites)}"
    if first.split != second.split:
        return f"one is on the split {first.split}, the other on {second.split}"
    if bool(first.posed) != bool(second.posed):
        return "one does not record the arguments of its environments: evaluate it again"
    for suite, posed in first.posed.items():
        other = second.posed.get(suite, posed)
        if posed.env_id != other.env_id:
            return f"{suite} is of {posed.env_id} in one, and of {other.env_id} in the other"
        if posed.kwargs != other.kwargs:
            return (
                f"{suite} has {shown(posed.kwargs)} in one, and {shown(other.kwargs)} in the other"
            )
    return _unlike_prompts(first, second)


def _unlike_prompts(first: EvaluationResult, second: EvaluationResult) -> str | None:
    before = {one.task: one.prompt_hash for one in first.attempts if one.prompt_hash}
    for one in second.attempts:
        known = before.get(one.task)
        if known is not None and one.prompt_hash and known != one.prompt_hash:
            return f"the task {one.task} has another system prompt in each of them"
    return None


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
