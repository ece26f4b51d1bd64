"""Tagged JSON, with the values of pitfalls C."""

import json

import pytest

from agentgym.records import FinishReason, Json, SpanKind, ToolResult
from agentgym.tool_formats.tagged_json import TaggedJson
from agentgym.tool_formats.tools import Tool, make_tool

PROTOCOL = TaggedJson()


def search(query: str, top_k: int = 3) -> str:
    """Search the corpus.

    Args:
        query: Words to look for.
        top_k: Number of results.
    """
    return f"{query}:{top_k}"


TOOLS: tuple[Tool, ...] = (make_tool(search),)


def block(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>'


def test_parse_keeps_closing_tag_inside_string_c1() -> None:
    text = '<tool_call>{"name":"write","arguments":{"text":"see </tool_call> here"}}</tool_call>'
    action = PROTOCOL.parse(text, TOOLS)
    assert [call.arguments for call in action.calls] == [{"text": "see </tool_call> here"}]
    assert action.calls[0].raw == text


def test_parse_gives_several_calls_in_order_c2() -> None:
    action = PROTOCOL.parse(block("f", '{"a":1}') + "\n" + block("f", '{"a":2}'), TOOLS)
    assert [(call.id, call.arguments) for call in action.calls] == [
        ("call_0", {"a": 1}),
        ("call_1", {"a": 2}),
    ]
    assert action.error is None


def test_parse_counts_calls_in_closed_think_block_c3() -> None:
    inside = '<think>x <tool_call>{"name":"f","arguments":{}}</tool_call></think>done'
    action = PROTOCOL.parse(inside, TOOLS)
    assert (len(action.calls), action.calls_in_think) == (0, 1)
    behind = '<think>x </think><tool_call>{"name":"f","arguments":{}}</tool_call>done'
    action = PROTOCOL.parse(behind, TOOLS)
    assert (len(action.calls), action.calls_in_think) == (1, 0)


def test_parse_takes_text_before_lone_think_end_as_thinking_c3() -> None:
    # A chat template that puts <think> into the prompt leaves only the end in the completion.
    action = PROTOCOL.parse(block("f", "{}") + "</think>" + block("g", "{}"), TOOLS)
    assert [call.name for call in action.calls] == ["g"]
    assert action.calls_in_think == 1
    assert [span.start for span in action.spans if span.kind is SpanKind.THINK] == [0]


def test_parse_executes_nothing_of_a_think_block_that_stays_open_c3() -> None:
    action = PROTOCOL.parse("<think>maybe " + block("f", "{}"), TOOLS)
    assert action.calls == ()
    assert action.error is not None
    assert "</think>" in action.error


def test_parse_ignores_think_tags_inside_arguments_c1() -> None:
    action = PROTOCOL.parse(block("f", '{"text":"<think> and </think>"}'), TOOLS)
    assert [call.arguments for call in action.calls] == [{"text": "<think> and </think>"}]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name":"run","arguments":{"code":"print(1',  # C4
        '<tool_call>{"name":"run","arguments":{"commands": ["npm install", "npm test"',  # C5
        '<tool_call>{"name":"run","arguments":{}}</tool_call> and then',  # whole, but cut off later
    ],
)
def test_parse_executes_nothing_of_a_cut_off_turn_c4_c5(text: str) -> None:
    action = PROTOCOL.parse(text, TOOLS, finish_reason=FinishReason.LENGTH)
    assert action.calls == ()
    assert action.answer is None
    assert action.is_truncated


@pytest.mark.parametrize("arguments", ['{"a": 3}', r'"{\"a\": 3}"'])
def test_parse_reads_arguments_given_as_json_text_c8(arguments: str) -> None:
    action = PROTOCOL.parse(block("f", arguments), TOOLS)
    assert [call.arguments for call in action.calls] == [{"a": 3}]
    assert action.calls[0].error is None


def test_parse_accepts_raw_line_feed_in_string_c9() -> None:
    action = PROTOCOL.parse(block("f", '{"text":"line1\nline2"}'), TOOLS)
    assert [call.arguments for call in action.calls] == [{"text": "line1\nline2"}]


