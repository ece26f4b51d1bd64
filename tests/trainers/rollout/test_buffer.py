"""Groups that run ahead of learning: how many, in which order, each once, whatever ends first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentgym.concurrency.limiter import PolicyLoad
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.registry import register_env, unregister_env
from agentgym.errors import InfrastructureError
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, StopReason, Task, Trajectory
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.scoring import Rubric
from agentgym.trainers.rollout.buffer import Drawn, Pace, Rollouts

ENV_ID = "test/once-v0"


class Once(TextEnv):
    """Ends at the first step."""

    def start(self, task: Task, rng: random.Random) -> str:
        return "go"

    def respond(self, action: Action) -> Reply:
        return Reply(observation="", outcome=0.5)


class Held:
    """Answers an episode once it is let go; everything else at once."""

    id = "held"
    renderer = None
    version = 0
    max_context_tokens = None

    def __init__(self, *held: str) -> None:
        self.gates = {name: asyncio.Event() for name in held}
        self.begun: list[str] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.episode_id in self.gates:
            await self.gates[request.episode_id].wait()
        return Completion(text="say")

    async def begin_episode(self, episode_id: str) -> None:
        self.begun.append(episode_id)

    async def end_episode(self, episode_id: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Once)
    yield
    unregister_env(ENV_ID)


def spec(draw: int, *, size: int = 2) -> GroupSpec:
    return GroupSpec(
        id=f"g{draw}", task=Task(id=f"t{draw}", env_id=ENV_ID), size=size, seed=40 + draw
    )


def pace(**changes: Any) -> Pace:
    given = {"groups_per_step": 2, "steps_ahead": 0, "last_step": 100, "closes_at": None}
    return Pace(**{**given, **changes})


@asynccontextmanager
async def opened(
    policy: Any, record: Any = None, *, size: int = 2, **changes: Any
) -> AsyncIterator[Rollouts]:
    async with Engine(policy, retries=0) as engine:
        rollouts = Rollouts(
            engine,
            lambda draw: spec(draw, size=size),
            rubric=Rubric(),
            record=record if record is not None else lambda trajectory: None,
            pace=pace(**changes),
        )
        async with rollouts:
            yield rollouts


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - many things may come true
        await asyncio.sleep(0.001)


def numbers(drawn: Sequence[Drawn]) -> list[int]:
    return [one.draw for one in drawn]


async def test_restored_group_with_enough_episodes_is_closed_and_taken() -> None:
    async with opened(Held(), size=4) as rollouts:
        rollouts.fill(0)
        (whole, _) = await rollouts.take(2)
    async with opened(Held(), size=4, groups_per_step=1, closes_at=3) as rollouts:
        rollouts.restore((0,), {"g0": whole.group.trajectories[:3]})
        rollouts.fill(0)
        async with asyncio.timeout(60):  # it waited for ever
            (drawn,) = await rollouts.take(1)
    assert len(drawn.scores) == 3


async def test_synchronous_rollouts_begin_a_steps_groups_and_no_more() -> None:
    async with opened(Held()) as rollouts:
        assert rollouts.fill(0) == 2
        assert rollouts.fill(0) == 0
        assert numbers(await rollouts.take(2)) == [0, 1]
        rollouts.consume()
        assert rollouts.fill(1) == 2
        assert numbers(await rollouts.take(2)) == [2, 3]


async def test_rollouts_run_ahead_as_far_as_the_bound_allows() -> None:
    async with opened(Held(), steps_ahead=2) as rollouts:
        assert rollouts.fill(0) == 6  # (2 + 0 + 1) 2
        await rollouts.take(2)
        rollouts.consume()
        assert rollouts.outstanding == (2, 3, 4, 5)
        assert rollouts.fill(1) == 2  # (2 + 1 + 1) 2 - 2 - 4
        assert rollouts.next_draw == 8


async def test_rollouts_begin_nothing_for_steps_that_never_come_h6() -> None:
    async with opened(Held(), steps_ahead=5, last_step=3) as rollouts:
        assert rollouts.fill(0) == 6  # three steps are all there are
        for step in range(3):
            assert rollouts.fill(step) == 0
            await rollouts.take(2)
            rollouts.consume()
        assert rollouts.outstanding == ()


async def test_groups_count_wherever_they_are_h3() -> None:
    # Ended, waited for, taken and not used up: all of them are under way.
    policy = Held("g1-e0", "g2-e1")
    async with opened(policy, groups_per_step=1, steps_ahead=3) as rollouts:
        assert rollouts.fill(0) == 4
        await rollouts.take(1)
        assert rollouts.fill(0) == 0
        assert rollouts.outstanding == (0, 1, 2, 3)
        rollouts.consume()
        assert rollouts.fill(1) == 1  # (3 + 1 + 1) 1 - 1 used up - 3 under way
        for gate in policy.gates.values():
            gate.set()


async def test_groups_are_taken_in_the_order_of_their_draw() -> None:
    policy = Held("g0-e0")
    async with opened(policy, steps_ahead=1) as rollouts:
        rollouts.fill(0)
        taking = asyncio.create_task(rollouts.take(2))
        await until(lambda: rollouts.waiting == 3)  # all but the first have ended
        assert not taking.done()
        policy.gates["g0-e0"].set()
        assert numbers(await taking) == [0, 1]


async def test_replaced_groups_make_room_for_others() -> None:
    async with opened(Held()) as rollouts:
        rollouts.fill(0)
        assert numbers(await rollouts.take(2)) == [0, 1]
        assert rollouts.fill(0, replaced=1) == 1
        assert numbers(await rollouts.take(1)) == [2]
        assert rollouts.outstanding == (0, 1, 2)  # a step dropped now takes them all again
        rollouts.consume()
        assert rollouts.outstanding == ()
        assert rollouts.fill(1) == 2


async def test_no_group_is_handed_out_twice_h11() -> None:
    async with opened(Held(), steps_ahead=1) as rollouts:
        seen: list[int] = []
        for step in range(5):
            rollouts.fill(step)
            seen += numbers(await rollouts.take(2))
            rollouts.consume()
        assert seen == list(range(10))


async def test_taking_more_than_is_under_way_is_refused() -> None:
    async with opened(Held()) as rollouts:
        rollouts.fill(0)
        with pytest.raises(ValueError, match="at most the 2 groups left"):
            await rollouts.take(3)


async def test_a_group_that_is_waited_for_is_closed_at_its_smallest_size() -> None:
    policy = Held("g0-e3", "g2-e0")
    records: list[Trajectory] = []
    async with opened(policy, records.append, size=4, closes_at=3, steps_ahead=1) as rollouts:
        rollouts.fill(0)
        # Else the second group may be waited for, and closed, before its last episode ends.
        await until(lambda: Counter(t.group_id for t in records) >= Counter(g1=4, g2=3))
        first, second = await rollouts.take(2)
        ends = [trajectory.stop_reason for trajectory in first.group.trajectories]
        assert ends == [StopReason.TERMINATED] * 3 + [StopReason.CANCELLED]
        assert len(first.scores) == 3
        assert len(second.scores) == 4
        # Nobody waits for the third group: it is left to itself.
        assert sum(t.group_id == "g2" for t in records) == 3
        policy.gates["g2-e0"].set()
        assert len({t.id for t in records}) == len(records)


async def test_a_step_that_is_dropped_leaves_its_groups_to_the_next_one() -> None:
    policy = Held("g1-e0")
    async with opened(policy) as rollouts:
        rollouts.fill(0)
        taking = asyncio.create_task(rollouts.take(2))
        await asyncio.sleep(0.01)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert rollouts.outstanding == (0, 1)
        policy.gates["g1-e0"].set()
        assert numbers(await rollouts.take(2)) == [0, 1]


async def test_restored_groups_run_only_what_they_lack_i5() -> None:
    async with opened(Held(), size=3) as rollouts:
        rollouts.fill(0)
        earlier = {one.group.id: one.group.trajectories for one in await rollouts.take(2)}
    policy, records = Held(), []
    async with Engine(policy) as engine:
        rollouts = Rollouts(
            engine,
            lambda draw: spec(draw, size=3),
            rubric=Rubric(),
            record=records.append,
            pace=pace(),
            next_draw=5,
        )
        # Of draws 0 to 4 the checkpoint knows 1 and 4 to be under way: 1 had two of its three
        # episodes, 4 none. The others are used up.
        rollouts.restore((1, 4), {"g1": earlier["g1"][:2]})
        async with rollouts:
            assert rollouts.fill(0) == 0
            drawn = await rollouts.take(2)
    assert numbers(drawn) == [1, 4]
    assert [len(one.scores) for one in drawn] == [3, 3]
    assert sorted(t.id for t in records) == ["g1-e2", "g4-e0", "g4-e1", "g4-e2"]
    assert sorted(policy.begun) == ["g1-e2", "g4-e0", "g4-e1", "g4-e2"]


async def test_an_error_in_the_background_ends_the_wait_h7() -> None:
    class FullError(InfrastructureError):
        pass

    def record(trajectory: Trajectory) -> None:
        raise FullError("no space left")

    async def run() -> None:
        async with opened(Held("g0-e0"), record) as rollouts:
            rollouts.fill(0)
            await rollouts.take(2)

    with pytest.raises(FullError, match="no space left"):
        await run()


async def test_leaving_ends_what_runs_and_reports_it_h6() -> None:
    records: list[Trajectory] = []
    async with opened(Held("g0-e0", "g1-e1"), records.append) as rollouts:
        rollouts.fill(0)
        await until(lambda: len(records) == 2)
    ends = {t.id: t.stop_reason for t in records}
    assert ends == {
        "g0-e0": StopReason.CANCELLED,
        "g0-e1": StopReason.TERMINATED,
        "g1-e0": StopReason.TERMINATED,
        "g1-e1": StopReason.CANCELLED,
    }


async def test_the_bound_of_live_episodes_follows_the_policys_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Busy(Held):
        asked = 0

        async def load(self) -> PolicyLoad:
            self.asked += 1
            if self.asked == 2:
                raise InfrastructureError("no answer")
            return PolicyLoad(running=10, waiting=5)

    monkeypatch.setattr("agentgym.trainers.rollout.buffer._LOAD_INTERVAL_S", 0.001)
    policy = Busy()
    async with Engine(policy, max_concurrent=100) as engine:
        rollouts = Rollouts(
            engine,
            spec,
            rubric=Rubric(),
            record=lambda trajectory: None,
            pace=pace(is_adaptive=True),
        )
        async with rollouts:
            await until(lambda: policy.asked >= 4)
        # 0.8 * 100, then no answer, 0.8 * 80; the fourth look may not have been acted on.
        assert engine.slots.limit in {64, 51}
