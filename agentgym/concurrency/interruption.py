"""Work that Ctrl-C or SIGTERM ends in good order: `run_interruptible`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from agentgym.concurrency.threads import is_in_a_loop, run_coroutine

STOPPING = "stopping after this update; press Ctrl-C again to end now"
"""Said at once: an update that has begun may take minutes."""
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
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]
    try:
        return run_coroutine(_until_stopped(work, was_asked, tuple(before)))
    except asyncio.CancelledError:
        if was_asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _until_stopped(
    work: Coroutine[Any, Any, T], was_asked: threading.Event, numbers: tuple[signal.Signals, ...]
) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop(number: int, frame: FrameType | None) -> None:
        was_asked.set()
        for each in numbers:
            # The system's own way: the next one ends the process at once, whatever it computes.
            signal.signal(each, signal.SIG_DFL)
        _say_so()
        loop.call_soon_threadsafe(task.cancel)

    for number in numbers:
        signal.signal(number, stop)
    return await work


def _say_so() -> None:
    if int(os.environ.get("RANK", "0")) > 0:
        return
    # Not through sys.stderr: the signal may have come in the middle of a write to it. A terminal
    # has shown `^C` in this line, and a progress bar has hidden the cursor.
    begin = "\n\x1b[?25h" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{begin}{STOPPING}\n".encode())
