"""Records that exist are valid; derived values by hand."""

import dataclasses
import json
from typing import Any

import pytest

from agentgym.errors import RecordError
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    Sample,
    Sampling,
    Score,
    Span,
    SpanKind,
    Task,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)

SAMPLE: dict[str, Any] = {
    "id": "s",
    "trajectory_id": "t",
    "group_id": "g",
    "ids": (7, 8, 1, 9),
    "loss_mask": (False, False, True, True),
    "behavior_logprobs": (0.0, 0.0, -0.5, -0.25),
    "versions": (-1, -1, 3, 4),
    "turn_ids": (-1, -1, 0, 0),
}


def trace(*ids: int, version: int = 3) -> TokenTrace:
    return TokenTrace(
        ids=ids,
        behavior_logprobs=tuple(-0.5 for _ in ids),
        versions=(VersionRun(version=version, count=len(ids)),),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task(id="", env_id="e"), "needs an 'id'"),
        (lambda: Sampling(temperature=-1.0), r"'temperature' must be >= 0 \(got -1.0\)"),
        (lambda: Sampling(top_p=0.0), r"'top_p' must be in \(0, 1\]"),
        (lambda: Sampling(top_k=-1), "'top_k' must be >= 0"),
        (lambda: Sampling(min_p=1.0), r"'min_p' must be in \[0, 1\)"),
        (lambda: Sampling(max_new_tokens=0), "'max_new_tokens' must be >= 1"),
        (lambda: VersionRun(version=-1, count=1), "version >= 0"),
        (lambda: VersionRun(version=0, count=0), "count >= 1"),
        (lambda: TokenTrace(ids=(1, 2), behavior_logprobs=(-0.5,)), r"one entry an id \(2\)"),
        (lambda: TokenTrace(ids=(1, 2)), r"'versions' must cover 2 ids \(got 0\)"),
        (lambda: Span(kind=SpanKind.THINK, start=3, stop=2), "0 <= start <= stop"),
        (lambda: Turn(index=1, parent=1, completion=Completion(text="")), "earlier turn than 1"),
        (lambda: Turn(index=0, prefix_length=2, completion=Completion(text="")), "has no prefix"),
        (lambda: Turn(index=0, completion=Completion(text="", tokens=trace(1))), "'prompt_ids'"),
        (
            lambda: Score(trajectory_id="t", scorer_id="s", outcome=2.0, is_success=True),
            r"\[0, 1\]",
        ),
        (lambda: Sample(**{**SAMPLE, "loss_mask": (True,)}), r"4 entries .*'loss_mask': 1"),
        (lambda: Sample(**{**SAMPLE, "turn_ids": ()}), r"'turn_ids': 0"),
        (lambda: Sample(**{**SAMPLE, "behavior_logprobs": ()}), r"'behavior_logprobs': 0"),
        (lambda: Sample(**{**SAMPLE, "role_ids": (1,)}), r"'role_ids': 1"),
    ],
)
def test_invalid_record_cannot_be_made_b(make: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make()


def test_trajectory_refuses_contradictions() -> None:
    base: dict[str, Any] = {"id": "t", "group_id": "g", "task_id": "k", "env_id": "e"}
    with pytest.raises(RecordError, match="not both"):
        Trajectory(**base, terminated=True, truncated=True)
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="down")
    with pytest.raises(RecordError, match=r"no outcome \(got 0.0\)"):
        Trajectory(**base, failure=failure, outcome=0.0)
    with pytest.raises(RecordError, match="turn 0 has index 1"):
        Trajectory(**base, turns=(Turn(index=1, completion=Completion(text="")),))


def test_records_are_frozen() -> None:
    task = Task(id="a", env_id="e")
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.id = "b"  # pyright: ignore[reportAttributeAccessIssue]


def test_log_probs_are_kept_as_float32() -> None:
    # 0.1 is not a float32; its nearest one is 0.10000000149011612.
    kept = TokenTrace(
        ids=(1,), behavior_logprobs=(-0.1,), versions=(VersionRun(version=0, count=1),)
    )
    assert kept.behavior_logprobs == (-0.10000000149011612,)


def test_context_ids_follow_parent_and_prefix() -> None:
    """Turn 0: prompt 1 2, sampled 5 9. Turn 1 keeps all 4 and adds 3. Turn 2 keeps 3 of turn 1."""
    turns = (
        Turn(index=0, prompt_ids=(1, 2), completion=Completion(text="", tokens=trace(5, 9))),
        Turn(
            index=1,
            parent=0,
            prefix_length=4,
            prompt_ids=(3,),
            completion=Completion(text="", tokens=trace(6)),
        ),
        Turn(
            index=2,
            parent=1,
            prefix_length=3,
            prompt_ids=(8,),
            completion=Completion(text="", tokens=trace(7, version=4)),
        ),
    )
    trajectory = Trajectory(id="t", group_id="g", task_id="k", env_id="e", turns=turns)
    assert trajectory.context_ids(0) == (1, 2)
    assert trajectory.full_ids(1) == (1, 2, 5, 9, 3, 6)
    assert trajectory.context_ids(2) == (1, 2, 5, 8)


def test_context_ids_need_ids() -> None:
    turns = (Turn(index=0, completion=Completion(text="hi")),)
    trajectory = Trajectory(id="t", group_id="g", task_id="k", env_id="e", turns=turns)
    with pytest.raises(RecordError, match="works on text"):
        trajectory.context_ids(0)


def test_content_hash_is_of_what_is_asked() -> None:
    base = Task(id="a", env_id="math/x-v0", prompt="What  is\n2+2?", payload={"b": 1, "a": [2]})
    same = Task(
        id="b", env_id="math/x-v3", prompt="what is 2+2?", payload={"a": [2], "b": 1}, split="s"
    )
    assert base.content_hash == same.content_hash
    for change in ({"prompt": "what is 2+3?"}, {"payload": {"b": 2}}, {"env_id": "math/y-v0"}):
        assert dataclasses.replace(base, **change).content_hash != base.content_hash
    assert json.dumps(base.content_hash)


def test_ids_of_a_long_episode_need_no_deep_stack() -> None:
    turns = tuple(
        Turn(
            index=n,
            parent=n - 1 if n else None,
            prefix_length=2 * n,
            prompt_ids=(7,),
            completion=Completion(text="", tokens=trace(5)),
        )
        for n in range(2_000)
    )
    trajectory = Trajectory(id="t", group_id="g", task_id="k", env_id="e", turns=turns)
    assert trajectory.full_ids(1_999) == (7, 5) * 2_000


# Class: *coercion in place of refusal*: the letters of a string would be the answers.
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answers": "27"}, r"'answers' must be a tuple of texts, such as \('27',\) \(got '27'\)"),
        ({"answers": ["27"]}, r"'answers' must be a tuple of texts, such as \('27',\)"),
        ({"answers": (27,)}, r"'answers' .* \(got \(27,\)\)"),
        ({"tags": "easy"}, r"'tags' must be a tuple of texts, such as \('easy',\)"),
    ],
)
def test_f40_task_takes_tuples_of_texts(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Task(id="t", env_id="e-v0", **fields)
