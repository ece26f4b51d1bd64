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

from agentgym.records import FinishReason, Json, ToolCall, ToolResult
from agentgym.tool_formats import mentions
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.json_calls import JsonError, RepeatedKeyError, read_json
from agentgym.tool_formats.tag_scanner import (
    Element,
    Item,
    Source,
    answer_items,
    assemble,
    escape_tags,
    is_cut_off,
    read_element,
    scan,
    truncated,
    unescape_tags,
)

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool

ANSWER_CLOSE = "</answer>"
_ELEMENT = re.compile(r"<([A-Za-z_][\w.-]*)>")
_NEXT_ELEMENT = re.compile(r"\s*<([A-Za-z_][\w.-]*)>")
_NOT_BLANK = re.compile(r"\S")
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

        def read(source: Source, match: re.Match[str]) -> Sequence[Item]:
            if match[0] == "<answer>":
                return answer_items(source, match, ANSWER_CLOSE)
            return _call_items(source, match, by_name[match[0][1:-1]])

        source = Source(text)
        items, thinks, in_think = scan(source, _openings(tuple(by_name)), read)
        if not any(item.call or item.answer is not None or item.error for item in items):
            begin = max((span.stop for span in thinks), default=0)
            items = _unknown_element(source, begin)
        return assemble(items, thinks, in_think)

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the text of one call; a single argument stands bare, as the tool's first one."""
        closing = f"</{name}>"
        if len(arguments) == 1:
            key, value = next(iter(arguments.items()))
            content = _written(value)
            if not content.lstrip().startswith(f"<{key}>"):
                return f"<{name}>{_padded(escape_tags(content, closing))}{closing}"
        inner = "".join(
            f"<{key}>{_padded(escape_tags(_written(value), f'</{key}>'))}</{key}>"
            for key, value in arguments.items()
        )
        return f"<{name}>{escape_tags(inner, closing)}{closing}"

    def format_answer(self, answer: str) -> str:
        """Return the text of a final answer; `parse` strips it."""
        return f"<answer>{escape_tags(answer, ANSWER_CLOSE)}{ANSWER_CLOSE}"

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


def _call_items(source: Source, match: re.Match[str], tool: Tool) -> Sequence[Item]:
    closing = f"</{tool.name}>"
    element = read_element(source, match, closing)
    if element is None:
        return ()
    start, stop = match.start(), element.stop
    if stop < 0:
        # Without its end nobody knows where the argument stops: C11 asks for an error, not a guess.
        error = f"The call of {tool.name} was not closed with {closing}; nothing was executed."
        end = match.end()
        return (Item(start=start, inner_start=end, inner_stop=end, stop=end, error=error),)
    content = unescape_tags(source.text[element.inner_start : element.inner_stop], closing)
    arguments, error = _arguments(content, tool)
    raw = source.text[start:stop]
    call = ToolCall(id="", name=tool.name, arguments=arguments, raw=raw, error=error)
    return (_whole(match, element, call),)


def _whole(match: re.Match[str], element: Element, call: ToolCall) -> Item:
    return Item(
        start=match.start(),
        inner_start=element.inner_start,
        inner_stop=element.inner_stop,
        stop=element.stop,
        call=call,
    )


def _arguments(content: str, tool: Tool) -> tuple[dict[str, Json], str | None]:
    names = tool.parameter_names
    first = _NEXT_ELEMENT.match(content)
    is_bare = first is None or first[1] not in names
    if not names and not content.strip():
        return {}, None
    try:
        if names and is_bare:
            return {names[0]: _read(_unpadded(content), names[0], tool)}, None
        return _elements(content, tool)
    except RepeatedKeyError as error:
        return {}, f"bad arguments for {tool.name}: {error}"


def _elements(content: str, tool: Tool) -> tuple[dict[str, Json], str | None]:
    found: dict[str, Json] = {}
    position = 0
    while _NOT_BLANK.search(content, position) is not None:
        match = _NEXT_ELEMENT.match(content, position)
        closing = f"</{match[1]}>" if match is not None else ""
        stop = content.find(closing, match.end()) if match is not None else -1
        if match is None or stop < 0:
            usage = "".join(f"<{name}>...</{name}>" for name in tool.parameter_names)
            return found, f"bad arguments for {tool.name}: write <{tool.name}>{usage}</{tool.name}>"
        if match[1] in found:
            return found, f"bad arguments for {tool.name}: <{match[1]}> is there twice"
        value = unescape_tags(_unpadded(content[match.end() : stop]), closing)
        found[match[1]] = _read(value, match[1], tool)
        position = stop + len(closing)
    return found, None


def _read(value: str, name: str, tool: Tool) -> Json:
    """Return the value as the schema has it: strings as they are, all else as JSON if it is.

    Where an argument may be a string or an object (or an array), text that is one whole object is
    the object. Other types that share with a string stay text, as `03106` and `null` must.

    Raises:
        RepeatedKeyError: If an object has a key twice.
    """
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    types = _types(properties.get(name, {}), tool.parameters.get("$defs", {}))
    if "string" in types and not types & {"object", "array"}:
        return value
    try:
        found, stop = read_json(value)
    except RepeatedKeyError:
        raise
    except JsonError:
        return value
    kind = "object" if isinstance(found, dict) else "array" if isinstance(found, list) else ""
    if value[stop:].strip() or ("string" in types and kind not in types):
        return value
    return found


def _types(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names."""
    if "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf", ())
    found = {"string" for value in values if isinstance(value, str)}
    if "type" in schema and not values:
        found.add(str(schema["type"]))
    return found.union(*(_types(option, definitions) for option in options))


def _written(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _padded(content: str) -> str:
    # A content with line breaks at both ends would lose them; a further pair keeps it whole.
    return f"\n{content}\n" if _is_padded(content) else content


def _unpadded(content: str) -> str:
    return content[1:-1] if _is_padded(content) else content


def _is_padded(content: str) -> bool:
    return len(content) > 1 and content[0] == content[-1] == "\n"


def _unknown_element(source: Source, begin: int) -> list[Item]:
    """Return a call of a tool that nobody knows, where the text holds such an element."""
    for number, match in enumerate(_ELEMENT.finditer(source.text, begin)):
        if number == _MAX_UNKNOWN:
            break
        if mentions.is_markup(match[1]):
            continue
        element = read_element(source, match, f"</{match[1]}>")
        if element is not None and element.stop >= 0:
            content = source.text[element.inner_start : element.inner_stop]
            raw = source.text[match.start() : element.stop]
            call = ToolCall(id="", name=match[1], arguments={"": content}, raw=raw)
            return [_whole(match, element, call)]
    return []
