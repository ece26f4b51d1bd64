"""Runs one environment instance without blocking the event loop.

Blocking calls go to the engine's threads, or to the instance's own thread where a driver is bound
to the thread that made it (`thread_affine = True` on the environment). A call that overruns its
time cannot be stopped from outside: the instance is then given up and closed when it returns.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

import gymnasium

from agentgym.concurrency.threads import DaemonThreads, use_executor, watched_calls
from agentgym.env.author_code import is_async
from agentgym.env.contract import Action, TextEnv
from agentgym.records import Task

T = TypeVar("T")


class EnvDriver:
    """An environment instance behind awaitable calls; at most one call is in flight."""

    def __init__(self, env: gymnasium.Env[str, str], executor: Executor) -> None:
        self.env = env
        self.unwrapped: Any = env.unwrapped
        self.is_abandoned = False
        self._executor = executor
        self._has_own_astep = _overrides_astep(self.unwrapped)
        self._has_async_start = isinstance(self.unwrapped, TextEnv) and is_async(
            self.unwrapped.start
        )

    @classmethod
    async def create(
        cls, make: Callable[[], gymnasium.Env[str, str]], executor: Executor, *, thread_affine: bool
    ) -> EnvDriver:
        """Return a driver for a new instance, made in the thread that will run it."""
        if thread_affine:
            executor = DaemonThreads(1, "agentgym-env")
        made = executor.submit(make)
        try:
            env = await asyncio.wrap_future(made)
        except BaseException:
            made.add_done_callback(_close_made)  # cancelled, it may still be made
            if thread_affine:
                executor.shutdown(wait=False)
            raise
        driver = cls(env, executor)
        driver._owns_executor = thread_affine
        return driver

    _owns_executor = False

    async def reset(
        self, task: Task | None, seed: int, timeout_s: float | None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Raises:
            TimeoutError: If it took longer than `timeout_s`; the instance must not be used again.
        """
        options = {"task": task} if task is not None else None
        if not self._has_async_start:
            return await self._blocking(
                lambda: self.env.reset(seed=seed, options=options), timeout_s
            )
        return await self._awaited(self.unwrapped.areset(seed=seed, options=options), timeout_s)

    async def step(
        self, action: Action, timeout_s: float | None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer one action; an environment with its own `astep` is awaited.

        Raises:
            TimeoutError: If it took longer than `timeout_s`; the instance must not be used again.
        """
        if not self._has_own_astep:
            observation, reward, terminated, truncated, info = await self._blocking(
                lambda: self.env.step(action), timeout_s
            )
            return observation, float(reward), terminated, truncated, info
        return await self._awaited(self.unwrapped.astep(action), timeout_s)

    async def call(self, function: Callable[[], T], timeout_s: float | None) -> T:
        """Return what `function` returns, run where the instance's calls run."""
        return await self._blocking(function, timeout_s)

    async def aclose(self) -> None:
        """Close the instance, unless a call still holds it: then it is closed when that returns."""
        loop = asyncio.get_running_loop()
        if not self.is_abandoned:
            await loop.run_in_executor(self._executor, self.env.close)
        if self._owns_executor:
            self._executor.shutdown(wait=False)

    async def _awaited(self, call: Awaitable[T], timeout_s: float | None) -> T:
        """Await what the environment awaits itself; its blocking calls run where all of them do."""
        with use_executor(self._executor), watched_calls() as calls:
            try:
                async with asyncio.timeout(timeout_s):
                    return await call
            except (TimeoutError, asyncio.CancelledError):
                self._give_up([one for one in calls if not one.done()])
                raise

    async def _blocking(self, function: Callable[[], T], timeout_s: float | None) -> T:
        future = self._executor.submit(function)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError):
            # wrap_future has tried to cancel it; one that runs already goes on in its thread.
            self._give_up([] if future.done() else [future])
            raise

    def _give_up(self, calls: Sequence[Future[Any]]) -> None:
        """Close the instance when the last of some calls that hold it returns."""
        if not calls:
            return
        self.is_abandoned = True
        env, left, lock = self.env, set(calls), threading.Lock()

        def end(call: Future[Any]) -> None:
            with lock:
                left.discard(call)
                is_last = not left
            if is_last:
                env.close()

        for call in calls:
            call.add_done_callback(end)


def _close_made(made: Future[gymnasium.Env[str, str]]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _overrides_astep(env: Any) -> bool:
    """Whether an environment awaits its tools itself; the default `astep` is a step in a thread."""
    kind = cast("Any", type(env))
    astep = getattr(kind, "astep", None)
    if astep is None or not inspect.iscoroutinefunction(astep):
        return False
    is_default = isinstance(env, TextEnv) and astep is getattr(TextEnv, "astep", None)
    return not is_default or is_async(env.respond)
