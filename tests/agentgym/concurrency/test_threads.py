"""Blocking calls: which threads, which context, and coroutines from synchronous code."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.concurrency.threads import (
    DaemonThreads,
    run_blocking,
    run_coroutine,
    run_now,
    use_executor,
)

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def where() -> str:
    return threading.current_thread().name


async def test_run_blocking_uses_the_executor_of_its_context() -> None:
    assert not (await run_blocking(where)).startswith("engine")
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as pool:
        with use_executor(pool):
            async with asyncio.TaskGroup() as group:
                # A task started inside has the executor too.
                task = group.create_task(run_blocking(where))
        assert task.result().startswith("engine")
        assert not (await run_blocking(where)).startswith("engine")


@pytest.fixture
def threads() -> Iterator[DaemonThreads]:
    made = DaemonThreads(2, "test")
    yield made
    made.shutdown(cancel_futures=True)


def test_threads_are_reused_and_never_more_than_the_bound(threads: DaemonThreads) -> None:
    meeting, busy, most = threading.Barrier(2, timeout=30), set[str](), list[int]()

    def met() -> str:
        busy.add(where())
        meeting.wait()  # passed by two calls at once
        most.append(len(busy))
        return where()

    for _ in range(3):
        calls = [threads.submit(met) for _ in range(6)]
        assert {call.result(30) for call in calls} == {"test_0", "test_1"}
    assert max(most) == 2


def test_threads_give_results_errors_and_cancelled_calls(threads: DaemonThreads) -> None:
    release = threading.Event()
    for _ in range(2):
        threads.submit(release.wait, 30)
    doomed = threads.submit(where)
    assert doomed.cancel()
    release.set()
    assert threads.submit(divmod, 7, 2).result(30) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(30)
    assert doomed.cancelled()


def test_threads_that_are_shut_down_cancel_what_waits_and_take_no_more() -> None:
    made, release = DaemonThreads(1, "test"), threading.Event()
    running = made.submit(release.wait, 30)
    waiting = made.submit(where)
    made.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        made.submit(where)
    release.set()
    assert running.result(30)


def test_call_that_never_returns_does_not_hold_the_process() -> None:
    script = (
        "import time; from agentgym.concurrency.threads import DaemonThreads; "
        "DaemonThreads(1, 'held').submit(time.sleep, 3600); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.stdout.strip() == b"done"


async def test_run_blocking_takes_arguments_and_context_along() -> None:
    COLOUR.set("red")
    assert await run_blocking(lambda a, *, b: (a, b, COLOUR.get()), 1, b=2) == (1, 2, "red")


async def test_run_blocking_raises_what_was_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_blocking(lambda: 1 / 0)


async def colour_after_a_pause() -> str:
    await asyncio.sleep(0)
    return COLOUR.get()


async def failing() -> None:
    await asyncio.sleep(0)
    raise KeyError("x")


def test_run_coroutine_without_a_loop() -> None:
    assert run_coroutine(colour_after_a_pause()) == "none"


async def test_run_coroutine_inside_a_loop_keeps_context_and_exceptions() -> None:
    COLOUR.set("blue")
    assert run_coroutine(colour_after_a_pause()) == "blue"
    with pytest.raises(KeyError):
        run_coroutine(failing())


def test_run_now_finishes_at_once_or_says_that_it_cannot() -> None:
    async def quick() -> int:
        return 7

    assert run_now(quick()) == 7
    with pytest.raises(RuntimeError, match="waits for something"):
        run_now(colour_after_a_pause())
