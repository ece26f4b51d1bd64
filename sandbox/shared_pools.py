"""One event loop in a thread of its own, where the boxes of this process live.

Boxes belong to the loop that started them. An environment is stepped from whatever thread or loop
its user has, so its boxes live here, and its calls come in through `call` (blocking) or `acall`
(awaited). Pools are shared: environments with the same kind of box and the same bounds lease from
one pool.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym.errors import InfrastructureError
from agentgym.sandbox import registry
from agentgym.sandbox.base import SandboxLimits
from agentgym.sandbox.pool import Lease, SandboxPool

T = TypeVar("T")
PoolKey = tuple[str, SandboxLimits, bool]
"""Kind of sandbox, bounds, whether sessions are started ahead."""
CLOSE_WAIT_S = 60.0
"""A busy engine takes its time to remove containers."""
POOL_SIZE = 64
"""Most boxes of one kind and bounds in this process; further episodes wait. A box at rest takes
about 10 MB."""


class Portal:
    """The loop, its thread and the pools in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pools: dict[PoolKey, asyncio.Task[SandboxPool]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="agentgym-sandboxes", daemon=True
        )
        self._thread.start()
        ready.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it, from any other thread."""
        return self._submit(work).result()

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and await it; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self._submit(work))

    async def lease(
        self,
        sandbox: str,
        limits: SandboxLimits,
        *,
        python: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[SandboxPool, Lease]:
        """Return a lease and the pool to give it back to. Runs in the loop.

        Args:
            sandbox: Kind of sandbox, or `auto`.
            limits: Bounds of the box.
            python: Whether boxes wait with their Python session started.
            timeout_s: Seconds to wait for a free box.

        Raises:
            SandboxUnavailableError: If this machine has no such sandbox.
        """
        key = (await _resolved(sandbox), limits, python)
        if key not in self._pools:
            self._pools[key] = self._group_task(self._open_pool(*key))
        pool = await asyncio.shield(self._pools[key])
        return pool, await pool.acquire(timeout_s=timeout_s)

    def close(self) -> None:
        """Close every pool and stop the loop. Closing twice is no error."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(CLOSE_WAIT_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if not self._thread.is_alive():
            work.close()
            raise InfrastructureError("the sandboxes of this process are closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            ready.set()
            await self._closing.wait()

    def _group_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        assert self._group is not None
        return self._group.create_task(work)

    async def _open_pool(self, sandbox: str, limits: SandboxLimits, python: bool) -> SandboxPool:
        make = functools.partial(registry.make_sandbox, sandbox, limits)
        opened: asyncio.Future[SandboxPool] = self._loop.create_future()
        self._keepers.append(self._group_task(self._keep(make, python, opened)))
        return await opened

    async def _keep(self, make: Any, python: bool, opened: asyncio.Future[SandboxPool]) -> None:
        """Hold a pool open: it must be closed by the task that opened it."""
        async with SandboxPool(make, size=POOL_SIZE, warm=0, python=python) as pool:
            opened.set_result(pool)
            await self._closing.wait()


_lock = threading.Lock()
_portal: Portal | None = None
_owner_pid = 0
_resolutions: dict[str, str] = {}


def portal() -> Portal:
    """Return the portal of this process; a forked child gets its own."""
    global _portal, _owner_pid
    with _lock:
        if _portal is None or _owner_pid != os.getpid() or not _portal._thread.is_alive():
            _portal, _owner_pid = Portal(), os.getpid()
        return _portal


@atexit.register
def close_portal() -> None:
    """Close every box of this process that came through the portal."""
    if _portal is not None and _owner_pid == os.getpid():
        _portal.close()


async def _resolved(sandbox: str) -> str:
    if sandbox not in _resolutions:
        _resolutions[sandbox] = await registry.resolve(sandbox)
    return _resolutions[sandbox]
