"""Runs many episodes at once: one coroutine an episode, no barrier between turns.

`Engine.run_groups` turns group specs into groups; calls may overlap and share one bound of live
episodes. Environment instances are pooled and reused by `reset`; blocking environment calls run in
the engine's own threads, one for each live episode. Only infrastructure failures are tried again, a
bounded number of times; every started episode ends as exactly one record, siblings of a failed one
are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import gymnasium

from agentgym.concurrency.limiter import Slots, first_error
from agentgym.concurrency.threads import DaemonThreads, use_executor
from agentgym.env import registry
from agentgym.errors import ConfigError
from agentgym.policies.base import Policy
from agentgym.records import Failure, Group, StopReason, Trajectory, canonical_json
from agentgym.rollouts.env_worker import EnvDriver
from agentgym.rollouts.episode_state import Episode, EpisodeSpec
from agentgym.rollouts.group import GroupRun, GroupSpec, OnGroup, OnTrajectory
from agentgym.rollouts.run_episode import close_driver, driver_or_failure, run_episode

MakeEnv = Callable[..., gymnasium.Env[str, str]]
_THREADS_PER_EPISODE = 2
"""A call that was given up holds its thread until it returns, while the next episode needs one."""


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
        self.slots = Slots(max_concurrent)
        self.max_concurrent = max_concurrent
        self._retries = retries
        self._make_env = make_env
        self._is_ordered = is_ordered
        self._executor = DaemonThreads(max_concurrent * _THREADS_PER_EPISODE, "agentgym-engine")
        self._groups: dict[str, GroupRun] = {}
        self._playing: dict[str, asyncio.Task[Any]] = {}
        self._restarted: set[str] = set()
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
        self,
        specs: Sequence[GroupSpec],
        on_trajectory: OnTrajectory | None = None,
        on_group: OnGroup | None = None,
        *,
        known: Mapping[str, Sequence[Trajectory]] | None = None,
    ) -> list[Group]:
        """Run every group and return them in the order of `specs`.

        Args:
            specs: What to run.
            on_trajectory: Called with each record when its episode ends, failed and cancelled
                ones too.
            on_group: Called with each group when its last episode ends.
            known: Records of an earlier process by group id: only what they lack is run.

        Raises:
            asyncio.CancelledError: If cancelled; every started episode has been reported then.
        """
        known = known if known is not None else {}
        groups = [
            GroupRun(
                spec,
                known.get(spec.id, ()),
                retries=self._retries,
                on_trajectory=on_trajectory,
                on_group=on_group,
            )
            for spec in specs
        ]
        ids = {spec.id for spec in specs}
        if len(ids) != len(specs) or not ids.isdisjoint(self._groups):
            raise ConfigError("ids of groups that run at the same time must be unique")
        self._groups.update({group.spec.id: group for group in groups})
        try:
            for group in groups:
                group.tell_if_ended()
            jobs = [(group, index) for group in groups for index in group.missing]
            with use_executor(self._executor):
                for wave in self._waves(jobs):
                    await self._run_wave(wave)
        except BaseExceptionGroup as failed:
            raise first_error(failed) from failed
        finally:
            for spec in specs:
                del self._groups[spec.id]
        return [group.result() for group in groups]

    def close_group(self, group_id: str) -> None:
        """End the episodes of a group that still run, as cancelled; the group then ends.

        One that does not run any more has nothing to end.
        """
        if group_id in self._groups:
            self._groups[group_id].close()

    def restart_live(self) -> int:
        """Begin every live episode that has sampled anew, as a further attempt; return how many.

        What it had is recorded as cancelled.
        """
        begun = [
            episode_id
            for episode_id, episode in self.live.items()
            if not episode.is_finished and (episode.turns or episode.state == "generate")
        ]
        for episode_id in begun:
            self._restarted.add(episode_id)
            self._playing[episode_id].cancel()
        return len(begun)

    async def aclose(self) -> None:
        """Close every idle environment instance and the threads. May be called more than once."""
        drivers = [driver for pool in self._idle.values() for driver in pool]
        self._idle.clear()
        await asyncio.gather(*(close_driver(driver) for driver in drivers))
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _waves(self, jobs: list[tuple[GroupRun, int]]) -> list[list[tuple[GroupRun, int]]]:
        if not self._is_ordered:
            return [jobs]
        size = self.max_concurrent
        return [jobs[start : start + size] for start in range(0, len(jobs), size)]

    async def _run_wave(self, jobs: list[tuple[GroupRun, int]]) -> None:
        if self._is_ordered:
            for group, index in jobs:
                attempt = group.next_attempt(index)
                await self.policy.begin_episode(group.spec.episode(index, attempt).id)

        async def run(group: GroupRun, index: int) -> None:
            try:
                if not group.is_closed:
                    async with self.slots:
                        await self._run_attempts(group, index)
            except asyncio.CancelledError:
                if not group.is_closed:
                    raise
            group.end_one()

        async with asyncio.TaskGroup() as tasks:
            for group, index in jobs:
                group.watch(tasks.create_task(run(group, index)))

    async def _run_attempts(self, group: GroupRun, index: int) -> None:
        is_first = True
        while group.may_try(index):
            spec = group.spec.episode(index, group.next_attempt(index))
            if not (self._is_ordered and is_first):
                await self.policy.begin_episode(spec.id)
            is_first = False
            try:
                await self._run_one(spec, group.report)
            except asyncio.CancelledError:
                if not self._is_restart(spec.id):
                    raise
            finally:
                await self.policy.end_episode(spec.id)

    def _is_restart(self, episode_id: str) -> bool:
        """Return whether a cancellation meant the attempt alone, and take it back if so."""
        task = asyncio.current_task()
        if task is None or episode_id not in self._restarted:
            return False
        self._restarted.discard(episode_id)
        return task.uncancel() == 0

    async def _run_one(self, spec: EpisodeSpec, report: OnTrajectory) -> Trajectory:
        episode = Episode(spec, self.policy)
        self.live[spec.id] = episode
        task = asyncio.current_task()
        assert task is not None  # coroutines run in tasks
        self._playing[spec.id] = task
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
            del self.live[spec.id], self._playing[spec.id]
            if trajectory is not None:
                report(trajectory)
        assert trajectory is not None  # set on every path that does not raise
        return trajectory

    def _scarcity(self, spec: EpisodeSpec, key: str) -> asyncio.Semaphore:
        """Return what bounds the instances of an environment: its own number, if it has one."""
        if key not in self._scarce:
            known = spec.task.env_id in registry.list_envs()
            bound = registry.spec(spec.task.env_id).max_instances if known else None
            self._scarce[key] = asyncio.Semaphore(bound or self.max_concurrent)
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


__all__ = ["Engine", "GroupSpec", "MakeEnv", "OnGroup", "OnTrajectory"]
