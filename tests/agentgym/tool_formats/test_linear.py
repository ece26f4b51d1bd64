"""Class: *search to the end for each opening*. Counted in characters looked at, not in seconds;
`tests/attack/test_parsers.py` has the times.
"""

from __future__ import annotations

import pytest

from agentgym.records import ToolCall
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.json_calls import JsonError, JsonText, read_json
from agentgym.tool_formats.openai_tools import message_of
from agentgym.tool_formats.table import PROTOCOLS
from agentgym.tool_formats.tag_scanner import Source
from agentgym.tool_formats.tools import make_tool


def search(query: str, top_k: int = 3) -> str:
    """Search."""
    return query


TOOLS = (make_tool(search),)


def test_f33_closing_that_lacks_is_looked_for_once() -> None:
    source = Source("<a>" * 1000)
    assert [source.find("</a>", position) for position in range(0, 3000, 3)] == [-1] * 1000
    assert source.searched == 3000


def test_f33_closing_far_ahead_is_looked_for_once() -> None:
    source = Source("<a>" * 1000 + "</a>" + "<a></a>")
    found = [source.find("</a>", position) for position in range(0, 3000, 3)]
    assert set(found) == {3000}
    assert source.find("</a>", 3001) == 3007
    assert source.find("</a>", 0) == 3000  # a look back is a search of its own
    assert source.searched == 3000 + 6 + 3000


def test_f33_json_errors_do_not_count_the_lines_before_them() -> None:
    text = JsonText("\n" * 50 + "[x")
    with pytest.raises(JsonError, match="Expecting value at character 1") as caught:
        read_json(text, 50)
    assert caught.value.position == 51
    assert (text.count("\n"), text.rfind("\n")) == (0, -1)


def test_f33_text_of_a_list_of_calls_is_kept_once() -> None:
    one = '{"name":"search","arguments":{"query":"x"}}'
    for protocol, text in (
        ("tagged_json", f"<tool_call>[{one},{one},{one}]</tool_call>"),
        ("openai_tools", f"[{one},{one},{one}]"),
    ):
        action = PROTOCOLS[protocol].parse(text, TOOLS)
        assert [call.raw for call in action.calls] == [text, "", ""]
    before = ParsedAction(calls=(ToolCall(id="a", name="f", raw=""),))
    assert message_of("so", before)["content"] == ""


def test_f33_braces_in_vain_do_not_hide_a_call() -> None:
    call = '{"name":"search","arguments":{"query":"x"}}'
    action = PROTOCOLS["openai_tools"].parse("{ " * 300 + call, TOOLS)
    assert [dict(call.arguments) for call in action.calls] == [{"query": "x"}]


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
@pytest.mark.parametrize(
    "text",
    [
        "<search>" * 20_000,
        "<think>" + "<search>" * 20_000 + "</think>",
        "<answer>" * 20_000,
        "<tool_call>" * 20_000,
        "<tool_call>[" * 20_000,
        "<tool_call>" + "\n" * 100_000,
        "{\n" * 50_000,
        '{"a":[1,' * 20_000,
        "<search><query>x</query>" + "<a></a>" * 20_000 + "</search>",
        "</think>" * 20_000,
    ],
)
def test_f33_hostile_text_gives_few_items(name: str, text: str) -> None:
    # A mistake is told once, not ten thousand times.
    action = PROTOCOLS[name].parse(text, TOOLS)
    assert len(action.calls) <= 1
    assert len(action.spans) <= 4
