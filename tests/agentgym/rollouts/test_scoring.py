"""Scores: one rubric for training and evaluation."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.errors import ConfigError
from agentgym.records import Completion, ErrorKind, Failure, StopReason, Trajectory, Turn
from agentgym.rollouts.scoring import Criterion, Rubric, score_all


def episode(outcome: float | None = 0.5, name: str = "t", **fields: object) -> Trajectory:
    turns = (
        Turn(index=0, completion=Completion(text="a"), rewards={"call": 0.25}),
        Turn(index=1, completion=Completion(text="b"), rewards={"call": 0.0, "answer": 1.0}),
    )
    values: dict[str, object] = {
        "id": name,
        "group_id": "g",
        "task_id": "task",
        "env_id": "test/env-v0",
        "turns": turns,
        "terminated": True,
        "outcome": outcome,
        **fields,
    }
    return Trajectory(**values)  # type: ignore[arg-type]


def score(rubric: Rubric, trajectory: Trajectory):
    return asyncio.run(rubric.score(trajectory))


def test_rubric_takes_the_environments_outcome_and_names() -> None:
    got = score(Rubric(), episode(0.5))
    assert got.outcome == 0.5
    assert not got.is_success
    # A zero that counts differs from no reward.
    assert got.turn_rewards == {"call": (0.25, 0.0), "answer": (None, 1.0)}


@pytest.mark.parametrize(("outcome", "is_success"), [(1.0, True), (0.1, False), (0.999, False)])
def test_rubric_calls_only_a_full_outcome_a_success_k1(outcome: float, is_success: bool) -> None:
    assert score(Rubric(), episode(outcome)).is_success is is_success


def test_rubric_weighs_its_criteria_sync_and_async() -> None:
    async def judge(trajectory: Trajectory) -> float:
        return 0.5

    rubric = Rubric(
        id="mixed-v2",
        criteria=(
            Criterion(name="outcome", weight=0.75, function=lambda t: t.outcome or 0.0),
            Criterion(name="judge", weight=0.25, function=judge),
        ),
        success_threshold=0.8,
    )
    got = score(rubric, episode(1.0))
    assert got.outcome == pytest.approx(0.75 * 1.0 + 0.25 * 0.5)
    assert got.is_success
    assert got.scorer_id == "mixed-v2"


def test_rubric_asks_a_judge_once() -> None:
    asked: list[str] = []

    def judge(trajectory: Trajectory) -> float:
        asked.append(trajectory.id)
        return 1.0

    rubric = Rubric(criteria=(Criterion(name="judge", weight=1.0, function=judge),))
    score(rubric, episode())
    score(rubric, episode())
    assert asked == ["t"]


def test_rubric_refuses_weights_that_do_not_add_up() -> None:
    with pytest.raises(ConfigError, match="add up to 1"):
        Rubric(criteria=(Criterion(name="a", weight=0.7, function=lambda t: 1.0),))


def test_rubric_refuses_a_value_out_of_range() -> None:
    rubric = Rubric(criteria=(Criterion(name="a", weight=1.0, function=lambda t: 1.5),))
    with pytest.raises(ConfigError, match=r"in \[0, 1\] \(got 1.5\)"):
        score(rubric, episode())


def test_score_all_leaves_failures_without_a_score_f4() -> None:
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
    failed = episode(
        None, "failed", terminated=False, failure=failure, stop_reason=StopReason.FAILURE
    )
    cancelled = episode(None, "gone", terminated=False, stop_reason=StopReason.CANCELLED)
    scores = asyncio.run(score_all([episode(1.0), failed, cancelled], Rubric()))
    assert [s.trajectory_id for s in scores] == ["t"]
