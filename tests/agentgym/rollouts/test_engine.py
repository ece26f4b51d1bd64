"""Groups of episodes: records for everything that happens, in any interleaving."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.registry import register_env, unregister_env
from agentgym.errors import ConfigError, InfrastructureError
from agentgym.policies.base import GenerateRequest
from agentgym.records import (
    Completion,
    ErrorKind,
    FinishReason,
    StopReason,
    Task,
    Trajectory,
    serialization,
)
from agentgym.records.limits import Limits
from agentgym.rollouts.engine import Engine, GroupSpec

ENV_ID = "test/counting-v0"


class Counting(TextEnv):
    """Ends at the third step; the observation is the number of steps."""

    def __init__(self, *, length: int = 3, on_step: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.length = length
        self.on_step = on_step
        self.is_closed = False

    def start(self, task: Task, rng: random.Random) -> str:
        self.count = 0
        return f"start {rng.randrange(100)}"

    def respond(self, action: Action) -> Reply:
        self.count += 1
        if self.on_step is not None:
            self.on_step(self.count)
        outcome = 0.75 if self.count == self.length else None
        return Reply(observation=str(self.count), outcome=outcome, rewards={"step": self.count / 4})

    def outcome(self) -> float:
        return 0.25

    def close(self) -> None:
        super().close()
        self.is_closed = True


class Talker:
    """Answers with the turn, after a pause that differs from request to request."""

    id = "talker"
    renderer = None
    version = 0
    max_context_tokens = None

    def __init__(self, pause: Callable[[], float] = lambda: 0.0) -> None:
        self.pause = pause
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.asked = 0
        self.all_asked = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked += 1
        if self.asked == 3:
            self.all_asked.set()
        await asyncio.sleep(self.pause())
        return Completion(text=f"say {request.turn}")

    async def begin_episode(self, episode_id: str) -> None:
        self.begun.append(episode_id)

    async def end_episode(self, episode_id: str) -> None:
        self.ended.append(episode_id)

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Counting)
    yield
    unregister_env(ENV_ID)


def specs(count: int = 1, size: int = 1, **fields: Any) -> list[GroupSpec]:
    return [
        GroupSpec(
            id=f"g{i}", task=Task(id=f"t{i}", env_id=ENV_ID), size=size, seed=40 + i, **fields
        )
        for i in range(count)
    ]


def run(
    groups: list[GroupSpec], policy: Any = None, **options: Any
) -> tuple[list[list[Trajectory]], list[Trajectory]]:
    """Return the groups' records and the records in the order reported."""
    reported: list[Trajectory] = []

    async def main() -> list[list[Trajectory]]:
        async with Engine(policy or Talker(), **options) as engine:
            done = await engine.run_groups(groups, reported.append)
            assert engine.live == {}
        return [list(group.trajectories) for group in done]

    return asyncio.run(main()), reported


def test_engine_records_every_turn_and_the_last_observation_j2() -> None:
    (records,), _ = run(specs())
    episode = records[0]
    assert [turn.observation for turn in episode.turns] == ["1", "2", "3"]
    assert [turn.completion.text for turn in episode.turns] == ["say 0", "say 1", "say 2"]
    assert [dict(turn.rewards) for turn in episode.turns] == [
        {"step": 0.25},
        {"step": 0.5},
        {"step": 0.75},
    ]
    assert episode.terminated
    assert not episode.truncated
    assert episode.stop_reason is StopReason.TERMINATED
    assert episode.outcome == 0.75


def test_engine_starts_a_group_from_the_identical_state() -> None:
    groups, _ = run(specs(count=2, size=4))
    starts = [{episode.initial_observation for episode in group} for group in groups]
    assert all(len(start) == 1 for start in starts)
    assert starts[0] != starts[1]


def test_engine_gives_the_same_records_for_any_interleaving() -> None:
    def lines(rng: random.Random, max_concurrent: int) -> list[str]:
        policy = Talker(pause=lambda: rng.random() / 200)
        groups, _ = run(specs(count=3, size=3), policy, max_concurrent=max_concurrent)
        bare = [t for group in groups for t in group]
        return [serialization.dumps(without_timings(t)) for t in bare]

    first = lines(random.Random(1), 9)
    assert lines(random.Random(2), 9) == first
    assert lines(random.Random(3), 2) == first
    assert len(set(first)) == 9


def without_timings(trajectory: Trajectory) -> Trajectory:
    from dataclasses import replace

    return replace(trajectory, turns=tuple(replace(t, timings={}) for t in trajectory.turns))


