"""Ctrl-C ends a run after the step in flight. Class: *a request that is put off for ever*."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

pytest.importorskip("torch")

from agentgym.trainers.learner.thread import uninterrupted
from agentgym.trainers.loop import train

STEPS = 1_000


class Open:
    """A context that does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class StubSession(Open):
    """A run of steps whose episodes are always there."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(steps=STEPS)
        self.state = SimpleNamespace(next_step=0)
        self.reached: Any = self.state
        self.rollouts = Open()

    def is_finished(self, state: Any) -> bool:
        return state.next_step >= STEPS


async def test_a2_cancellation_during_a_step_ends_the_run_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = StubSession()
    saved: list[int] = []

    async def as_given(_: Any, state: Any) -> Any:
        return state

    async def whole_step(session: Any, state: Any) -> Any:
        async def learn() -> Any:
            await asyncio.sleep(0)
            session.reached = SimpleNamespace(next_step=state.next_step + 1)
            if session.reached.next_step == 3:
                running.cancel()
                await asyncio.sleep(0)
            return session.reached

        return await uninterrupted(learn())

    monkeypatch.setattr(train, "start_run", as_given)
    monkeypatch.setattr(train, "look_back", as_given)
    monkeypatch.setattr(train, "finish_run", as_given)
    monkeypatch.setattr(train, "take_step", whole_step)
    monkeypatch.setattr(train, "save_what_is_whole", lambda _, state: saved.append(state.next_step))
    running = asyncio.create_task(train.run_loop(session))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert saved == [3]
