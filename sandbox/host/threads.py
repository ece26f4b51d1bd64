"""Blocking work off the event loop, also while the interpreter ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(
    function: Callable[..., T], *arguments: Any, executor: Executor | None = None
) -> T:
    """Return what a blocking function returns, called in a thread.

    At the end of the interpreter Python takes no more work for threads before it runs the exit
    handlers that close the boxes; what they still have to do is then done at once.

    Args:
        function: What to call.
        arguments: Its arguments.
        executor: Whose threads; the loop's own by default.
    """
    call = functools.partial(function, *arguments)
    try:
        waiting = asyncio.get_running_loop().run_in_executor(executor, call)
    except RuntimeError:
        return call()
    return await waiting
