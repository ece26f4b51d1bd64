"""Tagged JSON: `<tool_call>{"name": "search", "arguments": {"query": "who"}}</tool_call>`.

The answer is `<answer>42</answer>`. The JSON is read from the opening tag by a scanner, so that a
closing tag inside a string is text; a missing closing tag is forgiven where the object is complete.
Results are `<tool_response>` elements with the role `user`: what templates that know the role
`tool` make of it, and readable under those that do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.records import FinishReason, Json, ToolCall, ToolResult
from agentgym.tool_formats import mentions
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.json_calls import JsonError, call_of, read_json, schemas, written_json
from agentgym.tool_formats.tag_scanner import (
    Item,
    Source,
    answer_items,
    assemble,
    escape_tags,
    is_cut_off,
    read_element,
    scan,
    truncated,
)

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
FORM = f'{CALL_OPEN}{{"name": "...", "arguments": {{...}}}}{CALL_CLOSE}'

_OPENINGS = re.compile(f"{CALL_OPEN}|{ANSWER_OPEN}")
_NOT_BLANK = re.compile(r"\S")
_BEGINS_JSON = re.compile(r"\s*[{\[]")


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """Calls as JSON objects between tags."""

    id: str = "tagged_json"
    stop: tuple[str, ...] = ()
    result_role: str = "user"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the tools' schemas, and how to call and to answer."""
        answer = f"Give your final answer as {ANSWER_OPEN}...{ANSWER_CLOSE}."
        if not tools:
            return answer
        listed = "\n".join(written_json(schema["function"]) for schema in schemas(tools))
        return f"You can call these tools:\n{listed}\nCall one with {FORM}.\n{answer}"

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the calls and the answer in `text`. Never raises, whatever the text is."""
        if is_cut_off(finish_reason):
            return truncated(text)
        return assemble(*scan(Source(text), _OPENINGS, _read))

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the text of one call."""
        return (
            f"{CALL_OPEN}{written_json({'name': name, 'arguments': dict(arguments)})}{CALL_CLOSE}"
        )

    def format_answer(self, answer: str) -> str:
        """Return the text of a final answer; `parse` strips it."""
        return f"{ANSWER_OPEN}{escape_tags(answer, ANSWER_CLOSE)}{ANSWER_CLOSE}"

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return the results as elements, in order."""
        return "\n".join(f"<tool_response>\n{r.text}\n</tool_response>" for r in results)


def _read(source: Source, match: re.Match[str]) -> Sequence[Item]:
    if match[0] == ANSWER_OPEN:
        return answer_items(source, match, ANSWER_CLOSE)
    text = source.text
    items: list[Item] = []
    start, position = match.start(), match.end()
    if _BEGINS_JSON.match(text, position) is None:
        return _without_json(source, match)
    while True:
        try:
            value, stop = read_json(source.json, position)
        except JsonError as error:
            if CALL_CLOSE in source.unclosed or mentions.is_form(text, error.position):
                return items
            return (*items, _broken(source, start, position, str(error)))
        end = _behind_blanks(text, stop)
        is_closed = text.startswith(CALL_CLOSE, end)
        end = end + len(CALL_CLOSE) if is_closed else end
        values = value if isinstance(value, list) and value else [value]
        raw = text[start : end if is_closed else stop]
        # A list of calls is one stretch of text; its spans and its text are the first call's.
        items.extend(
            Item(
                start=start if number == 0 else stop,
                inner_start=position if number == 0 else stop,
                inner_stop=stop,
                stop=end if is_closed else stop,
                call=call_of(one, raw if number == 0 else ""),
            )
            for number, one in enumerate(values)
        )
        # Some models write several objects between one pair of tags.
        if is_closed or not text.startswith("{", end):
            return items
        start = position = end


def _without_json(source: Source, match: re.Match[str]) -> Sequence[Item]:
    """Return the broken call of a tag that no JSON follows, unless it is a mention."""
    if read_element(source, match, CALL_CLOSE) is None:
        return ()
    return (_broken(source, match.start(), match.end(), "it must be a JSON object"),)


def _behind_blanks(text: str, position: int) -> int:
    found = _NOT_BLANK.search(text, position)
    return found.start() if found is not None else len(text)


def _broken(source: Source, start: int, inner: int, problem: str) -> Item:
    found = source.find(CALL_CLOSE, inner)
    inner_stop, stop = (found, found + len(CALL_CLOSE)) if found >= 0 else (inner, inner)
    if found < 0:
        source.unclosed.add(CALL_CLOSE)
    error = f"bad call, not JSON: {problem}; write {FORM}"
    call = ToolCall(id="", name="", raw=source.text[start:stop], error=error)
    return Item(start=start, inner_start=inner, inner_stop=inner_stop, stop=stop, call=call)
