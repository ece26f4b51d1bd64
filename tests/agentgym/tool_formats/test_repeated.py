"""Class: *the last one wins silently*: keys and elements that come twice, and ids of calls."""

from __future__ import annotations

import json

import pytest

from agentgym.tool_formats.json_calls import RepeatedKeyError, read_json
from agentgym.tool_formats.table import PROTOCOLS
from agentgym.tool_formats.tools import make_tool


def find(where: dict[str, int], note: str = "", either: dict[str, int] | str = "") -> str:
    """Find."""
    return note


TOOLS = (make_tool(find),)


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        (
            "tagged_json",
            '<tool_call>{"name":"find","arguments":{"note":"a","note":"b"}}</tool_call>',
        ),
        ("tagged_json", '<tool_call>{"name":"find","name":"note","arguments":{}}</tool_call>'),
        ("openai_tools", '{"name":"find","arguments":{"note":"a","note":"b"}}'),
        ("openai_tools", '{"arguments":{"note":"a","note":"b"},"name":"find"}'),
        ("openai_tools", '{"name":"find","arguments":"{\\"note\\":\\"a\\",\\"note\\":\\"b\\"}"}'),
        ("tagged_text", "<find><note>a</note><note>b</note></find>"),
        ("tagged_text", '<find><where>{"note":1,"note":2}</where></find>'),
        ("tagged_text", '<find>{"note":1,"note":2}</find>'),
    ],
)
def test_f32_repeated_key_is_refused(protocol: str, text: str) -> None:
    (call,) = PROTOCOLS[protocol].parse(text, TOOLS).calls
    assert "twice" in (call.error or "")


def test_f32_repeated_key_says_which_and_how_far_it_reads() -> None:
    with pytest.raises(RepeatedKeyError, match='the key "b" is there twice') as caught:
        read_json(' {"a":{"b":1,"b":2}} rest')
    assert (caught.value.value, caught.value.stop) == ({"a": {"b": 2}}, 20)


def test_f32_repeated_key_in_data_is_no_call() -> None:
    action = PROTOCOLS["openai_tools"].parse('the data {"a":1,"a":2} is odd', TOOLS)
    assert (action.calls, action.answer) == ((), 'the data {"a":1,"a":2} is odd')


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["call_2_a", "a", "a"], ["call_2_a", "a", "call_2_0"]),
        (["a", "a", "a"], ["a", "call_1_a", "call_2_a"]),
        (["", "call_0", ""], ["call_0", "call_1_call_0", "call_2"]),
        (["call_1", "", "call_1"], ["call_1", "call_1_call_1", "call_2_call_1"]),
        (["a", "call_2_a", "a", "a"], ["a", "call_2_a", "call_2_0", "call_3_a"]),
    ],
)
def test_f32_ids_of_calls_are_unique(ids: list[str], expected: list[str]) -> None:
    entries = [{"id": name, "function": {"name": "find", "arguments": "{}"}} for name in ids]
    action = PROTOCOLS["openai_tools"].parse(json.dumps({"tool_calls": entries}), TOOLS)
    assert [call.id for call in action.calls] == expected


# (written, what arrives): an argument that may be an object or text.
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (" text ", " text "),
        ("[1]", "[1]"),  # no type of the schema
        ("3", "3"),
        ('{"a": 1} and more', '{"a": 1} and more'),
        ("{", "{"),
    ],
)
def test_f40_argument_that_may_be_an_object_is_one(written: str, value: object) -> None:
    text = f"<find><where>{{}}</where><either>{written}</either></find>"
    (call,) = PROTOCOLS["tagged_text"].parse(text, TOOLS).calls
    assert call.arguments["either"] == value
