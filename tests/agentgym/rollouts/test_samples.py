"""From trajectories to rows: every sampled id once, after the ids it was sampled from.

Toy ids: 7 8 the first prompt, 9 the end token, 4 5 observations with their template.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.errors import RecordError
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    FinishReason,
    Sample,
    Source,
    Span,
    SpanKind,
    StopReason,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.template import ChatTemplate
from agentgym.rollouts.samples import ROLE_KINDS, to_samples, with_ids
from agentgym.testing.toy_tokenizer import ToyTokenizer

TEMPLATE = "{% for m in messages %}{{ m['content'] }}<E>{% endfor %}"


def turn(
    index: int,
    prompt: tuple[int, ...],
    sampled: tuple[int, ...],
    *,
    prefix: int = 0,
    version: int = 0,
    **fields: object,
) -> Turn:
    trace = TokenTrace(
        ids=sampled,
        behavior_logprobs=tuple(-0.5 * (i + 1) for i in range(len(sampled))),
        versions=(VersionRun(version=version, count=len(sampled)),) if sampled else (),
    )
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        prefix_length=prefix,
        prompt_ids=prompt,
        completion=Completion(text="", tokens=trace),
        **fields,  # type: ignore[arg-type]
    )


def episode(*turns: Turn, **fields: object) -> Trajectory:
    values: dict[str, object] = {
        "id": "t",
        "group_id": "g",
        "task_id": "task",
        "env_id": "test/env-v0",
        "turns": turns,
        "terminated": True,
        "stop_reason": StopReason.TERMINATED,
        "outcome": 1.0,
        **fields,
    }
    return Trajectory(**values)  # type: ignore[arg-type]


def test_to_samples_joins_turns_whose_prompts_grow() -> None:
    first = turn(0, (7, 8), (1, 9), version=3)
    second = turn(1, (4,), (2, 2, 9), prefix=4, version=4)
    (row,) = to_samples(episode(first, second))
    #          prompt   sampled     obs  sampled
    assert row.ids == (7, 8, 1, 9, 4, 2, 2, 9)
    assert row.loss_mask == (False, False, True, True, False, True, True, True)
    assert row.behavior_logprobs == (0, 0, -0.5, -1.0, 0, -0.5, -1.0, -1.5)
    assert row.versions == (-1, -1, 3, 3, -1, 4, 4, 4)
    assert row.turn_ids == (-1, -1, 0, 0, -1, 1, 1, 1)


def test_to_samples_starts_a_row_where_the_prompt_does_not_extend_a4() -> None:
    """Turn 0 sampled 5 ids; the template drops them all but one, so turn 1 keeps 2 + 0 of it."""
    first = turn(0, (7, 8), (1, 2, 3, 6, 9))
    second = turn(1, (9, 4), (5, 5, 5, 9), prefix=2)
    rows = to_samples(episode(first, second))
    assert [sum(row.loss_mask) for row in rows] == [5, 4]
    assert rows[0].ids == (7, 8, 1, 2, 3, 6, 9)
    assert rows[1].ids == (7, 8, 9, 4, 5, 5, 5, 9)
    assert rows[1].loss_mask == (False,) * 4 + (True,) * 4
    assert [row.segment for row in rows] == [0, 1]
    assert [set(row.turn_ids) for row in rows] == [{-1, 0}, {-1, 1}]


def test_to_samples_goes_on_in_the_new_row_after_a_break() -> None:
    turns = (
        turn(0, (7,), (1, 9)),
        turn(1, (4,), (2, 9), prefix=1),
        turn(2, (5,), (3, 9), prefix=4),  # full ids of turn 1: 7 4 2 9
    )
    rows = to_samples(episode(*turns))
    assert [row.ids for row in rows] == [(7, 1, 9), (7, 4, 2, 9, 5, 3, 9)]
    assert rows[1].turn_ids == (-1, -1, 1, 1, -1, 2, 2)


def test_to_samples_trains_each_sampled_id_once() -> None:
    turns = (
        turn(0, (7, 8), (1, 9)),
        turn(1, (4,), (2, 9), prefix=3),
        turn(2, (5,), (6,), prefix=6),
    )
    rows = to_samples(episode(*turns))
    assert sum(sum(row.loss_mask) for row in rows) == 5


def test_to_samples_gives_an_empty_turn_no_token_b8() -> None:
    rows = to_samples(episode(turn(0, (7, 8), ()), turn(1, (4,), (2, 9), prefix=2)))
    (row,) = rows
    assert row.ids == (7, 8, 4, 2, 9)
    assert row.loss_mask == (False, False, False, True, True)


def test_to_samples_does_not_train_an_end_token_that_was_not_sampled_b9() -> None:
    """Sampled 4 5, stopped on a string; the template closes with 9, which is the next prompt's."""
    rows = to_samples(episode(turn(0, (7,), (4, 5)), turn(1, (9, 8), (6,), prefix=3)))
    assert rows[0].ids == (7, 4, 5, 9, 8, 6)
    assert rows[0].loss_mask == (False, True, True, False, False, True)


