"""What lets learning and generation overlap, and what must not be cut in the middle."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from agentgym.trainers.learner.thread import LearnerThread, uninterrupted


async def test_computing_leaves_the_event_loop_free() -> None:
    thread, release = LearnerThread(torch.device("cpu")), threading.Event()

    def compute() -> str:
        assert release.wait(30)  # passes only if the loop goes on meanwhile
        return threading.current_thread().name

    async def let_go() -> None:
        release.set()

    name, _ = await asyncio.gather(thread.call(compute), let_go())
    assert name.startswith("learner")
    assert await thread.call(lambda: threading.current_thread().name) == name
    thread.close()


async def test_computing_raises_what_it_raises() -> None:
    thread = LearnerThread(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0)
    thread.close()
    thread.close()


async def test_a_cancellation_waits_for_what_must_be_whole() -> None:
    steps: list[str] = []
    begun, release = asyncio.Event(), asyncio.Event()

    async def update() -> int:
        begun.set()
        await release.wait()
        steps.append("updated")
        return 7

    async def loop() -> None:
        steps.append(f"state {await uninterrupted(update())}")
        await asyncio.sleep(0)  # the first wait after it
        steps.append("never")

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["updated", "state 7"]


async def test_an_error_of_what_must_be_whole_is_raised() -> None:
    async def update() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await uninterrupted(update())


async def test_an_error_stands_for_the_cancellation_that_came_meanwhile() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def update() -> None:
        begun.set()
        await release.wait()
        raise OSError("no")

    async def loop() -> str:
        try:
            await uninterrupted(update())
        except OSError:
            await asyncio.sleep(0)  # what cleans up is not cut in its turn
            return "cleaned"
        return "never"

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    assert await task == "cleaned"
