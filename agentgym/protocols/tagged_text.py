r"""Tagged text: `<search>who wrote it</search>`, `<answer>42</answer>`.

The name of a tool is the tag. A tool's first argument may stand bare; several arguments are
elements of their own: `<search><query>who</query><top_k>3</top_k></search>`. The content of a
string argument is taken as it is, without one line break at both ends; other types are read as
JSON, and what does not fit is left for the check of the arguments. Inside a content its own closing
tag is written `<\/search>`.

Results are read with the role `user`: one result as it is, several as `<result>` elements.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentgym.protocols.base import ParsedAction
from agentgym.protocols.json_calls import read_json
from agentgym.protocols.scan import (
    Item,
    answer_item,
    assemble,
    escape_closing,
    is_cut_off,
    read_element,
    scan,
    truncated,
    unescape_closing,
)
from agentgym.records import FinishReason, Json, ToolCall, ToolResult

if TYPE_CHECKING:
    from agentgym.tools import Tool

ANSWER_CLOSE = "</answer>"
_ELEMENT = re.compile(r"<([A-Za-z_][\w.-]*)>")
_MAX_UNKNOWN = 32
"""Elements looked at where a text has no known one: bounds the time for hostile text."""


@dataclass(frozen=True, slots=True)
class TaggedText:
    """Calls and answers as elements of text."""

    id: str = "tagged_text"
    stop: tuple[str, ...] = ()
    result_role: str = "user"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return how to call each tool and how to answer, one line each."""
        lines = [_usage(tool) for tool in tools]
        head = ["You can call these tools; you read the result before you go on:"] if lines else []
        return "\n".join([*head, *lines, "Give your final answer as <answer>...</answer>."])

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the calls and the answer in `text`. Never raises, whatever the text is."""
        if is_cut_off(finish_reason):
            return truncated(text)
        by_name = {tool.name: tool for tool in tools}

        def read(text: str, match: re.Match[str]) -> Sequence[Item]:
            if match[0] == "<answer>":
                return (answer_item(text, match, ANSWER_CLOSE),)
            return (_call_item(text, match, by_name[match[0][1:-1]]),)

        items, thinks, in_think = scan(text, _openings(tuple(by_name)), read)
        if not any(item.call or item.answer is not None or item.error for item in items):
            begin = max((span.stop for span in thinks), default=0)
            items = _unknown_element(text, begin)
        return assemble(items, thinks, in_think)

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the text of one call; a single argument stands bare, as the tool's first one."""
        closing = f"</{name}>"
        if len(arguments) == 1:
            key, value = next(iter(arguments.items()))
            content = _written(value)
            if not content.lstrip().startswith(f"<{key}>"):
                return f"<{name}>{_padded(escape_closing(content, closing))}{closing}"
        inner = "".join(
            f"<{key}>{_padded(escape_closing(_written(value), f'</{key}>'))}</{key}>"
            for key, value in arguments.items()
        )
        return f"<{name}>{escape_closing(inner, closing)}{closing}"

    def format_answer(self, answer: str) -> str:
        """Return the text of a final answer; `parse` strips it."""
        return f"<answer>{escape_closing(answer, ANSWER_CLOSE)}{ANSWER_CLOSE}"

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return one result as it is, several as elements in order."""
        if len(results) == 1:
            return results[0].text
        return "\n".join(f"<result>{result.text}</result>" for result in results)


@functools.lru_cache(maxsize=256)
def _openings(names: tuple[str, ...]) -> re.Pattern[str]:
    tags = sorted({"answer", *names}, key=len, reverse=True)
    return re.compile("<(?:" + "|".join(re.escape(tag) for tag in tags) + ")>")


def _usage(tool: Tool) -> str:
    about = " ".join(tool.description.split())
    names = tool.parameter_names
    if len(names) == 1:
        form = f"<{tool.name}>{names[0]}</{tool.name}>"
    else:
        inner = "".join(f"<{name}>...</{name}>" for name in names)
        form = f"<{tool.name}>{inner}</{tool.name}>"
    return f"{form} {about}".rstrip()


def _call_item(text: str, match: re.Match[str], tool: Tool) -> Item:
    closing = f"</{tool.name}>"
    start, inner_stop, stop = read_element(text, match, closing)
    if stop < 0:
        # Without its end nobody knows where the argument stops: C11 asks for an error, not a guess.
        error = f"The call of {tool.name} was not closed with {closing}; nothing was executed."
        return Item(
            start=match.start(), inner_start=start, inner_stop=start, stop=start, error=error
        )
    content = unescape_closing(text[start:inner_stop], closing)
    arguments, error = _arguments(content, tool)
    call = ToolCall(
        id="", name=tool.name, arguments=arguments, raw=text[match.start() : stop], error=error
    )
    return Item(start=match.start(), inner_start=start, inner_stop=inner_stop, stop=stop, call=call)


def _arguments(content: str, tool: Tool) -> tuple[dict[str, Json], str | None]:
    names = tool.parameter_names
    first = _ELEMENT.match(content.lstrip())
    is_bare = first is None or first[1] not in names
    if names and is_bare:
        return {names[0]: _read(_unpadded(content), names[0], tool)}, None
    if not names and not content.strip():
        return {}, None
    return _elements(content, tool)


def _elements(content: str, tool: Tool) -> tuple[dict[str, Json], str | None]:
    found: dict[str, Json] = {}
    position = 0
    while content[position:].strip():
        position += len(content[position:]) - len(content[position:].lstrip())
        match = _ELEMENT.match(content, position)
        closing = f"</{match[1]}>" if match is not None else ""
        stop = content.find(closing, match.end()) if match is not None else -1
        if match is None or stop < 0:
            usage = "".join(f"<{name}>...</{name}>" for name in tool.parameter_names)
            return found, f"bad arguments for {tool.name}: write <{tool.name}>{usage}</{tool.name}>"
        value = unescape_closing(_unpadded(content[match.end() : stop]), closing)
        found[match[1]] = _read(value, match[1], tool)
        position = stop + len(closing)
    return found, None


def _read(value: str, name: str, tool: Tool) -> Json:
    """Return the value as the schema has it: strings as they are, all else as JSON if it is."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    if _takes_string(properties.get(name, {}), tool.parameters.get("$defs", {})):
        return value
    try:
        found, stop = read_json(value)
    except ValueError:
        return value
    return value if value[stop:].strip() else found


def _takes_string(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    if "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return any(isinstance(value, str) for value in schema["enum"])
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf", ())
    return schema.get("type") == "string" or any(_takes_string(o, definitions) for o in options)


def _written(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _padded(content: str) -> str:
    # A content with line breaks at both ends would lose them; a further pair keeps it whole.
    return f"\n{content}\n" if _is_padded(content) else content


def _unpadded(content: str) -> str:
    return content[1:-1] if _is_padded(content) else content


def _is_padded(content: str) -> bool:
    return len(content) > 1 and content[0] == content[-1] == "\n"


def _unknown_element(text: str, begin: int) -> list[Item]:
    """Return a call of a tool that nobody knows, where the text holds such an element."""
    for number, match in enumerate(_ELEMENT.finditer(text, begin)):
        if number == _MAX_UNKNOWN:
            break
        start, inner_stop, stop = read_element(text, match, f"</{match[1]}>")
        if stop >= 0:
            raw = text[match.start() : stop]
            call = ToolCall(id="", name=match[1], arguments={"": text[start:inner_stop]}, raw=raw)
            return [
                Item(
                    start=match.start(),
                    inner_start=start,
                    inner_stop=inner_stop,
                    stop=stop,
                    call=call,
                )
            ]
    return []
