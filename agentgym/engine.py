"""Runs many episodes at once: one coroutine an episode, no barrier between turns.

`Engine.run_groups` turns group specs into groups. Environment instances are pooled and reused by
`reset`; blocking environment calls run in the engine's own threads, one for each live episode.
Only infrastructure failures are tried again, a bounded number of times; every started episode ends
as exactly one record, siblings of a failed one are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import gymnasium

from agentgym import registry
from agentgym.blocking import use_executor
from agentgym.env_driver import EnvDriver
from agentgym.episode import Episode, EpisodeSpec
from agentgym.errors import ConfigError
from agentgym.limits import Limits
from agentgym.policy import Policy
from agentgym.records import (
    Failure,
    Group,
    Json,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    canonical_json,
)
from agentgym.rollouts import close_driver, driver_or_failure, run_episode

MakeEnv = Callable[..., gymnasium.Env[str, str]]
OnTrajectory = Callable[[Trajectory], None]


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


class Engine:
    """Runs groups of episodes with one policy.

    Args:
        policy: Who acts.
        max_concurrent: Live episodes at most, each with its own environment instance and thread.
        retries: How often an episode is tried again after an infrastructure failure.
        make_env: Makes an instance from an id and keyword arguments.
        is_ordered: Announce all episodes of a wave to the policy before the first one starts, and
            run waves of `max_concurrent` one after the other: the deterministic mode.

    Example:
        async with Engine(policy, max_concurrent=64) as engine:
            groups = await engine.run_groups(specs)
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_concurrent: int = 64,
        retries: int = 2,
        make_env: MakeEnv = registry.make,
        is_ordered: bool = False,
    ) -> None:
        if max_concurrent < 1:
            raise ConfigError(f"'max_concurrent' must be >= 1 (got {max_concurrent!r})")
        if retries < 0:
            raise ConfigError(f"'retries' must be >= 0 (got {retries!r})")
        self.policy = policy
        self.live: dict[str, Episode] = {}
        self._max_concurrent = max_concurrent
        self._retries = retries
        self._make_env = make_env
        self._is_ordered = is_ordered
        self._executor = ThreadPoolExecutor(max_concurrent, thread_name_prefix="agentgym-engine")
        self._idle: dict[str, list[EnvDriver]] = {}
        self._scarce: dict[str, asyncio.Semaphore] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def run_groups(
        self, specs: Sequence[GroupSpec], on_trajectory: OnTrajectory | None = None
    ) -> list[Group]:
        """Run every group and return them in the order of `specs`.

        Args:
            specs: What to run.
            on_trajectory: Called with each record when its episode ends, failed and cancelled
                ones too.

        Raises:
            asyncio.CancelledError: If cancelled; every started episode has been reported then.
        """
        records: dict[str, list[Trajectory]] = {spec.id: [] for spec in specs}
        if len(records) != len(specs):
            raise ConfigError("group ids must be unique within a call of run_groups")

        def report(trajectory: Trajectory) -> None:
            records[trajectory.group_id].append(trajectory)
            if on_trajectory is not None:
                on_trajectory(trajectory)

        jobs = [(spec, index) for spec in specs for index in range(spec.size)]
        with use_executor(self._executor):
            for wave in self._waves(jobs):
                await self._run_wave(wave, report)
        return [_group(spec, records[spec.id]) for spec in specs]

    async def aclose(self) -> None:
        """Close every idle environment instance and the threads. May be called more than once."""
        drivers = [driver for pool in self._idle.values() for driver in pool]
        self._idle.clear()
        await asyncio.gather(*(close_driver(driver) for driver in drivers))
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _waves(self, jobs: list[tuple[GroupSpec, int]]) -> list[list[tuple[GroupSpec, int]]]:
        if not self._is_ordered:
            return [jobs]
        size = self._max_concurrent
        return [jobs[start : start + size] for start in range(0, len(jobs), size)]

    async def _run_wave(self, jobs: list[tuple[GroupSpec, int]], report: OnTrajectory) -> None:
        slots = asyncio.Semaphore(self._max_concurrent)
        if self._is_ordered:
            for spec, index in jobs:
                await self.policy.begin_episode(spec.episode(index, 0).id)

        async def run(spec: GroupSpec, index: int) -> None:
            async with slots:
                await self._run_attempts(spec, index, report)

        async with asyncio.TaskGroup() as tasks:
            for spec, index in jobs:
                tasks.create_task(run(spec, index))

    async def _run_attempts(self, spec: GroupSpec, index: int, report: OnTrajectory) -> None:
        for attempt in range(self._retries + 1):
            episode_spec = spec.episode(index, attempt)
            if not self._is_ordered or attempt:
                await self.policy.begin_episode(episode_spec.id)
            try:
                trajectory = await self._run_one(episode_spec, report)
            finally:
                await self.policy.end_episode(episode_spec.id)
            if trajectory.failure is None or not trajectory.failure.is_retryable:
                return

    async def _run_one(self, spec: EpisodeSpec, report: OnTrajectory) -> Trajectory:
        episode = Episode(spec, self.policy)
        self.live[spec.id] = episode
        trajectory: Trajectory | None = None
        key = spec.task.env_id + canonical_json(dict(spec.env_kwargs))
        try:
            async with self._scarcity(spec, key):
                acquired = await driver_or_failure(self._acquire(spec, key), spec.task.env_id)
                if isinstance(acquired, Failure):
                    trajectory = episode.finish(StopReason.FAILURE, failure=acquired)
                    return trajectory
                driver = acquired
                try:
                    trajectory = await run_episode(driver, self.policy, spec, episode)
                finally:
                    is_healthy = trajectory is not None and trajectory.failure is None
                    await self._release(key, driver, is_healthy=is_healthy)
        except asyncio.CancelledError:
            if trajectory is None:
                trajectory = episode.finish(StopReason.CANCELLED)
            raise
        finally:
            del self.live[spec.id]
            if trajectory is not None:
                report(trajectory)
        assert trajectory is not None  # set on every path that does not raise
        return trajectory

    def _scarcity(self, spec: EpisodeSpec, key: str) -> asyncio.Semaphore:
        """Return what bounds the instances of an environment: its own number, if it has one."""
        if key not in self._scarce:
            known = spec.task.env_id in registry.list_envs()
            bound = registry.spec(spec.task.env_id).max_instances if known else None
            self._scarce[key] = asyncio.Semaphore(bound or self._max_concurrent)
        return self._scarce[key]

    async def _acquire(self, spec: EpisodeSpec, key: str) -> EnvDriver:
        pool = self._idle.setdefault(key, [])
        if pool:
            return pool.pop()
        env_id, kwargs = spec.task.env_id, dict(spec.env_kwargs)
        return await EnvDriver.create(
            lambda: self._make_env(env_id, **kwargs),
            self._executor,
            thread_affine=_is_thread_affine(env_id),
        )

    async def _release(self, key: str, driver: EnvDriver, *, is_healthy: bool) -> None:
        """Keep a healthy instance for the next episode; one that failed is not trusted again."""
        if is_healthy and not driver.is_abandoned:
            self._idle.setdefault(key, []).append(driver)
        else:
            await close_driver(driver)


def _is_thread_affine(env_id: str) -> bool:
    """Whether instances are bound to the thread that makes them, as browser drivers are."""
    if env_id not in registry.list_envs():
        return False
    return bool(getattr(registry.load(env_id), "thread_affine", False))


def _group(spec: GroupSpec, records: Sequence[Trajectory]) -> Group:
    """Return the group with its records in episode order, whatever order they ended in."""
    order = {
        spec.episode(i, a).id: (i, a) for i in range(spec.size) for a in range(len(records) + 1)
    }
    ordered = sorted(records, key=lambda record: order[record.id])
    return Group(
        id=spec.id, task_id=spec.task.id, requested_size=spec.size, trajectories=tuple(ordered)
    )
