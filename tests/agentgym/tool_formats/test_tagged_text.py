"""Tagged text: bare arguments, elements, types by the schema."""

from enum import StrEnum
from typing import Literal

import pytest

from agentgym.errors import ToolError
from agentgym.records import FinishReason, Json, ToolResult
from agentgym.tool_formats.tagged_text import TaggedText
from agentgym.tool_formats.tools import checked_arguments, make_tool

PROTOCOL = TaggedText()


class Unit(StrEnum):
    METRE = "m"
    MILE = "1"


def search(query: str) -> str:
    """Look something up."""
    return query


def person(
    zip: str,
    age: int = 0,
    note: str | None = None,
    ok: bool = False,
    unit: Unit = Unit.METRE,
    mode: Literal["1", "b"] = "b",
    sizes: list[int] | None = None,
) -> str:
    """Describe a person."""
    return ""


def now() -> str:
    """Tell the time."""
    return ""


SEARCH, PERSON, NOW = make_tool(search), make_tool(person), make_tool(now)
TOOLS = (SEARCH, PERSON, NOW)


def only_call(text: str) -> tuple[str, dict[str, Json]]:
    action = PROTOCOL.parse(text, TOOLS)
    assert len(action.calls) == 1
    assert action.calls[0].error is None
    return action.calls[0].name, dict(action.calls[0].arguments)


def test_parse_reads_bare_argument() -> None:
    assert only_call("I look. <search>who <b>wrote</b> it</search>") == (
        "search",
        {"query": "who <b>wrote</b> it"},
    )


def test_parse_reads_values_by_schema_c7() -> None:
    text = (
        "<person><zip>03106</zip><age>32</age><note>null</note><unit>1</unit><mode>1</mode>"
        "<sizes>[1, 2]</sizes></person>"
    )
    name, arguments = only_call(text)
    assert name == "person"
    assert arguments == {
        "zip": "03106",  # not 3106
        "age": 32,
        "note": "null",  # not None
        "unit": "1",  # an enum of strings
        "mode": "1",
        "sizes": [1, 2],
    }
    assert checked_arguments(PERSON, arguments)["unit"] is Unit.MILE


def test_boolean_that_is_none_is_an_error_c7() -> None:
    _, arguments = only_call("<person><zip>1</zip><ok>maybe</ok></person>")
    with pytest.raises(ToolError, match=r"'ok' must be a boolean, true or false \(got 'maybe'\)"):
        checked_arguments(PERSON, arguments)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "[1e999]"])
def test_number_that_cannot_be_stored_stays_text(value: str) -> None:
    text = f"<search><query>who</query><top_k>{value}</top_k></search>"
    (call,) = PROTOCOL.parse(text, TOOLS).calls
    assert call.arguments["top_k"] == value


def test_uncoercible_argument_keeps_the_call_c6() -> None:
    _, arguments = only_call("<person><zip>1</zip><age>2026-01-15</age></person>")
    with pytest.raises(ToolError, match=r"'age' must be an integer \(got '2026-01-15'\)"):
        checked_arguments(PERSON, arguments)


def test_parse_reads_calls_without_arguments() -> None:
    assert only_call("<now></now>") == ("now", {})
    assert only_call("<now> \n</now>") == ("now", {})


def test_parse_reads_first_argument_bare_where_there_are_several() -> None:
    assert only_call("<person>03106</person>") == ("person", {"zip": "03106"})


def test_parse_reports_text_between_elements() -> None:
    action = PROTOCOL.parse("<person><zip>1</zip> and <age>3</age></person>", TOOLS)
    assert action.calls[0].error is not None
    assert "<zip>...</zip>" in action.calls[0].error


def test_unknown_element_is_a_call_of_an_unknown_tool_c10() -> None:
    action = PROTOCOL.parse("<serch>who</serch>", TOOLS)
    assert [call.name for call in action.calls] == ["serch"]


def test_unknown_element_beside_a_known_one_is_text() -> None:
    assert only_call("<b>so</b> <search>x</search>") == ("search", {"query": "x"})


def test_call_that_stays_open_is_a_format_error_c11() -> None:
    action = PROTOCOL.parse("<search>TODO\nLet me search.", TOOLS)
    assert (action.calls, action.answer) == ((), None)
    assert action.error is not None
    assert "</search>" in action.error


def test_tag_in_prose_does_not_hide_the_answer() -> None:
    action = PROTOCOL.parse("I need no <search> here. <answer>42</answer>", TOOLS)
    assert (action.answer, action.error) == ("42", None)


def test_several_calls_in_order_c2() -> None:
    action = PROTOCOL.parse("<search>a</search> <search>b</search>", TOOLS)
    assert [call.arguments for call in action.calls] == [{"query": "a"}, {"query": "b"}]


def test_calls_in_think_block_are_counted_c3() -> None:
    action = PROTOCOL.parse("<think>x <search>a</search></think>done", TOOLS)
    assert (action.calls, action.calls_in_think, action.answer) == ((), 1, None)
    assert len(PROTOCOL.parse("<think>x</think><search>a</search>", TOOLS).calls) == 1


def test_cut_off_turn_executes_nothing_c4() -> None:
    action = PROTOCOL.parse("<search>a</search>", TOOLS, finish_reason=FinishReason.LENGTH)
    assert (action.calls, action.is_truncated) == ((), True)


@pytest.mark.parametrize(
    "query",
    [
        "who",
        " spaces kept ",
        "see </search> here",
        r"<\/search> and <\\/search>",
        "\nboth ends\n",
        "\n",
        "<query>nested</query>",
        "</query> x",
        "<think>",
        "null",
        "",
    ],
)
def test_format_call_round_trips_text_c1(query: str) -> None:
    assert only_call(PROTOCOL.format_call("search", {"query": query})) == (
        "search",
        {"query": query},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"zip": "03106", "age": 32, "ok": True, "note": "null", "sizes": [1, 2]},
        {"zip": "</person>", "note": "</note></person><zip>", "age": -1},
        {"zip": "\n", "note": r"<\/zip>"},
        {"zip": "x"},
    ],
)
def test_format_call_round_trips_elements(arguments: dict[str, Json]) -> None:
    assert only_call(PROTOCOL.format_call("person", arguments)) == ("person", arguments)


@pytest.mark.parametrize("answer", ["42", "", "a </answer> b", r"<\/answer>", "<search>x</search>"])
def test_format_answer_round_trips(answer: str) -> None:
    assert PROTOCOL.parse(PROTOCOL.format_answer(answer), TOOLS).answer == answer


def test_format_results_shows_one_bare_and_several_in_order_c2() -> None:
    one, two = ToolResult(call_id="a", text="1"), ToolResult(call_id="b", text="2")
    assert PROTOCOL.format_results((one,)) == "1"
    assert PROTOCOL.format_results((one, two)) == "<result>1</result>\n<result>2</result>"


def test_instructions_show_each_form() -> None:
    text = PROTOCOL.instructions((SEARCH, NOW))
    assert "<search>query</search> Look something up." in text
    assert "<now></now> Tell the time." in text
    assert "<answer>...</answer>" in text
