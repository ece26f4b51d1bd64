"""Blocking calls: which threads, which context, and coroutines from synchronous code."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.blocking import run_blocking, run_coroutine, run_now, use_executor

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
