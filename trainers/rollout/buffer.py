"""`Rollouts`: groups of episodes that run ahead of learning, and are handed out once each.

Groups are numbered by their draw from the stream of tasks. `fill` begins as many as the bound of
staleness allows, `take` waits for the next ones in the order of their numbers, whatever order they
ended in: so what a step trains on does not depend on time. What is under way at a checkpoint are
the numbers that were begun and not taken; a resumed run goes on with what was recorded of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from agentgym.concurrency.limiter import LoadAware, PolicyLoad, first_error, next_limit
from agentgym.errors import InfrastructureError
from agentgym.records import Group, Score, Task, Trajectory
from agentgym.rollouts.engine import Engine, GroupSpec, OnTrajectory
from agentgym.rollouts.group import has_ended
from agentgym.rollouts.scoring import Rubric, score_all
from agentgym.trainers.rollout.staleness import capacity

LOWEST_LIMIT = 4
"""Live episodes that an adaptive bound never goes below."""
_LOAD_INTERVAL_S = 1.0
"""Seconds between two looks at the policy's load: past the length of a request's queueing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A group whose episodes came to an end."""

    draw: int
    """Its number in the stream of tasks."""
    task: Task
    """What was asked."""
    group: Group
    """The records."""
    scores: tuple[Score, ...]
    """Scores of the episodes that did not fail."""


@dataclass(slots=True, kw_only=True)
class _Underway:
    """The books of a group that has been begun and not taken."""

    spec: GroupSpec
    known: list[Trajectory] = field(default_factory=list[Trajectory])
    """Records so far."""
    result: Drawn | None = None
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: bool = False
    is_taken: bool = False

    @property
    def ended(self) -> int:
        """How many episodes came to an end."""
        return sum(has_ended(trajectory) for trajectory in self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far rollouts may run ahead."""

    groups_per_step: int
    """Groups of a step."""
    steps_ahead: int
    """Steps that may lie between the beginning of a group and its use; 0 is synchronous."""
    last_step: int
    """Steps of the run: nothing is begun for later ones."""
    closes_at: int | None
    """Episodes with which a group that is waited for is closed; None waits for all."""
    is_adaptive: bool = False
    """Whether the policy's load decides how many episodes are live."""