def test_engine_reuses_instances_without_carrying_state_j1() -> None:
    made: list[Counting] = []

    def make(env_id: str, **kwargs: Any) -> Counting:
        made.append(Counting())
        return made[-1]

    groups, _ = run(specs(count=6), max_concurrent=2, make_env=make)
    assert len(made) <= 2
    assert {len(group[0].turns) for group in groups} == {3}
    assert all(env.is_closed for env in made)


def fails_in(episodes: set[int], error: Exception) -> Callable[..., Any]:
    """Return a maker whose n-th instance raises at its second step."""
    counter = iter(range(1000))

    def make(env_id: str, **kwargs: Any) -> Counting:
        number = next(counter)

        def on_step(count: int) -> None:
            if number in episodes and count == 2:
                raise error

        return Counting(on_step=on_step)

    return make


def test_engine_keeps_siblings_of_a_failed_episode_h9() -> None:
    make = fails_in({3}, ValueError("env fault"))
    (records,), reported = run(specs(size=8), make_env=make, retries=2)
    assert len(records) == len(reported) == 8
    failed = [t for t in records if t.failure is not None]
    assert len(failed) == 1
    assert failed[0].failure is not None
    assert failed[0].failure.kind is ErrorKind.INFRASTRUCTURE
    assert failed[0].failure.exception == "ValueError"
    assert not failed[0].failure.is_retryable
    assert failed[0].outcome is None
    assert len(failed[0].turns) == 1
    assert [t.outcome for t in records if t.failure is None] == [0.75] * 7


def test_engine_tries_infrastructure_failures_again_and_records_each_try() -> None:
    make = fails_in({0}, InfrastructureError("the box is gone"))
    (records,), _ = run(specs(), make_env=make, retries=2)
    assert [(t.id, t.attempt, t.failure is None) for t in records] == [
        ("g0-e0", 0, False),
        ("g0-e0-a1", 1, True),
    ]


def test_engine_bounds_the_tries_h8() -> None:
    make = fails_in(set(range(100)), InfrastructureError("always"))
    (records,), _ = run(specs(), make_env=make, retries=3)
    assert len(records) == 4
    assert all(t.failure is not None and t.failure.is_retryable for t in records)


def test_engine_records_an_environment_that_cannot_be_made() -> None:
    def make(env_id: str, **kwargs: Any) -> Counting:
        raise OSError("no display")

    (records,), _ = run(specs(size=2), make_env=make)
    assert [t.failure.message for t in records if t.failure is not None] == [
        f"{ENV_ID} could not be made: OSError: no display"
    ] * 2
    assert all(t.turns == () for t in records)


def test_engine_survives_an_instance_that_fails_to_close() -> None:
    class Stuck(Counting):
        def close(self) -> None:
            raise RuntimeError("the driver does not answer")

    (records,), _ = run(specs(), make_env=lambda env_id, **kwargs: Stuck())
    assert records[0].outcome == 0.75


@pytest.mark.parametrize(
    ("limits", "stop", "turns"),
    [
        (Limits(max_turns=2), StopReason.MAX_TURNS, 2),
        (Limits(max_turns=3), StopReason.TERMINATED, 3),  # solved at the limit: terminated, J7
    ],
)
def test_engine_ends_an_episode_at_its_limit_j7(
    limits: Limits, stop: StopReason, turns: int
) -> None:
    (records,), _ = run(specs(limits=limits))
    episode = records[0]
    assert (episode.stop_reason, len(episode.turns)) == (stop, turns)
    assert episode.truncated == (stop is StopReason.MAX_TURNS)
    assert episode.terminated == (stop is StopReason.TERMINATED)
    # The environment says how far a cut-off episode got (M10).
    assert episode.outcome == (0.25 if episode.truncated else 0.75)


def test_engine_types_a_step_that_does_not_return() -> None:
    release = threading.Event()

    def make(env_id: str, **kwargs: Any) -> Counting:
        def on_step(count: int) -> None:
            release.wait(30)

        return Counting(on_step=on_step)

    threading.Timer(0.5, release.set).start()
    limits = Limits(step_timeout_s=0.05)
    (records,), _ = run(specs(limits=limits), make_env=make, retries=0)
    failure = records[0].failure
    assert failure is not None
    assert (failure.kind, failure.where) == (ErrorKind.TIMEOUT, "env")
    assert failure.message == "the env did not answer in time after 0.05 s"


def test_engine_types_a_policy_that_does_not_answer() -> None:
    policy = Talker(pause=lambda: 30.0)
    limits = Limits(generate_timeout_s=0.05)
    (records,), _ = run(specs(limits=limits), policy, retries=0)
    failure = records[0].failure
    assert failure is not None
    assert (failure.kind, failure.where) == (ErrorKind.TIMEOUT, "policy")


