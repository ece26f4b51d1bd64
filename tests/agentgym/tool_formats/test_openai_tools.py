"""OpenAI's form: text, messages, and what is an answer."""

import jinja2
import pytest

from agentgym.records import FinishReason, Json, ToolResult
from agentgym.tool_formats.openai_tools import OpenAITools, message_of, text_of_message

PROTOCOL = OpenAITools()
ONE = '{"id":"x1","type":"function","function":{"name":"f","arguments":"{\\"a\\": 3}"}}'


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_calls":[' + ONE + "]}",
        ONE,
        "[" + ONE + "]",
        "I call: " + ONE + " now.",
        '{"name":"f","arguments":{"a":3}}',
        '{"name":"f","parameters":{"a":3}}',
    ],
)
def test_parse_reads_each_form_c8(text: str) -> None:
    calls = PROTOCOL.parse(text, ()).calls
    assert [(call.name, call.arguments, call.error) for call in calls] == [("f", {"a": 3}, None)]


def test_parse_keeps_given_ids_and_makes_them_unique() -> None:
    calls = PROTOCOL.parse('{"tool_calls":[' + ONE + "," + ONE + "]}", ()).calls
    assert [call.id for call in calls] == ["x1", "call_1_x1"]


def test_text_without_call_is_the_answer() -> None:
    action = PROTOCOL.parse("<think>hm</think>\n It is {4}. \n", ())
    assert (action.calls, action.answer) == ((), "It is {4}.")


@pytest.mark.parametrize("answer", ['{"x": 1}', "[1, 2]", '{"name": "Bob"}', "a {b} [c"])
def test_json_that_is_no_call_is_an_answer(answer: str) -> None:
    assert PROTOCOL.parse(PROTOCOL.format_answer(answer), ()).answer == answer


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_calls": [{"type": "function"',
        '{"name": "grep", "arguments": {"pattern": "TO',
        '{"id": "a", "type": "function", "function": {',
    ],
)
def test_broken_call_is_never_an_answer_c11(text: str) -> None:
    action = PROTOCOL.parse(text, ())
    assert action.answer is None
    assert action.calls[0].error is not None


def test_empty_turn_is_a_format_error() -> None:
    action = PROTOCOL.parse("<think>x</think> \n", ())
    assert (action.calls, action.answer) == ((), None)
    assert action.error is not None


def test_calls_in_think_are_counted_c3() -> None:
    action = PROTOCOL.parse(f"<think>{ONE}</think>done", ())
    assert (action.calls, action.calls_in_think, action.answer) == ((), 1, "done")


def test_cut_off_turn_executes_nothing_c4() -> None:
    action = PROTOCOL.parse(ONE, (), finish_reason=FinishReason.LENGTH)
    assert (action.calls, action.answer, action.is_truncated) == ((), None, True)


@pytest.mark.parametrize("arguments", [{}, {"a": "}]"}, {"a": {"b": [1, "é", None]}}])
def test_format_call_round_trips(arguments: dict[str, Json]) -> None:
    calls = PROTOCOL.parse(PROTOCOL.format_call("f", arguments), ()).calls
    assert [(call.name, call.arguments) for call in calls] == [("f", arguments)]


def test_message_renders_with_template_that_needs_a_mapping_c8() -> None:
    template = jinja2.Template(
        "{% for c in message.tool_calls %}{% for k, v in c.function.arguments.items() %}"
        "{{ c.function.name }}.{{ k }}={{ v }}{% endfor %}{% endfor %}"
    )
    text = "So: " + ONE
    message = message_of(text, PROTOCOL.parse(text, ()))
    assert message["content"] == "So:"
    assert template.render(message=message) == "f.a=3"


def test_message_of_a_server_reads_back_as_text() -> None:
    function = {"name": "f", "arguments": '{"a": 3}'}
    message = {
        "content": "Hm.",
        "tool_calls": [{"id": "x", "type": "function", "function": function}],
    }
    calls = PROTOCOL.parse(text_of_message(message), ()).calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [("x", "f", {"a": 3})]
    assert text_of_message({"content": "done", "tool_calls": None}) == "done"


def test_format_results_keeps_order_and_ids_c2() -> None:
    one, two = ToolResult(call_id="a", text="1"), ToolResult(call_id="b", text="2")
    assert PROTOCOL.format_results((one,)) == "1"
    assert PROTOCOL.format_results((one, two)) == (
        '[{"tool_call_id": "a", "content": "1"}, {"tool_call_id": "b", "content": "2"}]'
    )
