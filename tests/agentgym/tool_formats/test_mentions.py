"""Class: *mention taken for use*, and its opposite: a clumsy call that is one all the same.

Each row is a text of a kind that models write, with what it says.
"""

from __future__ import annotations

import pytest

from agentgym.records import Json
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.table import PROTOCOLS
from agentgym.tool_formats.tools import make_tool


def calculator(expression: str) -> str:
    """Compute."""
    return expression


def search(query: str, top_k: int = 3) -> str:
    """Search."""
    return query


TOOLS = (make_tool(calculator), make_tool(search))
CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
FORM = '{"tool_calls": [{"type": "function", "function": {"name": "...", "arguments": {...}}}]}'


def parse(protocol: str, text: str) -> ParsedAction:
    return PROTOCOLS[protocol].parse(text, TOOLS)


def calls(action: ParsedAction) -> list[dict[str, Json]]:
    return [dict(call.arguments) for call in action.calls]


@pytest.mark.parametrize(
    "text",
    [
        "I put it between <calculator> tags.",
        "Put it between <calculator> and </calculator>.",
        "Put it between `<calculator>` and `</calculator>` tags.",
        'Wrap it in "<calculator>" and "</calculator>", then wait.',
        "The form is <calculator>...</calculator>.",
        "Either <calculator> or <search> would do.",
        "The <calculator> tool is not needed here",
        "* use <search>",
        "Give it in <answer> tags",
        "I end with <answer>...</answer>",
        "`<answer>` comes last.",
        "The <b>sum</b> of <em>both</em> is 7.",
        "<reasoning>3 and 4</reasoning> make 7.",
    ],
)
def test_f31_mention_in_tagged_text_says_nothing(text: str) -> None:
    action = parse("tagged_text", text)
    assert (action.calls, action.answer, action.error) == ((), None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I use <calculator> now. <calculator>1+1</calculator>", "1+1"),
        ("Between <calculator> and </calculator>: <calculator>1+1</calculator>", "1+1"),
        ("`<calculator>` it is: <calculator>1+1</calculator>", "1+1"),
        ("`<calculator>1+1</calculator>`", "1+1"),
        ('"<calculator>1+1</calculator>"', "1+1"),
        ("```xml\n<calculator>1+1</calculator>\n```", "1+1"),
        ("<calculator> 1+1 </calculator>", " 1+1 "),
        ("<calculator>\n1+1\n</calculator>", "1+1"),
        ("so <calculator>1+1</calculator> is it", "1+1"),
        ("<calculator>1+<calculator>1+1</calculator>", "1+1"),
        ("<calculator>and</calculator>", "and"),
    ],
)
def test_f31_clumsy_call_in_tagged_text_is_a_call(text: str, expected: str) -> None:
    assert calls(parse("tagged_text", text)) == [{"expression": expected}]


@pytest.mark.parametrize("protocol", ["tagged_text", "tagged_json", "python_block"])
@pytest.mark.parametrize(
    "text",
    [
        "I answer in <answer> tags: <answer>42</answer>",
        "No <tool_call> and no <calculator> is needed. <answer>42</answer>",
        "Between <answer> and </answer>: <answer>42</answer>",
        "As <answer>...</answer> asks: <answer>42</answer>",
        "<answer>42</answer> (no more <search> or <tool_call>)",
        "<answer> 42 </answer>",
    ],
)
def test_f31_answer_beside_mentions_is_taken(protocol: str, text: str) -> None:
    action = parse(protocol, text)
    assert (action.answer, action.calls, action.error) == ("42", (), None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<calculator>1+1", "not closed with </calculator>"),
        ("I compute.\n<calculator> 1+1", "not closed with </calculator>"),
        ("<think>so</think> <calculator> 1+1", "not closed with </calculator>"),
        ("I compute <calculator>1+1", "not closed with </calculator>"),
        ("The answer is <answer>42", "not closed with </answer>"),
        ("In <calculator> tags:\n<calculator>1+1", "not closed with </calculator>"),
    ],
)
def test_f31_call_that_was_not_closed_is_told(text: str, error: str) -> None:
    action = parse("tagged_text", text)
    assert (action.calls, action.answer) == ((), None)
    assert error in (action.error or "")


@pytest.mark.parametrize(
    "text",
    [
        "I would write <tool_call> tags.",
        "Between <tool_call> and </tool_call>.",
        "`<tool_call>` is not needed.",
        '<tool_call>{"name": "...", "arguments": {...}}</tool_call>',
        "<tool_call>...</tool_call>",
        "<tool_call>{...}</tool_call>",
    ],
)
def test_f31_mention_in_tagged_json_says_nothing(text: str) -> None:
    action = parse("tagged_json", text)
    assert (action.calls, action.answer, action.error) == ((), None, None)
    assert calls(parse("tagged_json", f"{text}\n{CALL}")) == [{"query": "x"}]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>search('x')</tool_call>",
        '<tool_call>{"name": "search", "arguments": {"query": "x"</tool_call>',
        "<tool_call>\nname: search\n</tool_call>",
        "I search: <tool_call>search x",
        "<tool_call>\nsearch x",
    ],
)
def test_f31_broken_call_in_tagged_json_stays_a_call(text: str) -> None:
    (call,) = parse("tagged_json", text).calls
    assert "bad call" in (call.error or "")


@pytest.mark.parametrize("text", [f"I call with {FORM}", 'as {"name": "f", "arguments": {...}}'])
def test_f31_form_of_a_call_is_no_broken_call(text: str) -> None:
    assert parse("openai_tools", text).calls == ()


@pytest.mark.parametrize("query", ["<search>", "a <search> b", r"<\search>", "</search><search>"])
def test_f31_content_that_names_its_own_tag_round_trips(query: str) -> None:
    protocol = PROTOCOLS["tagged_text"]
    for arguments in ({"query": query}, {"query": query, "top_k": 2}):
        assert calls(protocol.parse(protocol.format_call("search", arguments), TOOLS)) == [
            arguments
        ]


@pytest.mark.parametrize("protocol", ["tagged_text", "tagged_json", "python_block"])
@pytest.mark.parametrize("answer", ["<answer>", "a <answer>b</answer>", r"<\answer>"])
def test_f31_answer_that_names_its_own_tag_round_trips(protocol: str, answer: str) -> None:
    text = PROTOCOLS[protocol].format_answer(answer)
    assert parse(protocol, text).answer == answer
