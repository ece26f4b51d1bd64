"""What lets learning and generation overlap: `LearnerThread` and `uninterrupted`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class LearnerThread:
    """The one thread in which the learner computes, so that the event loop goes on meanwhile.

    Always the same thread: torch keeps the current device and the gradient mode by thread.

    Args:
        device: Where the learner's tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1, "learner", initializer=self._begin)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`, computed in the thread.

        A computation cannot be stopped in the middle: cancelled, it is waited for, and the
        cancellation is raised after it.
        """
        future = self._pool.submit(function, *args, **kwargs)

        async def wait() -> T:
            return await asyncio.wrap_future(future)

        return await uninterrupted(wait())

    def close(self) -> None:
        """End the thread. May be called more than once."""
        self._pool.shutdown(wait=True)

    def _begin(self) -> None:
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; a cancellation meanwhile is raised at the caller's next wait.

    For what must be done whole or not at all, such as an update of the weights together with the
    counters that say that it was done.
    """
    # Not in a task group, which would cancel it; it is awaited here on every path.
    task = asyncio.get_running_loop().create_task(work)
    current = asyncio.current_task()
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    result = task.result()  # an error of its own ends the caller as well as a cancellation does
    if was_cancelled and current is not None:
        current.uncancel()
        current.cancel()
    return result


__all__ = ["LearnerThread", "uninterrupted"]
