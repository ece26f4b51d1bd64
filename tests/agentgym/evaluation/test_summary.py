"""From attempts to a headline: what is counted, what is shown beside it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from agentgym.errors import RecordError
from agentgym.evaluation.result import Attempt, EvaluationResult
from agentgym.evaluation.summary import attempts_of, pass_at, summarise, without_failures
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    FinishReason,
    Group,
    Sampling,
    Score,
    StopReason,
    Task,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)


def attempt(task: str, outcome: float | None, **fields: Any) -> Attempt:
    failure = "infrastructure" if outcome is None else None
    values = {"failure": failure, "index": 0, "trajectory_id": f"{task}-x", **fields}
    return Attempt(task=task, outcome=outcome, is_success=outcome == 1.0, **values)


def summary(attempts: list[Attempt], tasks: list[Task] | None = None, k: int = 1) -> Any:
    return summarise(
        attempts,
        tasks or [],
        name="e",
        policy_id="p",
        suites=["s"],
        split="held_out",
        attempts_per_task=k,
        sampling=Sampling(temperature=0.7, max_new_tokens=9),
        seed=3,
        scorer_id="outcome-v1",
    )


def test_errored_attempts_stay_in_the_denominator_m3() -> None:
    # 100 attempts, 10 errors, 80 right, 10 wrong: 0.80, and 80/90 only where it is labelled.
    outcomes = [1.0] * 80 + [0.0] * 10 + [None] * 10
    result = summary([attempt(f"t{i}", value) for i, value in enumerate(outcomes)])
    assert result.outcome.mean == pytest.approx(0.80)
    assert result.success.mean == pytest.approx(0.80)
    assert result.counts["failed"] == 10
    assert result.outcome_without_failures.mean == pytest.approx(80 / 90)
    assert result.outcome_without_failures.count == 90


def test_crashes_and_wrong_answers_are_both_shown_m4() -> None:
    # 20 attempts: 5 crashed, 1 timed out, 5 wrong, 9 right.
    attempts = [attempt(f"t{i}", 1.0) for i in range(9)]
    attempts += [attempt(f"w{i}", 0.0) for i in range(5)]
    attempts += [attempt(f"c{i}", None) for i in range(5)]
    attempts += [attempt("late", None, failure="timeout")]
    result = summary(attempts)
    counts = result.counts
    assert (counts["attempts"], counts["solved"], counts["failed"]) == (20, 9, 6)
    assert (counts["failed:infrastructure"], counts["failed:timeout"]) == (5, 1)
    rules = result.to_dict()["rules"]["failures"]
    assert rules["infrastructure"] == "counts as 0, shown beside the headline"
    assert "6 of 20 attempts failed" in result.warnings[0]


def test_headline_is_the_mean_over_tasks_m5() -> None:
    # Task a 1 of 1, task b 0 of 3: 0.5, and 0.25 only where it is labelled as pooled.
    result = summary([attempt("a", 1.0), *(attempt("b", 0.0, index=i) for i in range(3))])
    assert result.outcome.mean == 0.5
    assert result.pooled_outcome == 0.25


def test_totals_are_not_put_into_the_formula_of_one_problem_m2() -> None:
    # 164 problems, one attempt each, 50 solved: pass@1 = 50/164 = 0.3049, and no pass@10.
    found = pass_at([attempt(f"t{i}", float(i < 50)) for i in range(164)])
    assert list(found) == [1]
    assert found[1].mean == pytest.approx(0.3049, abs=1e-4)


def test_pass_at_k_is_averaged_over_tasks_and_stops_at_the_fewest_attempts_m1() -> None:
    # a: 1 of 4, b: 4 of 4, c: 2 of 3. Most that all have is 3; k = 1, 2, 3.
    values = {"a": [1.0, 0.0, 0.0, 0.0], "b": [1.0] * 4, "c": [1.0, 1.0, 0.0]}
    found = pass_at([attempt(t, v, index=i) for t, vs in values.items() for i, v in enumerate(vs)])
    assert list(found) == [1, 2, 3]
    # k=2: a 1 - C(3,2)/C(4,2) = 1/2, b 1, c 1 - C(1,2)/C(3,2) = 1: mean 5/6
    assert found[2].mean == pytest.approx(5 / 6)
    # k=3: a 1 - C(3,3)/C(4,3) = 3/4, b 1, c 1: mean 11/12
    assert found[3].mean == pytest.approx(11 / 12)


def test_failed_attempts_count_as_unsolved_in_pass_at_k() -> None:
    found = pass_at([attempt("a", 1.0), attempt("a", None, index=1)])
    assert found[1].mean == 0.5
    assert found[2].mean == 1.0


def test_partial_outcomes_raise_the_mean_and_solve_nothing() -> None:
    result = summary([attempt("a", 0.5), attempt("b", 0.75)])
    assert result.outcome.mean == pytest.approx(0.625)
    assert result.success.mean == 0.0


def test_outcome_is_the_score_and_never_a_sum_of_rewards_m12() -> None:
    # Turn rewards 0.1, 0, 1.0; the score says solved.
    turns = tuple(
        Turn(index=i, completion=Completion(text="x"), rewards={"part": value})
        for i, value in enumerate((0.1, 0.0, 1.0))
    )
    trajectory = episode("g-e0", turns=turns, outcome=1.0)
    score = Score(trajectory_id="g-e0", scorer_id="s", outcome=1.0, is_success=True)
    (found,) = attempts_of(TASK, group(trajectory), {"g-e0": score}, size=1)
    assert found.outcome == 1.0
    assert found.is_success
    assert found.rewards["part"] == pytest.approx(1.1)


def test_tokens_are_those_that_were_kept_m13() -> None:
    # Four tokens cut to two by the length limit: two are counted, and the cut is.
    trace = TokenTrace(ids=(5, 6), versions=(VersionRun(version=0, count=2),))
    completion = Completion(text="ab", finish_reason=FinishReason.LENGTH, tokens=trace)
    trajectory = episode(
        "g-e0", turns=(Turn(index=0, prompt_ids=(1,), completion=completion),), outcome=0.0
    )
    (found,) = attempts_of(TASK, group(trajectory), {}, size=1)
    assert (found.tokens, found.is_cut_off, found.turns) == (2, True, 1)


TASK = Task(id="t", env_id="a/b-v0", suite="a/b")


def episode(name: str, *, attempt: int = 0, failed: bool = False, **fields: Any) -> Trajectory:
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="m") if failed else None
    stop = StopReason.FAILURE if failed else StopReason.TERMINATED
    values = {"terminated": not failed, "stop_reason": stop, "failure": failure, **fields}
    return Trajectory(
        id=name, group_id="g", attempt=attempt, task_id="t", env_id="a/b-v0", **values
    )


def group(*trajectories: Trajectory) -> Group:
    return Group(id="g", task_id="t", requested_size=2, trajectories=trajectories)


def test_of_an_episode_that_was_tried_again_the_last_try_counts() -> None:
    records = group(
        episode("g-e0", failed=True),
        episode("g-e0-a1", attempt=1, failed=True),
        episode("g-e0-a2", attempt=2, outcome=1.0),
        episode("g-e1", failed=True),
        episode("g-e1-a1", attempt=1, failed=True),
    )
    score = Score(trajectory_id="g-e0-a2", scorer_id="s", outcome=1.0, is_success=True)
    found = attempts_of(TASK, records, {"g-e0-a2": score}, size=2)
    assert [a.trajectory_id for a in found] == ["g-e0-a2", "g-e1-a1"]
    assert [a.failure for a in found] == [None, "infrastructure"]
    assert [a.task for a in found] == ["a/b/t", "a/b/t"]


def test_episode_that_never_ran_or_was_cancelled_is_a_failure() -> None:
    cancelled = episode("g-e0", terminated=False, stop_reason=StopReason.CANCELLED)
    found = attempts_of(TASK, group(cancelled), {}, size=3)
    assert [a.failure for a in found] == ["infrastructure"] * 3
    assert [a.stop_reason for a in found] == ["cancelled", "not_started", "not_started"]


def test_parts_of_the_tasks_are_reported_by_level_tag_and_suite() -> None:
    tasks = [
        Task(id="a", env_id="x/y-v0", suite="x/y", difficulty=1, tags=("level-1", "red")),
        Task(id="b", env_id="x/y-v0", suite="x/y", difficulty=2, tags=("level-2", "red")),
        Task(id="c", env_id="x/y-v0", suite="x/y", difficulty=2, tags=("blue",)),
    ]
    attempts = [attempt("x/y/a", 1.0), attempt("x/y/b", 0.0), attempt("x/y/c", None)]
    parts = summary(attempts, tasks).breakdowns
    # One suite only, and `level-1` is the level under another name: neither is a part.
    assert list(parts) == ["level=1", "level=2", "tag=blue", "tag=red"]
    assert (parts["level=1"].outcome.mean, parts["level=2"].outcome.mean) == (1.0, 0.0)
    assert (parts["tag=red"].outcome.mean, parts["tag=red"].outcome.count) == (0.5, 2)
    assert (parts["level=2"].failures, parts["tag=red"].failures) == (1, 0)


def test_everything_cut_off_is_a_visible_warning_m14() -> None:
    attempts = [attempt(f"t{i}", 0.0, is_cut_off=True) for i in range(4)]
    (warning,) = summary(attempts).warnings
    assert "100% of the episodes were cut off" in warning
    assert "standard deviation 0" in warning


def test_all_failed_has_no_conditional_mean() -> None:
    assert without_failures([attempt("a", None)]) is None
    with pytest.raises(ValueError, match="one attempt or more"):
        summary([])


def test_result_is_read_back_from_its_json() -> None:
    result = summary([attempt("a", 1.0), attempt("a", None, index=1), attempt("b", 0.5)], k=2)
    text = json.dumps(result.to_dict(), allow_nan=False)
    again = EvaluationResult.from_dict(json.loads(text))
    assert again == result
    assert again.task_means() == {"a": 0.5, "b": 0.5}
    assert again.sampling == Sampling(temperature=0.7, max_new_tokens=9)


@pytest.mark.parametrize("change", [{"schema": 99}, {"outcome": {}}, {"extra": 1}])
def test_other_json_is_refused(change: dict[str, Any]) -> None:
    tree = {**summary([attempt("a", 1.0)]).to_dict(), **change}
    with pytest.raises(RecordError):
        EvaluationResult.from_dict(tree)


def test_wall_time_does_not_make_results_differ() -> None:
    result = summary([attempt("a", 1.0)])
    assert dataclasses.replace(result, seconds=5.0) == result


def test_a_failed_attempt_keeps_why_and_the_commonest_reason_is_found() -> None:
    records = group(episode("g-e0", failed=True))
    (found, missing) = attempts_of(TASK, records, {}, size=2)
    assert (found.failure, found.failure_message) == ("infrastructure", "m")
    assert missing.failure_message == "it never started"
    # "m" twice, "it never started" once.
    result = summary([found, dataclasses.replace(found, index=1), missing])
    assert result.commonest_failure() == ("m", 2)
    assert EvaluationResult.from_dict(result.to_dict()) == result
    assert summary([attempt("a", 1.0)]).commonest_failure() is None


def posed(suite: str, number: int, **kwargs: Any) -> Task:
    return Task(
        id=f"t{number}", env_id=f"{suite}-v0", suite=suite, difficulty=number, env_kwargs=kwargs
    )


def test_c2_a_result_says_with_which_arguments_its_tasks_were_posed() -> None:
    tasks = [
        posed("a/b", 1, plain=True, level=1, api_key="s3cret"),
        posed("a/b", 2, plain=True, level=2, api_key="s3cret"),
        posed("c/d", 1),
    ]
    result = summary([attempt(f"{task.suite}/{task.id}", 1.0) for task in tasks], tasks)
    # What differs between tasks is the tasks', and a secret is nobody's.
    assert dict(result.posed["a/b"].kwargs) == {"plain": True, "api_key": "<redacted>"}
    assert result.posed["a/b"].env_id == "a/b-v0"
    assert dict(result.posed["c/d"].kwargs) == {}
    assert "agentgym" in result.environment
    assert EvaluationResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_c5_levels_of_different_suites_are_not_put_together() -> None:
    tasks = [posed(suite, level) for suite in ("a/b", "c/d") for level in (1, 2)]
    outcomes = [1.0, 0.0, 0.5, 0.25]
    result = summary(
        [attempt(f"{t.suite}/{t.id}", o) for t, o in zip(tasks, outcomes, strict=True)], tasks
    )
    assert {name: part.outcome.mean for name, part in result.breakdowns.items()} == {
        "suite=a/b": 0.5,
        "suite=c/d": 0.375,
        "a/b level=1": 1.0,
        "a/b level=2": 0.0,
        "c/d level=1": 0.5,
        "c/d level=2": 0.25,
    }
    assert list(result.breakdowns)[:2] == ["suite=a/b", "suite=c/d"]
