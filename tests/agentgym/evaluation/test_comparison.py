"""Which evaluation is better, task by task."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agentgym.errors import ConfigError
from agentgym.evaluation import EvaluationResult, combine, compare
from agentgym.evaluation.comparison import unlike
from agentgym.evaluation.result import Attempt
from agentgym.evaluation.summary import summarise
from agentgym.records import Sampling, Task


def result(means: dict[str, float]) -> EvaluationResult:
    attempts = [
        Attempt(task=task, index=0, trajectory_id=task, outcome=mean, is_success=mean == 1)
        for task, mean in means.items()
    ]
    return summarise(
        attempts,
        [],
        name="e",
        policy_id="p",
        suites=["s"],
        split="held_out",
        attempts_per_task=1,
        sampling=Sampling(),
        seed=0,
        scorer_id="s",
    )


def test_evaluations_of_the_same_tasks_are_compared_in_pairs() -> None:
    first = result({f"t{i}": 0.0 for i in range(30)})
    second = result({f"t{i}": float(i % 2) for i in range(30)})
    found = compare([first], [second])
    assert found is not None
    assert found.is_paired
    assert found.is_above_zero
    # Differences 0, 1, 0, 1, ...: mean 0.5, SE = sqrt(7.5 / 29 / 30) = 0.09285, t(29) = 2.0452
    assert found.interval.mean == 0.5
    assert found.interval.low == pytest.approx(0.5 - 0.18990, abs=1e-3)
    worse = compare([second], [first])
    assert worse is not None
    assert not worse.is_above_zero


def test_evaluations_of_different_tasks_are_compared_as_samples() -> None:
    first = result({f"a{i}": 0.0 for i in range(9)})
    second = result({f"b{i}": 1.0 for i in range(9)})
    found = compare([first], [second])
    assert found is not None
    assert not found.is_paired
    assert found.interval.mean == 1.0


def test_few_common_tasks_are_no_pairs() -> None:
    common = {"c": 1.0}
    first = result({**common, **{f"a{i}": 0.0 for i in range(8)}})
    second = result({**common, **{f"b{i}": 1.0 for i in range(8)}})
    found = compare([first], [second])
    assert found is not None
    assert not found.is_paired


def test_several_evaluations_of_a_side_are_averaged_by_task_first() -> None:
    # Task a: 1 and 0, task b: 1 and 1: means 0.5 and 1. Two tasks, not four values.
    interval = combine([result({"a": 1.0, "b": 1.0}), result({"a": 0.0, "b": 1.0})])
    assert (interval.mean, interval.count) == (0.75, 2)
    with pytest.raises(ConfigError, match="got none"):
        combine([])


def evaluated(
    *, suite: str = "a/b", env_id: str = "a/b-v0", split: str = "held_out", **changes: Any
) -> EvaluationResult:
    prompt = changes.pop("prompt", "p")
    tasks = [
        Task(id=f"t{number}", env_id=env_id, suite=suite, env_kwargs=changes) for number in range(9)
    ]
    attempts = [
        Attempt(
            task=f"{suite}/{task.id}",
            index=0,
            trajectory_id=task.id,
            outcome=1.0,
            is_success=True,
            prompt_hash=prompt,
        )
        for task in tasks
    ]
    about: dict[str, Any] = {"name": "e", "policy_id": "p", "seed": 0, "scorer_id": "s"}
    return summarise(
        attempts,
        tasks,
        suites=[suite],
        split=split,
        attempts_per_task=1,
        sampling=Sampling(),
        **about,
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"plain": True}, "a/b has no arguments in one, and plain=True in the other"),
        ({"suite": "c/d"}, "one is on a/b, the other on c/d"),
        ({"env_id": "a/b-v1"}, "a/b is of a/b-v0 in one, and of a/b-v1 in the other"),
        ({"split": "train"}, "one is on the split held_out, the other on train"),
        ({"prompt": "q"}, "the task a/b/t0 has another system prompt in each of them"),
        ({"prompt": ""}, None),  # it never started: nothing is known of its prompt
        ({}, None),
    ],
)
def test_c2_unlike_evaluations_are_told_from_like_ones(
    other: dict[str, Any], reason: str | None
) -> None:
    assert unlike(evaluated(), evaluated(**other)) == reason


def test_c2_a_file_that_does_not_record_its_arguments_is_compared_with_its_like() -> None:
    old = dataclasses.replace(evaluated(), posed={})
    assert unlike(old, old) is None
    assert "evaluate it again" in str(unlike(evaluated(), old))