def test_engine_reports_every_started_episode_when_cancelled() -> None:
    reported: list[Trajectory] = []

    async def main() -> None:
        policy = Talker(pause=lambda: 30.0)
        async with Engine(policy, max_concurrent=3) as engine:
            work = asyncio.create_task(engine.run_groups(specs(count=5), reported.append))
            await policy.all_asked.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        assert len(policy.begun) == 3
        assert sorted(policy.ended) == sorted(policy.begun)

    asyncio.run(main())
    assert [t.stop_reason for t in reported] == [StopReason.CANCELLED] * 3
    assert all(t.outcome is None and not t.truncated for t in reported)


def test_engine_refuses_two_groups_with_one_id() -> None:
    with pytest.raises(ConfigError, match="unique"):
        run(specs() + specs())


def test_engine_executes_nothing_of_a_cut_off_turn_c4() -> None:
    class CutOff(Talker):
        async def generate(self, request: GenerateRequest) -> Completion:
            reason = FinishReason.LENGTH if request.turn == 0 else FinishReason.STOP
            return Completion(text="say", finish_reason=reason)

    (records,), _ = run(specs(), CutOff())
    turns = records[0].turns
    assert turns[0].error_kind is ErrorKind.TRUNCATED
    assert "cut off" in turns[0].observation
    assert [turn.observation for turn in turns[1:]] == ["1", "2", "3"]


