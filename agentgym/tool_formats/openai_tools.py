"""OpenAI function calls as JSON text, and the message form that chat servers use.

A call is `{"tool_calls": [{"type": "function", "function": {"name": …, "arguments": …}}]}`, one
such entry, or `{"name": …, "arguments": {…}}`, prose around it allowed. A turn without a call is
the final answer, as in the chat interface. `message_of` and `text_of_message` go between text and
messages. Results are read with the role `tool`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from agentgym.records import FinishReason, Json, ToolCall, ToolResult
from agentgym.tool_formats import mentions
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.json_calls import (
    JsonError,
    RepeatedKeyError,
    call_of,
    is_call,
    read_json,
    schemas,
    written_json,
)
from agentgym.tool_formats.tag_scanner import Item, Source, assemble, is_cut_off, scan, truncated

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool

_BRACE = re.compile(r"[{\[]")
_MEANT_AS_CALL = re.compile(
    r'\[?\s*\{\s*"(?:tool_calls|function)"|\[?\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"'
    r'|\[?\s*\{\s*"(?:id|type)"\s*:\s*"[^"]*"\s*,\s*"(?:id|type|function)"'
)
_LEAST_COST = 256
"""Characters that a brace which begins no JSON counts as, beside those that were read."""
_MOST_COST = (100_000, 8)
"""Characters read in vain: so many, and so many times the length of the text. Each brace of a text
may begin a value that breaks off at its end; what follows is then not read any more."""
_FORM = '{"tool_calls": [{"type": "function", "function": {"name": "...", "arguments": {...}}}]}'
_NOTHING = "The turn was empty: call a tool or answer."


@dataclass(frozen=True, slots=True)
class OpenAITools:
    """Calls in OpenAI's form."""

    id: str = "openai_tools"
    stop: tuple[str, ...] = ()
    result_role: str = "tool"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the tools' schemas and the form of a call."""
        if not tools:
            return ""
        listed = "\n".join(written_json(schema) for schema in schemas(tools))
        return (
            f"You can call these tools:\n{listed}\n"
            f"Call with {_FORM}. Text without a call is your answer."
        )

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the calls in `text`, or all of it as the answer. Never raises."""
        if is_cut_off(finish_reason):
            return truncated(text)
        items, thinks, in_think = scan(Source(text), _BRACE, _Reader())
        if not any(item.call is not None or item.error is not None for item in items):
            items = _rest(text, max((span.stop for span in thinks), default=0))
        return assemble(items, thinks, in_think, nothing=_NOTHING)

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the text of one call; its arguments are JSON text, as chat servers write them."""
        function = {"name": name, "arguments": written_json(dict(arguments))}
        return written_json({"tool_calls": [{"type": "function", "function": function}]})

    def format_answer(self, answer: str) -> str:
        """Return the answer itself, which must not look like a call."""
        return answer

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return one result as it is, several as a JSON list with the calls' ids."""
        if len(results) == 1:
            return results[0].text
        return written_json([{"tool_call_id": r.call_id, "content": r.text} for r in results])


def message_of(text: str, action: ParsedAction) -> dict[str, Any]:
    """Return an assistant message for chat templates: `content`, and `tool_calls` if there are any.

    Arguments are objects: templates loop over them, whatever form the model wrote.
    """
    if not action.calls:
        return {"role": "assistant", "content": text}
    first = next((text.find(call.raw) for call in action.calls if call.raw), 0)
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for call in action.calls
    ]
    return {"role": "assistant", "content": text[: max(first, 0)].strip(), "tool_calls": calls}


def text_of_message(message: Mapping[str, Any]) -> str:
    """Return a chat server's message as text that `OpenAITools.parse` reads back."""
    content = message.get("content") or ""
    calls = message.get("tool_calls") or ()
    if not calls:
        return str(content)
    written = written_json({"tool_calls": list(calls)})
    return f"{content}\n{written}" if content else written


class _Reader:
    """Reads calls at braces; what it read in vain is one text's own."""

    def __init__(self) -> None:
        self.cost = 0

    def __call__(self, source: Source, match: re.Match[str]) -> Sequence[Item]:
        text, start = source.text, match.start()
        if self.cost > _MOST_COST[0] + _MOST_COST[1] * len(text):
            return (_skipped(start, len(text)),)
        try:
            value, stop = read_json(source.json, start)
        except RepeatedKeyError as error:
            if not _calls(error.value):
                return (_skipped(start, error.stop),)
            return (_broken(text, start, error.stop, f"bad call: {error}"),)
        except JsonError as error:
            self.cost += _LEAST_COST + error.position - start
            if _MEANT_AS_CALL.match(text, start) is None or mentions.is_form(text, error.position):
                return ()
            return (_broken(text, start, len(text), f"bad call, not JSON: {error}"),)
        calls = [
            call_of(one, text[start:stop] if number == 0 else "")
            for number, one in enumerate(_calls(value))
        ]
        if not calls:
            # Valid JSON that is no call is data, and what it holds is data too.
            return (_skipped(start, stop),)
        return tuple(
            Item(
                start=start if number == 0 else stop,
                inner_start=start if number == 0 else stop,
                inner_stop=stop,
                stop=stop,
                call=call,
            )
            for number, call in enumerate(calls)
        )


def _broken(text: str, start: int, stop: int, error: str) -> Item:
    call = ToolCall(id="", name="", raw=text[start:stop], error=error)
    return Item(start=start, inner_start=start, inner_stop=stop, stop=stop, call=call)


def _calls(value: Json) -> Sequence[Json]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        return cast("list[Json]", value["tool_calls"])
    if isinstance(value, list):
        return value if value and all(is_call(one) for one in value) else ()
    return (value,) if is_call(value) else ()


def _rest(text: str, begin: int) -> list[Item]:
    """Return what stands behind the last think block as the answer, unless it is blank."""
    answer = text[begin:].strip()
    if not answer:
        return []
    start = text.index(answer, begin)
    stop = start + len(answer)
    return [Item(start=start, inner_start=start, inner_stop=stop, stop=stop, answer=answer)]


def _skipped(start: int, stop: int) -> Item:
    return Item(start=start, inner_start=stop, inner_stop=stop, stop=stop)