def test_to_samples_takes_roles_from_the_spans() -> None:
    spans = (
        Span(kind=SpanKind.THINK, start=0, stop=1),
        Span(kind=SpanKind.ANSWER, start=1, stop=2),
    )
    prompt = (Span(kind=SpanKind.OBSERVATION, start=1, stop=2),)
    (row,) = to_samples(episode(turn(0, (7, 8), (1, 9), role_spans=spans, prompt_spans=prompt)))
    names = [ROLE_KINDS[role] for role in row.role_ids]
    assert names == [SpanKind.TEMPLATE, SpanKind.OBSERVATION, SpanKind.THINK, SpanKind.ANSWER]


def test_to_samples_leaves_out_what_failed_or_was_cancelled() -> None:
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
    good = episode(turn(0, (7,), (1,)))
    failed = replace(
        good, terminated=False, outcome=None, failure=failure, stop_reason=StopReason.FAILURE
    )
    cancelled = replace(good, terminated=False, outcome=None, stop_reason=StopReason.CANCELLED)
    assert len(to_samples(good)) == 1
    assert to_samples(failed) == ()
    assert to_samples(cancelled) == ()


def test_to_samples_needs_ids() -> None:
    text = Turn(index=0, completion=Completion(text="hello"))
    with pytest.raises(RecordError, match="works on text"):
        to_samples(episode(text))


def test_sample_refuses_lists_of_different_length_b2() -> None:
    with pytest.raises(RecordError, match="must have 3 entries"):
        Sample(
            id="s",
            trajectory_id="t",
            group_id="g",
            ids=(1, 2, 3),
            loss_mask=(True, True),
            behavior_logprobs=None,
            versions=(0, 0, 0),
            turn_ids=(0, 0, 0),
        )


def test_with_ids_tokenises_text_once_and_gives_expert_rows() -> None:
    text = (
        Turn(
            index=0,
            completion=Completion(text="hello", source=Source.EXPERT),
            observation="hello",
        ),
        Turn(
            index=1,
            completion=Completion(
                text="hello", source=Source.EXPERT, finish_reason=FinishReason.LENGTH
            ),
        ),
    )
    renderer = ChatRenderer(ToyTokenizer(), ChatTemplate(TEMPLATE))
    given = with_ids(episode(*text, initial_observation="hello"), renderer)
    assert given.renderer_id == renderer.id
    (row,) = to_samples(given)
    assert row.source is Source.EXPERT
    assert row.behavior_logprobs is None
    trained = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
    end = next(iter(renderer.end_ids))
    hello = renderer.encode("hello")
    # The first turn ends with the end token, the cut-off one does not.
    assert trained == [*hello, end, *hello]


def test_long_episode_is_one_row() -> None:
    turns = [turn(n, (7,), (5,), prefix=2 * n) for n in range(2_000)]
    (row,) = to_samples(episode(*turns))
    assert row.ids == (7, 5) * 2_000
    assert row.loss_mask == (False, True) * 2_000
