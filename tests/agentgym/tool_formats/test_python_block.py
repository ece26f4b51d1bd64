"""Python blocks."""

import pytest

from agentgym.errors import EnvError
from agentgym.records import FinishReason, ToolResult
from agentgym.tool_formats.python_block import PythonBlock
from agentgym.tool_formats.tools import make_tool

PROTOCOL = PythonBlock()


def python(source: str) -> str:
    """Run Python."""
    return source


TOOLS = (make_tool(python),)


def codes(text: str) -> list[object]:
    return [call.arguments.get("source") for call in PROTOCOL.parse(text, TOOLS).calls]


def test_parse_reads_block_for_the_tools_own_argument() -> None:
    action = PROTOCOL.parse("First:\n```python\nx = 1\nprint(x)\n```\nDone.", TOOLS)
    assert [(c.name, c.arguments) for c in action.calls] == [
        ("python", {"source": "x = 1\nprint(x)"})
    ]


def test_parse_keeps_backticks_inside_code_c1() -> None:
    assert codes("```python\nprint('```')\n```") == ["print('```')"]


def test_parse_reads_several_blocks_in_order_c2() -> None:
    assert codes("```python\na\n```\n```py\nb\n```") == ["a", "b"]


def test_parse_ignores_other_languages() -> None:
    action = PROTOCOL.parse("```bash\nls\n```\n<answer>4</answer>", TOOLS)
    assert (action.calls, action.answer) == ((), "4")


def test_answer_tag_inside_code_is_code() -> None:
    action = PROTOCOL.parse("```python\nprint('<answer>1</answer>')\n```", TOOLS)
    assert (len(action.calls), action.answer) == (1, None)


def test_open_block_is_an_error_c11() -> None:
    action = PROTOCOL.parse("```python\nprint(1)", TOOLS)
    assert action.calls[0].error is not None
    assert "not closed" in action.calls[0].error


def test_block_in_think_is_counted_c3() -> None:
    action = PROTOCOL.parse("<think>\n```python\n1\n```\n</think><answer>1</answer>", TOOLS)
    assert (action.calls, action.calls_in_think, action.answer) == ((), 1, "1")


def test_cut_off_block_is_not_run_c4() -> None:
    action = PROTOCOL.parse("```python\nprint(1)\n```", TOOLS, finish_reason=FinishReason.LENGTH)
    assert (action.calls, action.is_truncated) == ((), True)


@pytest.mark.parametrize("code", ["print(1)", "", "a\n```\nb", "x = '````'\n", "\n\n", "a\r\nb\r"])
def test_format_call_round_trips(code: str) -> None:
    assert codes(PROTOCOL.format_call("python", {"source": code})) == [code]


def test_format_call_refuses_other_tools() -> None:
    with pytest.raises(EnvError, match=r"calls 'python' .*got 'bash'"):
        PROTOCOL.format_call("bash", {"code": "ls"})


def test_format_results_fences_longer_than_the_output() -> None:
    text = PROTOCOL.format_results((ToolResult(call_id="a", text="```"),))
    assert text == "````output\n```\n````"
