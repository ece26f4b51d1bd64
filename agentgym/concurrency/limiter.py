"""How much runs at once: `Slots`, what a policy says of its load, and the bound that follows.

In order: `Slots` (a bound that may change while it is held), `PolicyLoad` and the protocol
`LoadAware`, `next_limit` (more while the policy keeps up, fewer when requests queue), and
`first_error` (the one that brought a group of tasks down).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, cast, runtime_checkable

GROWTH_SHARE = 0.1
"""A bound that is reached grows by this share, by one at least."""
SHRINK_FACTOR = 0.8
"""A bound under which requests queue falls to this share."""
WAITING_SHARE = 0.1
"""Requests that wait, as a share of those that run, from which a policy counts as too busy."""
FULL_CACHE = 0.95
"""Share of a server's cache in use from which more episodes would push each other out."""


class Slots:
    """A bound on what runs at once, first come first served. It may change while slots are held.

    Example:
        async with slots:
            await run()
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        # A copy: another thread may ask while this one serves.
        return sum(not waiter.done() for waiter in tuple(self._waiters))

    async def __aenter__(self) -> None:
        if self.in_use < self.limit and not self._waiters:
            self.in_use += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it had just been given a slot
                self._free()
            elif waiter in self._waiters:  # a slot that came free may have passed it by already
                self._waiters.remove(waiter)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free()

    def resize(self, limit: int) -> None:
        """Change the bound; who holds a slot keeps it."""
        self.limit = limit
        self._hand_out()

    def _free(self) -> None:
        self.in_use -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiters and self.in_use < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_use += 1
                waiter.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoad:
    """How busy a policy is.

    Example:
        PolicyLoad(running=64, waiting=12, cache_share=0.83)
    """

    running: int
    """Requests that are being answered."""
    waiting: int
    """Requests that wait for their turn."""
    cache_share: float | None = None
    """Share of the room for keys and values in use; None if not known."""
    problems: tuple[str, ...] = ()
    """What is wrong with it now, one line each, such as a server that is being restarted."""


@runtime_checkable
class LoadAware(Protocol):
    """A policy that knows how busy it is."""

    async def load(self) -> PolicyLoad:
        """Return the load at this moment; quick, and without an effect on what runs."""
        ...


def next_limit(limit: int, load: PolicyLoad, *, in_use: int, lowest: int, highest: int) -> int:
    """Return how many episodes may be live, from how the policy copes with those that are.

    Fewer by a fifth when requests queue or the cache is full; more by a tenth when every slot is
    taken and nothing queues; else as before.

    Args:
        limit: The bound until now.
        load: What the policy says.
        in_use: Episodes that are live.
        lowest: Smallest bound, at least 1.
        highest: Largest bound.

    Example:
        next_limit(64, PolicyLoad(running=40, waiting=8), in_use=64, lowest=8, highest=256) == 51
    """
    is_full = load.cache_share is not None and load.cache_share >= FULL_CACHE
    if load.waiting > WAITING_SHARE * load.running or is_full:
        wanted = int(limit * SHRINK_FACTOR)
    elif in_use >= limit:
        wanted = limit + max(1, int(limit * GROWTH_SHARE))
    else:
        wanted = limit
    return min(max(wanted, lowest), highest)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group that is no group itself: what a person must read."""
    first = group.exceptions[0]
    if not isinstance(first, BaseExceptionGroup):
        return first
    return first_error(cast("BaseExceptionGroup[BaseException]", first))


__all__ = ["LoadAware", "PolicyLoad", "Slots", "first_error", "next_limit"]
