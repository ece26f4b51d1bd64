"""A group of episodes: what is asked (`GroupSpec`), and its books while it runs (`GroupRun`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.records import Group, Json, Sampling, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.rollouts.episode_state import EpisodeSpec

OnTrajectory = Callable[[Trajectory], None]
OnGroup = Callable[[Group], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """`size` episodes of one task from the identical start state."""

    id: str
    """Id of the group; ids of its trajectories derive from it."""
    task: Task
    """What is asked."""
    size: int
    """Episodes to run."""
    seed: int
    """Seed of reset, the same for all of them."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of the environment's constructor, on top of the task's own."""
    sampling: Sampling = field(default_factory=Sampling)
    """How each turn is drawn."""
    limits: Limits = field(default_factory=Limits)
    """Bounds of each episode."""

    def episode(self, index: int, attempt: int) -> EpisodeSpec:
        """Return the spec of one episode."""
        suffix = f"-a{attempt}" if attempt else ""
        return EpisodeSpec(
            id=f"{self.id}-e{index}{suffix}",
            group_id=self.id,
            task=self.task,
            env_kwargs={**self.task.env_kwargs, **self.env_kwargs},
            seed=self.seed,
            sampling=self.sampling,
            limits=self.limits,
            attempt=attempt,
        )


def has_ended(trajectory: Trajectory) -> bool:
    """Return whether a record is an episode to learn from: neither failed nor cancelled."""
    return trajectory.failure is None and (trajectory.terminated or trajectory.truncated)


class GroupRun:
    """A group under way.

    Args:
        spec: What runs.
        records: Records of an earlier process, to which the missing ones are added.
        retries: Further tries of an episode whose infrastructure failed.
        on_trajectory: Called with each new record.
        on_group: Called once, when no episode of the group is left to run.
    """

    def __init__(
        self,
        spec: GroupSpec,
        records: Sequence[Trajectory],
        *,
        retries: int,
        on_trajectory: OnTrajectory | None,
        on_group: OnGroup | None,
    ) -> None:
        self.spec = spec
        self.records = list(records)
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False
        self._retries = retries
        self._earlier = frozenset(record.id for record in records)
        self._on_trajectory = on_trajectory
        self._on_group = on_group
        self.missing = tuple(index for index in range(spec.size) if self.may_try(index))
        """Indices of the episodes to run."""
        self._pending = len(self.missing)

    def may_try(self, index: int) -> bool:
        """Return whether an episode has no record that ends it, and another try is allowed.

        What failed in an earlier process is not held against it: that process may have ended for
        the very outage, or fault of an environment, that is mended now.
        """
        own = self._tries(index)
        if any(has_ended(record) for record in own):
            return False
        fresh = [record for record in own if record.id not in self._earlier]
        failures = [record.failure for record in fresh if record.failure is not None]
        return len(failures) <= self._retries and all(f.is_retryable for f in failures)

    def next_attempt(self, index: int) -> int:
        """Return the number of the next try of an episode."""
        return max((record.attempt for record in self._tries(index)), default=-1) + 1

    def report(self, trajectory: Trajectory) -> None:
        """Take a record."""
        self.records.append(trajectory)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)

    def watch(self, task: asyncio.Task[None]) -> None:
        """Take a task that runs one of the missing episodes; it calls `end_one` as it ends."""
        self.tasks.add(task)
        task.add_done_callback(self._forget)

    def end_one(self) -> None:
        """Take note that one of the missing episodes is not tried any further."""
        self._pending -= 1
        self.tell_if_ended()

    def tell_if_ended(self) -> None:
        """Call `on_group` if no episode is left to run."""
        if self._pending == 0 and self._on_group is not None:
            on_group, self._on_group = self._on_group, None
            on_group(self.result())

    def close(self) -> None:
        """End the episodes that still run; their records say `cancelled`."""
        self.is_closed = True
        for task in tuple(self.tasks):
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.is_closed and task.cancelled():  # closed before its first step: it never began
            self.end_one()

    def result(self) -> Group:
        """Return the group, its records in episode order, whatever order they ended in."""
        return Group(
            id=self.spec.id,
            task_id=self.spec.task.id,
            requested_size=self.spec.size,
            trajectories=tuple(sorted(self.records, key=place_of)),
        )

    def _tries(self, index: int) -> list[Trajectory]:
        return [record for record in self.records if place_of(record)[0] == index]


def place_of(record: Trajectory) -> tuple[int, int]:
    """Return a record's place in its group and which try it is, from its id."""
    name = record.id.removeprefix(f"{record.group_id}-e").partition("-a")[0]
    return int(name), record.attempt


__all__ = ["GroupRun", "GroupSpec", "OnGroup", "OnTrajectory", "has_ended", "place_of"]