def test_engine_runs_blocking_steps_of_different_episodes_together() -> None:
    inside, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(4)

    def on_step(count: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        together.wait(timeout=30)  # passes only if four steps are under way at once
        with lock:
            inside -= 1

    make = lambda env_id, **kwargs: Counting(on_step=on_step)  # noqa: E731
    groups, _ = run(specs(count=4), make_env=make, max_concurrent=4)
    assert most == 4
    assert all(group[0].outcome == 0.75 for group in groups)


def test_engine_keeps_a_thread_affine_environment_in_one_thread_k5() -> None:
    class Affine(Counting):
        thread_affine = True

        def __init__(self) -> None:
            super().__init__()
            self.threads = {threading.get_ident()}
            made.append(self)

        def respond(self, action: Action) -> Reply:
            self.threads.add(threading.get_ident())
            return super().respond(action)

        def close(self) -> None:
            self.threads.add(threading.get_ident())
            super().close()

    made: list[Affine] = []
    register_env("test/affine-v0")(Affine)
    try:
        groups = [
            GroupSpec(id=f"g{i}", task=Task(id=f"t{i}", env_id="test/affine-v0"), size=1, seed=i)
            for i in range(5)
        ]
        run(groups, max_concurrent=2)
    finally:
        unregister_env("test/affine-v0")
    assert made
    assert all(len(env.threads) == 1 for env in made)


def test_engine_never_has_more_instances_than_a_scarce_environment_allows() -> None:
    register_env("test/scarce-v0", max_instances=2)(Counting)
    live, most, lock = 0, 0, threading.Lock()

    def make(env_id: str, **kwargs: Any) -> Counting:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        return Counting(on_step=lambda count: time.sleep(0.001))

    try:
        groups = [
            GroupSpec(id=f"g{i}", task=Task(id=f"t{i}", env_id="test/scarce-v0"), size=1, seed=i)
            for i in range(8)
        ]
        done, _ = run(groups, max_concurrent=8, make_env=make)
    finally:
        unregister_env("test/scarce-v0")
    assert most <= 2
    assert len(done) == 8


class Gated(Talker):
    """Answers once its gate is open; `held` names the episodes that it holds back."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.held = set(held)
        self.gate = asyncio.Event()
        self.is_waiting = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.episode_id in self.held and request.turn == 1:
            self.is_waiting.set()
            await self.gate.wait()
        return Completion(text="say")


async def test_engine_closes_a_group_and_records_the_rest_as_cancelled() -> None:
    policy = Gated("g0-e1")
    reported: list[Trajectory] = []
    async with Engine(policy) as engine:
        work = asyncio.create_task(engine.run_groups(specs(count=2, size=3), reported.append))
        await policy.is_waiting.wait()
        while len(reported) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        engine.close_group("g0")
        groups = await work
    ends = [[(t.id, str(t.stop_reason)) for t in group.trajectories] for group in groups]
    assert ends[0] == [
        ("g0-e0", "terminated"),
        ("g0-e1", "cancelled"),
        ("g0-e2", "terminated"),
    ]
    assert [end for _, end in ends[1]] == ["terminated"] * 3
    assert len(reported) == 6
    assert sorted(policy.ended) == sorted(policy.begun)


async def test_group_that_is_closed_before_its_episodes_begin_ends_all_the_same() -> None:
    async with Engine(Talker()) as engine:
        (whole,) = await engine.run_groups(specs(size=3))
        told: list[str] = []
        known = {"g0": whole.trajectories[:2]}
        work = asyncio.create_task(
            engine.run_groups(specs(size=3), on_group=lambda g: told.append(g.id), known=known)
        )
        await asyncio.sleep(0)  # its tasks are made, and have not taken a step
        engine.close_group("g0")
        (group,) = await work
        engine.close_group("g0")  # it has ended: nothing is left to close
    assert told == ["g0"]
    assert [t.id for t in group.trajectories] == ["g0-e0", "g0-e1"]


async def test_closing_a_group_ends_those_that_wait_for_a_slot() -> None:
    release = threading.Event()
    is_in_step = threading.Event()

    def on_step(count: int) -> None:
        is_in_step.set()
        release.wait(30)

    def make(env_id: str, **kwargs: Any) -> Counting:
        return Counting(on_step=on_step)

    async with Engine(Talker(), max_concurrent=2, make_env=make) as engine:
        work = asyncio.create_task(engine.run_groups(specs(size=6)))
        await asyncio.to_thread(is_in_step.wait, 30)
        engine.close_group("g0")  # a step that is given up frees its slot in the same moment
        (group,) = await work
        release.set()
    assert [t.stop_reason for t in group.trajectories] == [StopReason.CANCELLED] * 2


class Misbehaving(Counting):
    """Says of itself what no record may hold."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def step(self, action: str) -> Any:
        if self.kind == "observation":
            return None, 0.0, False, False, {}
        if self.kind == "outcome":
            return "", 0.0, True, False, {"outcome": 1.5}
        if self.kind == "no outcome":
            return "", 0.0, True, False, {"outcome": None}
        return "", float("nan"), False, False, {}


@pytest.mark.parametrize("kind", ["observation", "outcome", "no outcome", "reward"])
def test_engine_types_what_no_record_may_hold_and_keeps_the_siblings_h9(kind: str) -> None:
    made: list[Any] = []

    def make(env_id: str, **kwargs: Any) -> Counting:
        made.append(Misbehaving(kind) if not made else Counting())
        return made[-1]

    (records,), reported = run(specs(size=3), make_env=make, retries=2)
    failures = [t.failure for t in records if t.failure is not None]
    assert [(f.kind, f.where, f.is_retryable) for f in failures] == [
        (ErrorKind.INFRASTRUCTURE, "env", False)
    ]
    assert [t.outcome for t in records if t.failure is None] == [0.75] * 2
    assert [serialization.loads(serialization.dumps(t)) for t in reported] == reported


async def test_engine_starts_a_live_episode_anew_h4() -> None:
    policy = Gated("g0-e0")
    reported: list[Trajectory] = []
    async with Engine(policy, retries=0) as engine:
        work = asyncio.create_task(engine.run_groups(specs(), reported.append))
        await policy.is_waiting.wait()
        assert engine.restart_live() == 1
        (group,) = await work
    assert [(t.id, str(t.stop_reason), len(t.turns)) for t in group.trajectories] == [
        ("g0-e0", "cancelled", 1),
        ("g0-e0-a1", "terminated", 3),
    ]
    assert reported == list(group.trajectories)


async def test_engine_runs_only_what_an_earlier_process_has_not_recorded() -> None:
    async with Engine(Talker()) as engine:
        (whole,) = await engine.run_groups(specs(size=3))
        done: list[Trajectory] = []
        known = {"g0": (whole.trajectories[1],)}
        (group,) = await engine.run_groups(specs(size=3), done.append, known=known)
        assert sorted(t.id for t in done) == ["g0-e0", "g0-e2"]
        assert [t.id for t in group.trajectories] == ["g0-e0", "g0-e1", "g0-e2"]
        told: list[str] = []
        known = {"g0": whole.trajectories}
        await engine.run_groups(specs(size=3), on_group=lambda g: told.append(g.id), known=known)
        assert told == ["g0"]


async def test_engine_tells_of_each_group_when_it_ends() -> None:
    policy = Gated("g0-e0")
    told: list[str] = []
    async with Engine(policy) as engine:
        work = asyncio.create_task(
            engine.run_groups(specs(count=3), on_group=lambda group: told.append(group.id))
        )
        while len(told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert sorted(told) == ["g1", "g2"]
        policy.gate.set()
        await work
    assert told[2] == "g0"


async def test_engine_shares_one_bound_between_calls() -> None:
    policy = Talker(pause=lambda: 0.002)
    most = 0
    async with Engine(policy, max_concurrent=2) as engine:

        def look(trajectory: Trajectory) -> None:
            nonlocal most
            most = max(most, len(engine.live))

        first, second = specs(count=4)[:2], specs(count=4)[2:]
        await asyncio.gather(engine.run_groups(first, look), engine.run_groups(second, look))
    assert most <= 2


async def test_engine_raises_the_error_of_who_takes_records_as_it_is() -> None:
    class FullError(InfrastructureError):
        pass

    def fail(trajectory: Trajectory) -> None:
        raise FullError("no space left")

    async with Engine(Talker()) as engine:
        with pytest.raises(FullError, match="no space left"):
            await engine.run_groups(specs(count=3), fail)


# ------------------------------------------------------------------ whose time it was: F8
# The class: a limit enforced at the wrong layer, our failure scored.


class Hanging(Talker):
    """Answers at once until its second turn, then hangs."""

    def __init__(self, hang: Callable[[], Any]) -> None:
        super().__init__()
        self.hang = hang

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.turn == 1:
            await self.hang()
        return await super().generate(request)


async def _sleep() -> None:
    await asyncio.sleep(30)


async def _hold_the_loop() -> None:
    time.sleep(0.2)  # noqa: ASYNC251 - as a policy does that is not written for a loop


async def _ignore_its_end() -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return


@pytest.mark.parametrize("hang", [_sleep, _hold_the_loop, _ignore_its_end])
def test_f8_a_policy_that_hangs_under_max_seconds_is_not_scored(hang: Callable[[], Any]) -> None:
    limits = Limits(max_seconds=0.1)
    (records,), _ = run(specs(limits=limits), Hanging(hang), retries=0)
    failure = records[0].failure
    assert failure is not None
    assert (failure.kind, failure.where) == (ErrorKind.TIMEOUT, "policy")
    assert failure.message == (
        "the policy did not answer in time: the 0.1 s of its episode were over"
    )
    assert (records[0].outcome, records[0].truncated) == (None, False)
    assert len(records[0].turns) == 1


def test_f8_a_step_that_hangs_under_max_seconds_is_cut_and_its_late_result_does_not_count() -> None:
    solved = threading.Event()

    class Slow(Counting):
        def respond(self, action: Action) -> Reply:
            if self.count == 1:
                time.sleep(0.5)
                solved.set()
                return Reply(observation="solved", outcome=1.0)
            return super().respond(action)

    (records,), _ = run(
        specs(limits=Limits(max_seconds=0.1)),
        make_env=lambda env_id, **kwargs: Slow(),
        retries=0,
    )
    assert solved.wait(30)
    failure = records[0].failure
    assert failure is not None
    assert (failure.kind, failure.where) == (ErrorKind.TIMEOUT, "env")
    assert records[0].outcome is None


def test_f8_a_step_that_held_the_loop_past_its_time_does_not_count() -> None:
    class Own(Counting):
        async def astep(self, action: str) -> Any:
            if self.count == 2:
                time.sleep(0.2)  # noqa: ASYNC251 - a tool that is not written for a loop
            return self.step(action)

    (records,), _ = run(
        specs(limits=Limits(max_seconds=0.1)),
        make_env=lambda env_id, **kwargs: Own(),
        retries=0,
    )
    assert records[0].failure is not None
    assert records[0].failure.where == "env"
    assert records[0].outcome is None


def test_f8_a_reset_that_hangs_is_bounded_by_max_seconds() -> None:
    release = threading.Event()

    class Stuck(Counting):
        def start(self, task: Task, rng: random.Random) -> str:
            release.wait(30)
            return "late"

    threading.Timer(0.5, release.set).start()
    (records,), _ = run(
        specs(limits=Limits(max_seconds=0.05)),
        make_env=lambda env_id, **kwargs: Stuck(),
        retries=0,
    )
    assert records[0].failure is not None
    assert records[0].failure.kind is ErrorKind.TIMEOUT


def test_f8_siblings_of_a_hanging_call_keep_their_scores() -> None:
    class Once(Talker):
        async def generate(self, request: GenerateRequest) -> Completion:
            if request.turn == 1 and request.episode_id == self.begun[0]:
                await asyncio.sleep(30)
            return await super().generate(request)

    (records,), _ = run(specs(size=3, limits=Limits(max_seconds=1.0)), Once(), retries=0)
    assert sorted(str(t.outcome) for t in records) == ["0.75", "0.75", "None"]
