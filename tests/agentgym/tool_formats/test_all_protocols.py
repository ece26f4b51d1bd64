"""What holds for every protocol: no text raises, time stays bounded, names are found."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.records import FinishReason
from agentgym.tool_formats.base import ActionProtocol, ParsedAction
from agentgym.tool_formats.table import PROTOCOLS, get_protocol
from agentgym.tool_formats.tools import checked_arguments, make_tool, result_text


def search(query: str, top_k: int = 3) -> str:
    """Search."""
    return query


def python(code: str) -> str:
    """Run code."""
    return code


TOOLS = (make_tool(search), make_tool(python))
SEEDS = [
    '<tool_call>{"name":"search","arguments":{"query":"a </tool_call> b","top_k":3}}</tool_call>',
    '<think>x <tool_call>{"name":"f","arguments":{}}</tool_call></think>done',
    "<think>so</think><search><query>a</query><top_k>3</top_k></search><answer>4</answer>",
    "```python\nprint('```')\n```\n<answer>1</answer>",
    '{"tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\\"a\\":3}"}}]}',
    '[{"name":"search","parameters":{"query":"\\u00e9\\ud83d"}}] <serch>x</serch>',
]
FRAGMENTS = [
    *["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<search>"],
    *[
        "</search>",
        "<query>",
        "</query>",
        "```",
        "```python\n",
        "\n```\n",
        '{"name":',
        '"arguments":',
    ],
    *['"', "\\", "{", "}", "[", "]", ",", ":", "null", "NaN", "1e999", "\ud800", "\x00", "\u2028"],
    *["\r\n", " ", "x", "<\\/search>", "9" * 5000, "[" * 3000, "<a>", "</a>"],
]


def check(protocol: ActionProtocol, text: str, reason: FinishReason) -> ParsedAction:
    action = protocol.parse(text, TOOLS, finish_reason=reason)
    if reason is FinishReason.LENGTH:
        assert (action.calls, action.answer, action.is_truncated) == ((), None, True)
    assert not (action.calls and action.answer is not None)
    ids = [call.id for call in action.calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    position = 0
    for span in action.spans:
        assert position <= span.start <= span.stop <= len(text)
        position = span.stop
    return action


def mutated(rng: random.Random) -> str:
    text = rng.choice(SEEDS)
    for _ in range(rng.randrange(1, 8)):
        cut, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        match rng.randrange(5):
            case 0:
                text = text[:cut] + text[end:]
            case 1:
                text = text[:cut] + rng.choice(FRAGMENTS) + text[cut:]
            case 2:
                text = text[:cut] + text[cut:end] * 2 + text[end:]
            case 3:
                text = text[:cut] + chr(rng.randrange(0x110000)) + text[cut:]
            case _:
                text = text + rng.choice(SEEDS)
        text = text[:6000]
    return text


def fuzz(count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        text = mutated(rng)
        reason = FinishReason.LENGTH if number % 16 == 0 else FinishReason.STOP
        for protocol in PROTOCOLS.values():
            check(protocol, text, reason)


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_parse_never_raises_on_any_text(name: str, text: str) -> None:
    check(PROTOCOLS[name], text, FinishReason.STOP)


@given(st.lists(st.sampled_from([*FRAGMENTS, *SEEDS]), max_size=12))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_parse_never_raises_on_fragments(name: str, parts: list[str]) -> None:
    check(PROTOCOLS[name], "".join(parts), FinishReason.STOP)


def test_parse_never_raises_on_mutations() -> None:
    fuzz(3000, seed=11)


@pytest.mark.soak
def test_parse_never_raises_on_a_million_mutations() -> None:
    fuzz(200_000, seed=12)  # times the five protocols


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
@pytest.mark.parametrize(
    "unit", ["<search>", "<tool_call>", "{", '{"a":', "<a>", "```python\n", "<think>"]
)
def test_hostile_repetition_holds_no_whole_call(name: str, unit: str) -> None:
    action = check(PROTOCOLS[name], unit * (40_000 // len(unit)), FinishReason.STOP)
    assert all(call.error is not None for call in action.calls)


@pytest.mark.parametrize("name", ["tagged_text", "tagged_json", "openai_tools"])
@given(query=st.text(st.characters(exclude_categories=["Cs"])), top_k=st.integers(-9, 9))
@settings(max_examples=100, deadline=None)
def test_format_call_round_trips_any_text(name: str, query: str, top_k: int) -> None:
    protocol = PROTOCOLS[name]
    arguments = {"query": query, "top_k": top_k}
    action = protocol.parse(protocol.format_call("search", arguments), TOOLS)
    assert [call.arguments for call in action.calls] == [arguments]
    assert checked_arguments(TOOLS[0], action.calls[0].arguments) == arguments


@given(code=st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=100, deadline=None)
def test_python_block_round_trips_any_code(code: str) -> None:
    protocol = PROTOCOLS["python_block"]
    action = protocol.parse(protocol.format_call("python", {"code": code}), TOOLS)
    assert [call.arguments for call in action.calls] == [{"code": code}]


def test_every_name_is_one_object_for_training_evaluation_and_cli_c12() -> None:
    assert sorted(PROTOCOLS) == [
        "openai_tools",
        "plain",
        "python_block",
        "tagged_json",
        "tagged_text",
    ]
    for name, protocol in PROTOCOLS.items():
        assert isinstance(protocol, ActionProtocol)
        assert protocol.id == name
        assert get_protocol(name) is protocol


def test_unknown_protocol_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown protocol 'taged_text' \(did you mean 'tagged_text'\?\)"
    ):
        get_protocol("taged_text")


def test_result_text_of_values() -> None:
    assert result_text("a\n") == "a\n"
    assert result_text(None) == ""
    assert result_text([1, {"a": None}]) == '[1,{"a":null}]'
    assert result_text(True) == "true"