def test_parse_recovers_complete_call_without_closing_tag_c11() -> None:
    text = '<tool_call>{"name":"grep","arguments":{"pattern":"TODO"}}\nLet me search.'
    action = PROTOCOL.parse(text, TOOLS)
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [
        ("grep", {"pattern": "TODO"}, None)
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('{"name":"f","arguments":{"a":', "not JSON"),
        ('{"name":"f","arguments":[1]}', "'arguments' must be an object"),
        ('{"name":"f","arguments":"[1]"}', "'arguments' must be an object"),
        ('{"name":"f","arguments":"{"}', "is not JSON"),
        ('{"name":"f","arguments":"{} {}"}', "one JSON object"),
        ('{"arguments":{}}', "'name'"),
        ('{"name":7,"arguments":{}}', "'name'"),
        ("[]", "object"),
        ('"f"', "object"),
        ('{"name":"f","arguments":{"a":NaN}}', "NaN"),
        ('{"name":"f","arguments":{"a":1e999}}', "too large"),
        ('{"name":"f","arguments":' + "[" * 200 + "]" * 200 + "}", "nested too deeply"),
        ('{"name":"f","arguments":' + "[" * 100_000, "not JSON"),
        ("", "not JSON"),
    ],
)
def test_parse_turns_bad_call_into_call_with_error_c11(body: str, problem: str) -> None:
    action = PROTOCOL.parse(f"<tool_call>{body}</tool_call>", TOOLS)
    assert len(action.calls) == 1
    assert action.calls[0].error is not None
    assert problem in action.calls[0].error
    assert action.answer is None


def test_parse_goes_on_behind_a_bad_call() -> None:
    action = PROTOCOL.parse("<tool_call>{oops}</tool_call>" + block("f", '{"a":1}'), TOOLS)
    assert [call.error is None for call in action.calls] == [False, True]


def test_parse_reads_several_objects_between_one_pair_of_tags() -> None:
    one, two = '{"name":"f","arguments":{"a":1}}', '{"name":"g","parameters":{"b":2}}'
    for body in (f"{one}\n{two}", f"[{one},{two}]"):
        action = PROTOCOL.parse(f"<tool_call>{body}</tool_call>", TOOLS)
        assert [(call.name, call.arguments) for call in action.calls] == [
            ("f", {"a": 1}),
            ("g", {"b": 2}),
        ]


def test_parse_takes_what_is_written_first() -> None:
    call_first = PROTOCOL.parse(block("f", "{}") + "<answer>4</answer>", TOOLS)
    assert (len(call_first.calls), call_first.answer) == (1, None)
    assert call_first.error is not None
    assert "before the results" in call_first.error
    answer_first = PROTOCOL.parse("<answer>4</answer>" + block("f", "{}"), TOOLS)
    assert (len(answer_first.calls), answer_first.answer) == (0, "4")


def test_parse_gives_spans_by_character_offset() -> None:
    # 0         1         2         3
    # 0123456789012345678901234567890123456
    # <think>hm</think><answer> 42</answer>
    text = "<think>hm</think><answer> 42</answer>"
    found = [(span.kind, text[span.start : span.stop]) for span in PROTOCOL.parse(text, ()).spans]
    assert found == [
        (SpanKind.THINK, "<think>hm</think>"),
        (SpanKind.FORMAT, "<answer>"),
        (SpanKind.ANSWER, " 42"),
        (SpanKind.FORMAT, "</answer>"),
    ]


def test_parse_gives_action_spans_with_call_ids() -> None:
    text = block("f", "{}")
    spans = PROTOCOL.parse(text, ()).spans
    assert [(s.kind, s.ref, text[s.start : s.stop]) for s in spans] == [
        (SpanKind.FORMAT, "call_0", "<tool_call>"),
        (SpanKind.ACTION, "call_0", '{"name":"f","arguments":{}}'),
        (SpanKind.FORMAT, "call_0", "</tool_call>"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"a": "</tool_call>"}, {"a": [1, None, {"b": "é\n\"'"}], "c": 1.5}, {"ключ": True}],
)
def test_format_call_round_trips(arguments: dict[str, Json]) -> None:
    action = PROTOCOL.parse(PROTOCOL.format_call("f", arguments), ())
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [
        ("f", arguments, None)
    ]


@pytest.mark.parametrize(
    "answer", ["42", "", "a </answer> b", r"a <\/answer> b", "<think>", "x\ny"]
)
def test_format_answer_round_trips(answer: str) -> None:
    assert PROTOCOL.parse(PROTOCOL.format_answer(answer), ()).answer == answer


def test_instructions_hold_the_schema() -> None:
    text = PROTOCOL.instructions(TOOLS)
    line = next(line for line in text.splitlines() if line.startswith('{"name": "search"'))
    schema = json.loads(line)
    assert schema["description"] == "Search the corpus."
    assert schema["parameters"]["properties"]["query"] == {
        "type": "string",
        "description": "Words to look for.",
    }
    assert schema["parameters"]["required"] == ["query"]


def test_format_results_keeps_order_c2() -> None:
    results = (ToolResult(call_id="call_0", text="one"), ToolResult(call_id="call_1", text="two"))
    assert PROTOCOL.format_results(results) == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )
