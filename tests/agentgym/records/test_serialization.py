"""JSON lines: equal after a round trip, compact, and clear about what cannot be read."""

import base64
import dataclasses
import json
import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import RecordError
from agentgym.records import (
    Attachment,
    Completion,
    ErrorKind,
    Failure,
    FinalPrompt,
    FinishReason,
    ForkPoint,
    Group,
    Sample,
    Sampling,
    Score,
    Source,
    Span,
    SpanKind,
    StopReason,
    Task,
    TokenTrace,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.records.arrays import pack_floats, pack_ints, unpack_floats, unpack_ints
from agentgym.records.limits import Limits
from agentgym.records.serialization import SCHEMA, dumps, loads

# -- strategies --------------------------------------------------------------------------------

texts = st.text(max_size=12)
names = st.text(min_size=1, max_size=6)
ids = st.lists(st.integers(0, 200_000), max_size=12).map(tuple)
floats = st.floats(allow_nan=False)
free = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "$tuple", "$object"]), inner, max_size=3)
    ),
    max_leaves=6,
)
payloads = st.dictionaries(names, free, max_size=3)
tasks = st.builds(
    Task,
    id=names,
    env_id=names,
    env_kwargs=payloads,
    prompt=texts,
    answers=st.lists(texts, max_size=2).map(tuple),
    payload=payloads,
    difficulty=st.none() | floats,
    tags=st.lists(texts, max_size=2).map(tuple),
    split=texts,
)


@st.composite
def traces(draw: st.DrawFn) -> TokenTrace:
    sampled = draw(st.lists(st.integers(0, 2**31), max_size=9))
    logprobs = [draw(st.floats(width=32, allow_nan=False)) for _ in sampled]
    cut = draw(st.integers(0, len(sampled)))
    counts = [n for n in (cut, len(sampled) - cut) if n]
    return TokenTrace(
        ids=tuple(sampled),
        behavior_logprobs=draw(st.sampled_from([tuple(logprobs), None])),
        versions=tuple(VersionRun(version=v + 2, count=n) for v, n in enumerate(counts)),
    )


spans = st.builds(
    lambda kind, start, size: Span(kind=kind, start=start, stop=start + size, ref="r"),
    st.sampled_from(SpanKind),
    st.integers(0, 9),
    st.integers(0, 9),
)


@st.composite
def turns(draw: st.DrawFn, index: int) -> Turn:
    call = ToolCall(id="c", name=draw(names), arguments=draw(payloads), raw=draw(texts))
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        prefix_length=draw(st.integers(0, 9)) if index else 0,
        prompt_ids=draw(ids),
        prompt_spans=tuple(draw(st.lists(spans, max_size=2))),
        completion=Completion(
            text=draw(texts),
            finish_reason=draw(st.sampled_from(FinishReason)),
            sampling=draw(
                st.none() | st.builds(Sampling, temperature=st.floats(0, 2), seed=st.none())
            ),
            source=draw(st.sampled_from(Source)),
            tokens=draw(traces()),
        ),
        observation=draw(texts),
        attachments=(Attachment(media_type="a/b", sha256="0", path="p"),) * draw(st.integers(0, 1)),
        tool_calls=(call,) * draw(st.integers(0, 1)),
        tool_results=(
            ToolResult(call_id="c", text="t", error_kind=draw(st.sampled_from(ErrorKind))),
        ),
        error_kind=draw(st.none() | st.sampled_from(ErrorKind)),
        rewards=draw(st.dictionaries(names, floats, max_size=2)),
        timings={"env": 0.5},
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    failure = draw(
        st.none()
        | st.builds(
            Failure,
            kind=st.sampled_from(ErrorKind),
            where=texts,
            message=texts,
            is_retryable=st.booleans(),
        )
    )
    return Trajectory(
        id=draw(names),
        group_id=draw(names),
        attempt=draw(st.integers(0, 3)),
        task_id=draw(names),
        env_id=draw(names),
        env_kwargs=draw(payloads),
        limits=Limits(
            max_turns=draw(st.integers(1, 5)), max_seconds=draw(st.none() | st.floats(0.5, 9))
        ),
        seed=draw(st.integers(0, 2**63)),
        tools=tuple(draw(st.lists(texts, max_size=2))),
        initial_observation=draw(texts),
        turns=tuple(draw(turns(index)) for index in range(draw(st.integers(0, 2)))),
        final_prompt=draw(
            st.none() | st.builds(FinalPrompt, prefix_length=st.integers(0, 9), ids=ids)
        ),
        terminated=draw(st.booleans()),
        stop_reason=draw(st.sampled_from(StopReason)),
        outcome=None if failure is not None else draw(st.none() | st.floats(0, 1)),
        failure=failure,
        forked_from=draw(
            st.none()
            | st.builds(ForkPoint, trajectory_id=names, turn=st.integers(), token=st.integers())
        ),
    )


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    size = draw(st.integers(0, 30))

    def column(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=size, max_size=size)))

    return Sample(
        id=draw(names),
        trajectory_id="t",
        group_id="g",
        agent_id=draw(names),
        source=draw(st.sampled_from(Source)),
        segment=draw(st.integers(0, 4)),
        ids=column(st.integers(0, 2**17)),
        loss_mask=column(st.booleans()),
        behavior_logprobs=draw(st.sampled_from([column(floats), None])),
        versions=column(st.integers(-1, 3)),
        turn_ids=column(st.integers(-1, 300)),
        role_ids=draw(st.sampled_from([column(st.integers(0, 10)), ()])),
    )


