"""`SandboxPool`: boxes kept warm, one lease an episode, clean before each."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Self

from agentgym.errors import InfrastructureError, SandboxError
from agentgym.sandbox.base import Sandbox
from agentgym.sandbox.python_session import PythonSession

_BOX_FAILURES = (InfrastructureError, SandboxError, OSError)
"""What costs one box and not the pool; an OSError is the machine's, of descriptors or memory."""


class Lease:
    """A box for the time of one episode, with a Python session in it."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.python = PythonSession(box)


class SandboxPool:
    """Up to `size` boxes, of which some are started ahead.

    A box that comes back is reset in the background before anyone gets it; one that cannot be
    reset, or does not answer when it is to be handed out, is replaced. Where all are lent out, the
    next lease waits. Leaving the `async with` closes every box, whatever ended it.

    Example:
        async with SandboxPool(BubblewrapSandbox, size=8) as pool:
            async with pool.lease() as lease:
                await lease.python.run("x = 1")
    """

    def __init__(
        self,
        make_box: Callable[[], Sandbox],
        *,
        size: int,
        warm: int | None = None,
        python: bool = False,
    ) -> None:
        """Set the pool up; nothing starts before `async with`.

        Args:
            make_box: Makes a box that is not started yet.
            size: Most boxes at one time, lent out or not; at least 1.
            warm: Boxes that wait ready, at most `size`; 1 by default.
            python: Whether the Python session of a waiting box is started ahead too.

        Raises:
            SandboxError: If a number is out of range.
        """
        warm = min(1, size) if warm is None else warm
        if not size >= 1 or not 0 <= warm <= size:
            raise SandboxError(f"needs 1 <= size and 0 <= warm <= size (got {size=}, {warm=})")
        self._make_box = make_box
        self._warm = warm
        self._has_python = python
        self._slots = asyncio.Semaphore(size)
        self._idle: collections.deque[Lease] = collections.deque()
        self._boxes: set[Sandbox] = set()
        self._group = asyncio.TaskGroup()
        self._work: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._is_closing = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._is_open = True
        for _ in range(self._warm):
            await self._slots.acquire()
            self._spawn(self._warm_up())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closing = True
        try:
            for task in self._work:
                task.cancel()
            await self._group.__aexit__(exc_type, exc, traceback)
        finally:
            self._is_open = False
            await asyncio.shield(self._close_all())

    @property
    def live_boxes(self) -> int:
        """Boxes that exist now."""
        return len(self._boxes)

    @contextlib.asynccontextmanager
    async def lease(self, *, timeout_s: float | None = None) -> AsyncGenerator[Lease]:
        """Lend a clean box for the time of the `async with`.

        Args:
            timeout_s: Seconds to wait for a free one; None to wait as long as it takes.

        Raises:
            SandboxError: If the pool is not open.
            InfrastructureError: If no box is free in time, or none can be started.
        """
        lease = await self.acquire(timeout_s=timeout_s)
        try:
            yield lease
        finally:
            self.release(lease)

    async def acquire(self, *, timeout_s: float | None = None) -> Lease:
        """Return a lease which the caller must give to `release`, whatever happens."""
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise InfrastructureError(f"no box became free within {timeout_s:g} s") from None
        try:
            return await self._ready()
        except BaseException:
            self._slots.release()
            raise

    def release(self, lease: Lease) -> None:
        """Take a lease back; the box is reset in the background."""
        if self._is_closing or not self._is_open:
            return
        self._spawn(self._recycle(lease.box))

    # -- behind the scenes -------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open or self._is_closing:
            raise SandboxError("the pool is not open; use 'async with'")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _ready(self) -> Lease:
        """Return a lease of a box that answers: a waiting one, else a new one."""
        while self._idle:
            lease = self._idle.popleft()
            try:
                await lease.box.ping()
            except _BOX_FAILURES:
                await self._drop(lease.box)
            except BaseException:
                await asyncio.shield(self._drop(lease.box))
                raise
            else:
                return lease
        return Lease(await self._new_box())

    async def _prepared(self, box: Sandbox) -> Lease:
        """Return a lease of a clean box for the next one who asks."""
        lease = Lease(box)
        if self._has_python:
            await lease.python.start()
        return lease

    async def _new_box(self) -> Sandbox:
        box = self._make_box()
        self._boxes.add(box)
        try:
            await box.start()
        except BaseException as error:
            await asyncio.shield(self._drop(box))
            if isinstance(error, OSError):
                raise InfrastructureError(f"cannot start a box: {error}") from error
            raise
        return box

    async def _warm_up(self) -> None:
        try:
            # A failure shows again where it can be told: at the next lease.
            with contextlib.suppress(*_BOX_FAILURES):
                await self._put_back(await self._new_box())
        finally:
            self._slots.release()

    async def _recycle(self, box: Sandbox) -> None:
        try:
            await self._put_back(box, reset=True)
        finally:
            self._slots.release()

    async def _put_back(self, box: Sandbox, *, reset: bool = False) -> None:
        """Make a box ready for the next lease; one that does not come clean is dropped."""
        try:
            if reset:
                await box.reset()
            lease = await self._prepared(box)
        except _BOX_FAILURES:
            await self._drop(box)
        except BaseException:
            await asyncio.shield(self._drop(box))
            raise
        else:
            self._idle.append(lease)

    async def _drop(self, box: Sandbox) -> None:
        # A failing clean-up must not hide why the box is dropped, nor keep its slot.
        with contextlib.suppress(*_BOX_FAILURES):
            await box.aclose()
        self._boxes.discard(box)

    async def _close_all(self) -> None:
        self._idle.clear()
        async with asyncio.TaskGroup() as group:
            for box in tuple(self._boxes):
                group.create_task(self._drop(box))