class Rollouts:
    """Runs groups in the background.

    Args:
        engine: Runs the episodes.
        spec_of: What group number n is.
        rubric: What scores the episodes.
        record: Called with each episode's record when it ends.
        pace: How far to run ahead.
        next_draw: Number of the first group that has not been begun.
    """

    def __init__(
        self,
        engine: Engine,
        spec_of: Callable[[int], GroupSpec],
        *,
        rubric: Rubric,
        record: OnTrajectory,
        pace: Pace,
        next_draw: int = 0,
    ) -> None:
        self.pace = pace
        self.next_draw = next_draw
        self.load: PolicyLoad | None = None
        self._engine = engine
        self._spec_of = spec_of
        self._rubric = rubric
        self._record = record
        self._groups: dict[int, _Underway] = {}
        self._restored: list[int] = []
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if isinstance(self._engine.policy, LoadAware):
            self._start(self._watch(self._engine.policy))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_ending = True
        for task in self._running:
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as failed:
            raise first_error(failed) from failed

    # -- what is under way ---------------------------------------------------------------------

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Numbers of the groups that were begun and not used up, in order."""
        return tuple(sorted(self._groups))

    @property
    def waiting(self) -> int:
        """How many of them have ended and wait to be taken."""
        # A copy: another thread may ask while groups are begun.
        groups = tuple(self._groups.values())
        return sum(group.result is not None and not group.is_taken for group in groups)

    def restore(self, draws: Sequence[int], records: Mapping[str, Sequence[Trajectory]]) -> None:
        """Take over the groups that were under way when a checkpoint was written.

        Args:
            draws: Their numbers; those below `next_draw` that are not among them are used up.
            records: What was recorded of them, by group id; what they lack is run by `fill`.
        """
        for draw in draws:
            spec = self._spec_of(draw)
            self._groups[draw] = _Underway(spec=spec, known=list(records.get(spec.id, ())))
            self._restored.append(draw)

    def fill(self, step: int, *, replaced: int = 0) -> int:
        """Begin as many groups as the bound allows, and return how many.

        Args:
            step: Steps taken.
            replaced: Groups that were taken for the present one and are to be replaced.
        """
        if self._is_ending:
            return 0
        pace = self.pace
        submitted = step * pace.groups_per_step + len(self._groups) - replaced
        ahead = min(pace.steps_ahead, pace.last_step - 1 - step)
        count = capacity(
            steps_ahead=ahead,
            step=step,
            groups_per_step=pace.groups_per_step,
            submitted=submitted,
        )
        draws = [*self._restored, *range(self.next_draw, self.next_draw + count)]
        for draw in draws[len(self._restored) :]:
            self._groups[draw] = _Underway(spec=self._spec_of(draw))
        self._restored.clear()
        self.next_draw += count
        if draws:
            self._start(self._run([self._groups[draw] for draw in draws]))
        return count

    async def take(self, count: int) -> list[Drawn]:
        """Wait for the next `count` groups by number and hand them out.

        They stay under way until `consume`: a step that is dropped before it has used them leaves
        them to the next one.

        Raises:
            ValueError: If fewer are under way.
        """
        await asyncio.sleep(0)  # what failed in the background meanwhile is raised here
        wanted = [n for n in self.outstanding if not self._groups[n].is_taken][:count]
        if len(wanted) < count:
            raise ValueError(f"'count' must be at most the {len(wanted)} groups left (got {count})")
        found = [await self._wait_for(self._groups[draw], wanted) for draw in wanted]
        for draw in wanted:
            self._groups[draw].is_taken = True
        return found

    def consume(self) -> None:
        """Take note that the groups handed out are used up: no step gets them again."""
        self._groups = {n: group for n, group in self._groups.items() if not group.is_taken}

    async def _wait_for(self, group: _Underway, wanted: Sequence[int]) -> Drawn:
        while group.result is None:
            for draw in wanted:
                self._close_if_enough(self._groups[draw])
            group.has_changed.clear()
            if group.result is None:
                await group.has_changed.wait()
        return group.result

    def _close_if_enough(self, group: _Underway) -> None:
        bound = self.pace.closes_at
        if bound is None or group.is_closing or group.result is not None or group.ended < bound:
            return
        group.is_closing = True
        if group.ended < group.spec.size:
            self._engine.close_group(group.spec.id)

    # -- in the background -----------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, groups: Sequence[_Underway]) -> None:
        by_id = {group.spec.id: group for group in groups}

        def on_trajectory(trajectory: Trajectory) -> None:
            self._record(trajectory)
            by_id[trajectory.group_id].known.append(trajectory)
            by_id[trajectory.group_id].has_changed.set()

        def on_group(ended: Group) -> None:
            if not self._is_ending:
                self._start(self._finish(by_id[ended.id], ended))

        known = {group.spec.id: tuple(group.known) for group in groups}
        specs = [group.spec for group in groups]
        try:
            await self._engine.run_groups(specs, on_trajectory, on_group, known=known)
        except BaseException:
            self._is_ending = True
            raise

    async def _finish(self, group: _Underway, ended: Group) -> None:
        scores = await score_all(ended.trajectories, self._rubric)
        draw = next(number for number, other in self._groups.items() if other is group)
        group.result = Drawn(draw=draw, task=group.spec.task, group=ended, scores=scores)
        group.has_changed.set()

    async def _watch(self, policy: LoadAware) -> None:
        """Ask the policy for its load now and then; bound the live episodes by it if so asked."""
        slots, highest = self._engine.slots, self._engine.max_concurrent
        lowest = min(LOWEST_LIMIT, highest)
        while True:
            await asyncio.sleep(_LOAD_INTERVAL_S)
            try:
                self.load = await policy.load()
            except InfrastructureError as error:  # a policy that is down is no reason to stop
                self.load = PolicyLoad(running=0, waiting=0, problems=(str(error),))
                continue
            if self.pace.is_adaptive:
                slots.resize(
                    next_limit(
                        slots.limit, self.load, in_use=slots.in_use, lowest=lowest, highest=highest
                    )
                )


__all__ = ["LOWEST_LIMIT", "Drawn", "Pace", "Rollouts"]