scores = st.builds(
    Score,
    trajectory_id=names,
    scorer_id=names,
    outcome=st.floats(0, 1),
    is_success=st.booleans(),
    turn_rewards=st.dictionaries(
        names, st.lists(st.none() | floats, max_size=3).map(tuple), max_size=2
    ),
)
groups = st.builds(
    Group,
    id=names,
    task_id=names,
    requested_size=st.integers(1, 9),
    trajectories=st.lists(trajectories(), max_size=2).map(tuple),
    drawn_rewards=st.lists(floats, max_size=8).map(tuple),
)


@given(st.one_of(tasks, trajectories(), samples(), scores, groups))
@settings(max_examples=300)
def test_round_trip_gives_an_equal_record(record: Any) -> None:
    line = dumps(record)
    assert "\n" not in line
    assert len(line.splitlines()) == 1
    again = loads(line)
    assert again == record
    assert type(again) is type(record)
    assert dumps(again) == line


def test_timings_survive_although_they_do_not_count() -> None:
    turn = Turn(index=0, completion=Completion(text="x"), timings={"env": 0.25})
    record = Trajectory(id="t", group_id="g", task_id="k", env_id="e", turns=(turn,))
    again = loads(dumps(record))
    assert isinstance(again, Trajectory)
    assert again.turns[0].timings == {"env": 0.25}


def test_line_holds_schema_type_and_what_is_not_a_default() -> None:
    assert json.loads(dumps(Task(id="a", env_id="e", prompt="é"))) == {
        "schema": SCHEMA,
        "type": "Task",
        "id": "a",
        "env_id": "e",
        "prompt": "é",
    }


def test_arrays_have_the_stated_forms() -> None:
    # 300 needs two bytes: 300 = 0x012c, little-endian 2c 01.
    expected = base64.b64encode(bytes([0x2C, 1, 7, 0, 9, 0, 11, 0, 13, 0])).decode()
    assert pack_ints((300, 7, 9, 11, 13)) == f"u2:{expected}"
    assert pack_ints((1, 2, 3, 4)) == [1, 2, 3, 4]
    assert pack_ints((-1,) * 40 + (5,) * 60) == {"runs": [-1, 40, 5, 60]}
    assert pack_ints((70_000, 1, 2, 3, 4)).startswith("u4:")
    assert pack_ints((2**40, 1, 2, 3, 4)) == [2**40, 1, 2, 3, 4]
    assert (
        pack_floats((0.5,) * 5) == "f4:" + base64.b64encode(struct.pack("<5f", *[0.5] * 5)).decode()
    )
    # 0.1 is no float32, so nothing is rounded.
    assert pack_floats((0.1,) * 5) == [0.1] * 5
    assert pack_floats((math.inf, 0.5)) == ["inf", 0.5]


@given(st.lists(st.integers(-(2**40), 2**40) | st.sampled_from([0, 1, 7]), max_size=40))
def test_ints_round_trip(values: list[int]) -> None:
    packed = json.loads(json.dumps(pack_ints(values)))
    assert unpack_ints(packed) == tuple(values)


@given(st.lists(st.floats(allow_nan=False), max_size=12))
def test_floats_round_trip(values: list[float]) -> None:
    packed = json.loads(json.dumps(pack_floats(values), allow_nan=False))
    assert unpack_floats(packed) == tuple(values)


def token_trajectory(turns_: int, prompt: int, sampled: int) -> Trajectory:
    rng = random.Random(5)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(49_152) for _ in range(count))

    return Trajectory(
        id="t",
        group_id="g",
        task_id="k",
        env_id="e",
        turns=tuple(
            Turn(
                index=i,
                parent=i - 1 if i else None,
                prefix_length=i * (prompt + sampled),
                prompt_ids=draw(prompt),
                completion=Completion(
                    text="",
                    tokens=TokenTrace(
                        ids=draw(sampled),
                        behavior_logprobs=tuple(-rng.random() for _ in range(sampled)),
                        versions=(VersionRun(version=3, count=sampled),),
                    ),
                ),
            )
            for i in range(turns_)
        ),
    )


