"""Work that Ctrl-C or SIGTERM ends in good order: `run_interruptible`."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym.blocking import is_in_a_loop, run_coroutine

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; the first Ctrl-C or SIGTERM cancels it, so that it can save, a second one kills.

    A process that a script starts in the background ignores Ctrl-C, as shells want it, but never
    SIGTERM.

    Raises:
        KeyboardInterrupt: If it was interrupted.
    """
    if threading.current_thread() is not threading.main_thread() or is_in_a_loop():
        return run_coroutine(work)  # signals belong to the main thread and its loop
    was_asked = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    try:
        return run_coroutine(_until_terminated(work, was_asked))
    except asyncio.CancelledError:
        if was_asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


async def _until_terminated(work: Coroutine[Any, Any, T], was_asked: threading.Event) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        was_asked.set()
        # The system's own way is back: the next one ends the process at once.
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
