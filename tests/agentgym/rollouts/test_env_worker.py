"""Instances behind awaitable calls: closed once, and never under a call that still runs."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.tool_env import ToolEnv
from agentgym.records import Task
from agentgym.rollouts.env_worker import EnvDriver
from agentgym.tool_formats.tools import tool

TASK = Task(id="t", env_id="test/held-v0")


class Events:
    """What has happened to an instance."""

    def __init__(self) -> None:
        self.is_in_call = threading.Event()
        self.release = threading.Event()
        self.closed = threading.Event()
        self.was_in_call: list[bool] = []
        self.threads: set[str] = set()

    def hold(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.is_in_call.set()
        self.release.wait(30)
        self.is_in_call.clear()

    def close(self) -> None:
        self.was_in_call.append(self.is_in_call.is_set())
        self.closed.set()


class Text(TextEnv):
    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events

    def start(self, task: Task, rng: random.Random) -> str:
        return "go"

    def respond(self, action: Action) -> Reply:
        self.events.hold()
        return Reply(observation="")

    def close(self) -> None:
        self.events.close()


class Tools(ToolEnv):
    """Has an awaited tool, so its steps are awaited, and a blocking one beside it."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events

    def start(self, task: Task, rng: random.Random) -> str:
        return "go"

    @tool
    def nap(self) -> str:
        """Sleep."""
        self.events.hold()
        return "ok"

    @tool
    async def wait(self) -> str:
        """Wait."""
        self.events.is_in_call.set()
        await asyncio.sleep(30)
        return "ok"

    def grade(self, answer: str) -> float:
        return 1.0

    def close(self) -> None:
        self.events.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4, thread_name_prefix="engine") as executor:
        yield executor


@pytest.mark.parametrize("kind", [Text, Tools])
@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_instance_is_closed_once_when_the_call_that_was_given_up_returns(
    pool: ThreadPoolExecutor, kind: type[Text | Tools], end: str
) -> None:
    events = Events()
    driver = EnvDriver(kind(events), pool)
    await driver.reset(TASK, 0, 30)
    bound = 0.05 if end == "timeout" else None
    step = asyncio.create_task(driver.step(Action("<nap></nap>"), bound))
    await asyncio.to_thread(events.is_in_call.wait, 30)
    if end == "cancel":
        step.cancel()
    with pytest.raises(TimeoutError if end == "timeout" else asyncio.CancelledError):
        await step
    assert driver.is_abandoned
    await driver.aclose()
    assert not events.closed.is_set()
    events.release.set()
    assert await asyncio.to_thread(events.closed.wait, 30)
    assert events.was_in_call == [False]


async def test_instance_whose_awaited_tool_was_given_up_is_closed_at_once(
    pool: ThreadPoolExecutor,
) -> None:
    events = Events()
    driver = EnvDriver(Tools(events), pool)
    await driver.reset(TASK, 0, 30)
    with pytest.raises(TimeoutError):
        await driver.step(Action("<wait></wait>"), 0.05)
    await driver.aclose()
    assert events.closed.is_set()
    assert len(events.was_in_call) == 1


async def test_instance_that_is_made_too_late_is_closed(pool: ThreadPoolExecutor) -> None:
    events = Events()

    def make() -> Text:
        events.hold()
        return Text(events)

    making = asyncio.create_task(EnvDriver.create(make, pool, thread_affine=False))
    await asyncio.to_thread(events.is_in_call.wait, 30)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    events.release.set()
    assert await asyncio.to_thread(events.closed.wait, 30)


async def test_blocking_tool_runs_in_the_thread_that_made_the_instance_k5(
    pool: ThreadPoolExecutor,
) -> None:
    events = Events()
    events.release.set()
    driver = await EnvDriver.create(lambda: Tools(events), pool, thread_affine=True)
    await driver.reset(TASK, 0, 30)
    await driver.step(Action("<nap></nap>"), 30)
    await driver.aclose()
    assert {name.partition("_")[0] for name in events.threads} == {"agentgym-env"}