def test_a_token_takes_about_ten_bytes() -> None:
    # A sampled token: 2 bytes of id and 4 of log-prob in base64, 8 characters; one of the prompt
    # 2.7. What else a turn has is shared by its tokens; text is not counted.
    trajectory = token_trajectory(turns_=6, prompt=32, sampled=64)
    assert len(dumps(trajectory)) / (6 * (32 + 64)) <= 12


def test_a_token_of_a_sample_takes_about_ten_bytes() -> None:
    size, turn = 1920, 96
    trace = token_trajectory(turns_=1, prompt=1, sampled=size).turns[0].completion.tokens
    assert trace is not None
    trained = tuple(i % turn < 64 for i in range(size))
    sample = Sample(
        id="s",
        trajectory_id="t",
        group_id="g",
        ids=trace.ids,
        loss_mask=trained,
        behavior_logprobs=trace.behavior_logprobs,
        versions=tuple(3 if is_trained else -1 for is_trained in trained),
        turn_ids=tuple(i // turn if is_trained else -1 for i, is_trained in enumerate(trained)),
        role_ids=tuple(9 if is_trained else 2 for is_trained in trained),
    )
    assert len(dumps(sample)) / size <= 12
    assert loads(dumps(sample)) == sample


TASK_LINE = dumps(Task(id="a", env_id="e"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", r"must be an object \(got list\)"),
        ("[" * 100_000, "not JSON"),
        ('{"type":"Task"}', r"schema 1 to 1 \(got None\)"),
        (TASK_LINE.replace('"schema":1', '"schema":2'), r"schema 1 to 1 \(got 2\).*later one"),
        (TASK_LINE.replace('"Task"', '"Tusk"'), "'type' must be one of .*got 'Tusk'"),
        (TASK_LINE.replace('"id":"a",', ""), r"Task: missing fields \['id'\]"),
        (TASK_LINE.replace('"id"', '"new":1,"id"'), r"Task: unknown fields \['new'\]"),
        (TASK_LINE.replace('"a"', "7"), "type str is expected"),
        (TASK_LINE.replace('"a"', '""'), "needs an 'id'"),
        (TASK_LINE.replace('"id"', '"difficulty":"x","id"'), r"a number is expected \(got 'x'\)"),
        (TASK_LINE.replace('"id"', '"tags":"x","id"'), "type list is expected"),
    ],
)
def test_unreadable_line_says_why(line: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        loads(line)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("u2:!", "base64"),
        ("u2:AAA=", "expected|base64|whole number"),
        ("f4:AAAAAA==", r"\['u1', 'u2', 'u4'\] is expected \(got 'f4'\)"),
        ([1, "a"], "whole numbers"),
        ({"runs": [1]}, "pairs of a value and a count"),
        ({"runs": [1, 0]}, "count >= 1"),
        ({"run": []}, "runs are expected"),
        (7, "an array is expected"),
    ],
)
def test_unreadable_array_says_why(packed: Any, message: str) -> None:
    if packed == "u2:AAA=":
        assert unpack_ints(packed) == (0,)  # two bytes: one number
        return
    with pytest.raises(RecordError, match=message):
        unpack_ints(packed)


def test_odd_number_of_bytes_is_refused() -> None:
    with pytest.raises(RecordError, match="3 bytes, not a whole number of items"):
        unpack_ints("u2:AAAA")


@pytest.mark.parametrize("payload", [{"x": object()}, {"x": {1: 2}}, {"x": {3}}, {"x": math.nan}])
def test_what_json_cannot_hold_is_refused(payload: Any) -> None:
    with pytest.raises(RecordError):
        dumps(Task(id="a", env_id="e", payload=payload))


def test_only_the_five_records_are_lines() -> None:
    with pytest.raises(RecordError, match=r"one of \['Group', .*got Span"):
        dumps(Span(kind=SpanKind.THINK, start=0, stop=1))  # pyright: ignore[reportArgumentType]


def test_half_a_surrogate_pair_survives() -> None:
    record = Task(id="a", env_id="e", prompt="x\ud800y")
    line = dumps(record)
    line.encode()
    assert loads(line) == record


def test_every_field_of_the_records_has_a_codec() -> None:
    # A field of a new type would fail here, not in a run.
    for cls in (Task, Trajectory, Score, Group, Sample):
        assert dataclasses.is_dataclass(cls)
    loads(dumps(Score(trajectory_id="t", scorer_id="s", outcome=0.5, is_success=False)))
