"""Python blocks: a block fenced as ```` ```python ```` runs the tool named `python`.

The answer is `<answer>42</answer>`. A block ends with a line of at least as many backticks as it
began with, so code may hold shorter fences. Results are read with the role `user`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.errors import EnvError
from agentgym.records import FinishReason, Json, ToolCall, ToolResult
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.tag_scanner import (
    Item,
    Source,
    answer_items,
    assemble,
    escape_tags,
    is_cut_off,
    scan,
    truncated,
)

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool

TOOL = "python"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
NOT_CLOSED = "The python block was not closed with a line ```; nothing was executed."

_OPENINGS = re.compile(r"(?<!`)(?P<fence>`{3,}+)(?:python|py|Python)[ \t]*\r?\n|<answer>")
_FENCE_LINE = re.compile(r"^[ \t]*(`{3,})[ \t]*\r?$", re.M)
_BACKTICKS = re.compile("`+")
_SHORTEST_FENCE = 3


@dataclass(frozen=True, slots=True)
class PythonBlock:
    """Calls as fenced blocks of code."""

    id: str = "python_block"
    stop: tuple[str, ...] = ()
    result_role: str = "user"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return how to run code and how to answer."""
        answer = f"Give your final answer as {ANSWER_OPEN}...{ANSWER_CLOSE}."
        about = [" ".join(tool.description.split()) for tool in tools if tool.name == TOOL]
        if not about:
            return answer
        lines = [
            *filter(None, about),
            "Run Python code by writing it as",
            "```python",
            "...",
            "```",
        ]
        return "\n".join([*lines, answer])

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the blocks and the answer in `text`. Never raises, whatever the text is."""
        if is_cut_off(finish_reason):
            return truncated(text)
        argument = next(
            (name for t in tools if t.name == TOOL for name in t.parameter_names), "code"
        )

        def read(source: Source, match: re.Match[str]) -> Sequence[Item]:
            if match["fence"] is None:
                return answer_items(source, match, ANSWER_CLOSE)
            return (_block(source.text, match, argument),)

        return assemble(*scan(Source(text), _OPENINGS, read))

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the block of one call.

        Raises:
            EnvError: If the tool is another one: this protocol can write no other call.
        """
        if name != TOOL or len(arguments) != 1:
            raise EnvError(f"a python block calls {TOOL!r} with one argument (got {name!r})")
        code = str(next(iter(arguments.values())))
        longest = max((len(run) for run in _BACKTICKS.findall(code)), default=0)
        fence = "`" * max(_SHORTEST_FENCE, longest + 1)
        return f"{fence}python\n{code}\n{fence}"

    def format_answer(self, answer: str) -> str:
        """Return the text of a final answer; `parse` strips it."""
        return f"{ANSWER_OPEN}{escape_tags(answer, ANSWER_CLOSE)}{ANSWER_CLOSE}"

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return each output as a fenced block, in order."""
        return "\n".join(_output(result.text) for result in results)


def _block(text: str, match: re.Match[str], argument: str) -> Item:
    start = match.end()
    for line in _FENCE_LINE.finditer(text, start):
        if len(line[1]) < len(match["fence"]):
            continue
        # The line feed before the fence belongs to the fence.
        inner_stop = max(line.start() - 1, start)
        call = ToolCall(
            id="",
            name=TOOL,
            arguments={argument: text[start:inner_stop]},
            raw=text[match.start() : line.end()],
        )
        return Item(
            start=match.start(),
            inner_start=start,
            inner_stop=inner_stop,
            stop=line.end(),
            call=call,
        )
    call = ToolCall(id="", name=TOOL, raw=text[match.start() :], error=NOT_CLOSED)
    end = len(text)
    return Item(start=match.start(), inner_start=start, inner_stop=end, stop=end, call=call)


def _output(text: str) -> str:
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    return f"{fence}output\n{text}\n{fence}"
