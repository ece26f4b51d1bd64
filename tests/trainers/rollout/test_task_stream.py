"""The stream of training tasks: a pure function of seed and number."""

from __future__ import annotations

from collections import Counter

import pytest

from agentgym.config import EnvSource
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.suites import LeakError
from agentgym.errors import TaskError
from agentgym.records import Task
from agentgym.trainers.rollout.task_stream import TaskStream, WeightedSuite, open_sources


def suite(name: str, size: int) -> Suite:
    tasks = tuple(
        Task(id=f"{name}-{i}", env_id="test/env-v0", prompt=f"{name} {i}") for i in range(size)
    )
    return Suite(name=name, env_id="test/env-v0", splits={"train": tasks})


def stream(*sizes: int, seed: int = 3, weights: tuple[float, ...] = ()) -> TaskStream:
    shares = weights or (1.0,) * len(sizes)
    sources = [
        WeightedSuite(suite=suite(f"s{i}", size), split="train", weight=share)
        for i, (size, share) in enumerate(zip(sizes, shares, strict=True))
    ]
    return TaskStream(sources, seed=seed)


def test_stream_gives_each_task_once_in_a_pass_i3() -> None:
    drawn = [stream(5).draw(index).id for index in range(10)]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == [f"s0-{i}" for i in range(5)]
    assert drawn[:5] != drawn[5:]


def test_stream_goes_on_where_a_resumed_run_left_it_i2() -> None:
    whole = [stream(7).draw(index).id for index in range(20)]
    resumed = stream(7)
    assert [resumed.draw(index).id for index in range(10, 20)] == whole[10:]


def test_stream_does_not_depend_on_the_order_of_draws_i5() -> None:
    first, second = stream(6, 9), stream(6, 9)
    forward = [first.draw(index).id for index in range(30)]
    backward = [second.draw(index).id for index in reversed(range(30))]
    assert forward == backward[::-1]


def test_stream_differs_between_seeds() -> None:
    assert [stream(50, seed=1).draw(i).id for i in range(10)] != [
        stream(50, seed=2).draw(i).id for i in range(10)
    ]


def test_stream_draws_by_weight() -> None:
    weighted = stream(40, 40, weights=(1.0, 3.0))
    count = Counter(weighted.draw(index).id[:2] for index in range(2000))
    # 3 of 4 expected: 1500, four standard deviations are 4 sqrt(2000 * 3/16) = 77.
    assert abs(count["s1"] - 1500) < 77


def test_stream_takes_an_unbounded_split_in_order() -> None:
    endless = Suite(
        name="endless",
        env_id="test/env-v0",
        splits={"train": GeneratedSplit(generate=lambda i: Task(id=f"t{i}", env_id="test/env-v0"))},
    )
    source = WeightedSuite(suite=endless, split="train", weight=1.0)
    assert [TaskStream([source], seed=0).draw(i).id for i in (0, 5)] == ["t0", "t5"]


def test_stream_never_draws_a_held_out_task_m6() -> None:
    source = WeightedSuite(suite=suite("s", 4), split="train", weight=1.0)
    leak = source.suite.task("train", 2).content_hash
    guarded = TaskStream([source], seed=0, held_out={leak})
    with pytest.raises(LeakError, match="'s-2' is a held-out task"):
        [guarded.draw(index) for index in range(4)]


def test_open_sources_names_what_is_unknown() -> None:
    with pytest.raises(TaskError, match="unknown suite or environment 'math/arithmetc'"):
        open_sources([EnvSource(name="math/arithmetc")])
