"""Boxes for environments: leased through the process's portal, from whatever thread or loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from agentgym.errors import EnvError, InfrastructureError, nearest
from agentgym.sandbox import BACKENDS
from agentgym.sandbox.base import SandboxLimits
from agentgym.sandbox.pool import Lease, SandboxPool
from agentgym.sandbox.registry import AUTO, resolve
from agentgym.sandbox.shared_pools import portal

T = TypeVar("T")
TRIES = 2
"""A box that is lost during work which can be done again costs one repetition, not the episode."""

__all__ = ["AUTO", "BoxOfEpisode", "known_sandbox", "require_sandbox", "with_fresh_box"]


def known_sandbox(name: str) -> str:
    """Return the name of a kind of sandbox, which nothing is started for.

    Raises:
        EnvError: If there is no kind of that name.
    """
    known = (AUTO, *BACKENDS)
    if name not in known:
        raise EnvError(
            f"'sandbox' must be one of {', '.join(known)} (got {name!r}){nearest(name, known)}"
        )
    return name


def require_sandbox(name: str) -> None:
    """Return if the kind of sandbox can be used here.

    Raises:
        SandboxUnavailableError: For `auto`, if no kind works; says what to install.
    """
    portal().call(resolve(name))


async def with_fresh_box(
    name: str, limits: SandboxLimits, work: Callable[[Lease], Awaitable[T]]
) -> T:
    """Return what `work` returns, given a clean box with a Python session that waits.

    If the box is lost on the way, once more.

    Raises:
        InfrastructureError: If that box is lost too, or none can be had.
    """
    return await portal().acall(_try_twice(name, limits, work))


async def _try_twice(name: str, limits: SandboxLimits, work: Callable[[Lease], Awaitable[T]]) -> T:
    for _ in range(TRIES - 1):
        try:
            async with leased(name, limits, python=True) as lease:
                return await work(lease)
        except InfrastructureError:
            continue
    async with leased(name, limits, python=True) as lease:
        return await work(lease)


@contextlib.asynccontextmanager
async def leased(
    name: str, limits: SandboxLimits, *, python: bool = False
) -> AsyncGenerator[Lease]:
    """Lease a box for the time of the `async with`. Runs in the portal's loop."""
    pool, lease = await portal().lease(name, limits, python=python)
    try:
        yield lease
    finally:
        pool.release(lease)


class BoxOfEpisode:
    """The box of one episode, leased when it is first needed, given back by `release`."""

    def __init__(self, name: str, limits: SandboxLimits, *, python: bool = False) -> None:
        self._python = python
        self._name = name
        self._limits = limits
        self._held: tuple[SandboxPool, Lease] | None = None

    def call(self, work: Callable[[Lease], Awaitable[T]]) -> T:
        """Return what `work` returns, from synchronous code."""
        return portal().call(self._run(work))

    async def acall(self, work: Callable[[Lease], Awaitable[T]]) -> T:
        """Return what `work` returns, awaited in any loop."""
        return await portal().acall(self._run(work))

    async def _run(self, work: Callable[[Lease], Awaitable[T]]) -> T:
        if self._held is None:
            self._held = await portal().lease(self._name, self._limits, python=self._python)
        return await work(self._held[1])

    def release(self) -> None:
        """Give the box back. Doing so twice, or without a box, is no error."""
        held, self._held = self._held, None
        if held is not None:
            # With the portal the box is closed already.
            with contextlib.suppress(InfrastructureError):
                portal().call(_give_back(*held))


async def _give_back(pool: SandboxPool, lease: Lease) -> None:
    pool.release(lease)
