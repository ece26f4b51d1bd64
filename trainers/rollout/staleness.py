"""How old a token may be, in learner updates: the arithmetic of running ahead.

In order: `capacity` (how many groups may be begun), `oldest_version` of an episode, and
`split_stale`, which takes out what is too old. Nothing here waits or has state.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.records import Trajectory


def capacity(*, steps_ahead: int, step: int, groups_per_step: int, submitted: int) -> int:
    """Return how many more groups may be begun, `(ahead + step + 1) groups - submitted`.

    A group that is begun at this step with number `n`, counted over the run without those that
    were replaced, is trained on at step `n // groups_per_step`, hence at most `steps_ahead` later.

    Args:
        steps_ahead: Steps that may lie between the beginning of a group and its use.
        step: Steps taken.
        groups_per_step: Groups of a step.
        submitted: Groups that were begun, whether they run, wait or are used up; those that were
            replaced by others do not count.

    Example:
        capacity(steps_ahead=2, step=10, groups_per_step=8, submitted=80) == 24
    """
    return max((steps_ahead + step + 1) * groups_per_step - submitted, 0)


def oldest_version(trajectory: Trajectory) -> int | None:
    """Return the version of the oldest sampled token of an episode, None if it has none."""
    traces = [turn.completion.tokens for turn in trajectory.turns]
    versions = [run.version for trace in traces if trace is not None for run in trace.versions]
    return min(versions, default=None)


def token_lags(trajectories: Sequence[Trajectory], *, version: int) -> list[tuple[int, int]]:
    """Return the sampled tokens of episodes as (updates behind `version`, how many)."""
    traces = [turn.completion.tokens for t in trajectories for turn in t.turns]
    return [
        (version - run.version, run.count)
        for trace in traces
        if trace is not None
        for run in trace.versions
    ]


def split_stale(
    trajectories: Sequence[Trajectory], *, version: int, max_staleness: int
) -> tuple[tuple[Trajectory, ...], tuple[Trajectory, ...]]:
    """Return the episodes that are fresh enough for a learner at `version`, and the others.

    Failed and cancelled ones count as fresh: they are trained on in no case.

    Args:
        trajectories: Episodes.
        version: Updates behind the weights that are being trained.
        max_staleness: Updates that may lie between a token's weights and those.

    Example:
        A limit of 2 at version 5 keeps an episode of version 3, and not one of version 2.
    """
    kept: list[Trajectory] = []
    stale: list[Trajectory] = []
    for trajectory in trajectories:
        oldest = oldest_version(trajectory)
        is_stale = oldest is not None and version - oldest > max_staleness
        is_stale = is_stale and (trajectory.terminated or trajectory.truncated)
        (stale if is_stale else kept).append(trajectory)
    return tuple(kept), tuple(stale)


__all__ = ["capacity", "oldest_version", "split_stale", "token_lags"]
