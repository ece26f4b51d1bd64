"""Calls written as JSON: a scanner of one value from a position, and what a call looks like.

Line breaks and other control characters inside strings are accepted; NaN, infinite numbers and very
deep nesting are not, because nothing behind this could store them. An object with a key twice is
refused: no reader could say which of the two was meant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agentgym.records import Json, ToolCall

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool

_MAX_DEPTH = 64
"""Levels of nesting; far below the recursion limit of whatever reads the record later."""
_MAX_SHOWN_CHARS = 60


class JsonError(ValueError):
    """Text that is no JSON; the message is for the agent."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        """Where it was seen, from the beginning of the text."""


class RepeatedKeyError(JsonError):
    """An object has a key twice."""

    def __init__(self, key: str, value: Json, stop: int) -> None:
        super().__init__(f"the key {written_json(key[:_MAX_SHOWN_CHARS])} is there twice", stop)
        self.value = value
        """What it would be if the last one counted."""
        self.stop = stop
        """The position behind it."""


class JsonText(str):
    """A text of which many values are read.

    Python's reader says the line of each error, and counts all line feeds before it to do so: that
    many errors cost the square of the length.
    """

    __slots__ = ()

    def count(self, *_: Any) -> int:
        """Return 0: nobody asks for the line."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Return -1: nobody asks for the line."""
        return -1


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


class _Repeated(dict[str, Json]):
    """An object that had a key twice."""

    key = ""
    """Which one."""


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked, seen = _Repeated(found), set[str]()
    for key, _ in pairs:
        if key in seen:
            marked.key = key
        seen.add(key)
    return marked


# strict=False: models write raw line feeds inside strings (pitfall C9).
_DECODER = json.JSONDecoder(
    strict=False, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_object
)


def read_json(text: str, start: int = 0) -> tuple[Json, int]:
    """Return the JSON value at `start`, leading blanks allowed, and the position behind it.

    Raises:
        JsonError: If there is none, or one that cannot be stored or has two meanings.
    """
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, stop = cast("tuple[Json, int]", _DECODER.raw_decode(text, start))
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at character {error.pos - start}", error.pos) from None
    except ValueError as error:  # a number that cannot be stored, or of too many digits
        raise JsonError(str(error), len(text)) from None
    except RecursionError:
        raise JsonError("it is nested too deeply", len(text)) from None
    objects = _objects_in(value)
    if objects is None:
        raise JsonError("it is nested too deeply", stop)
    for found in objects:
        if isinstance(found, _Repeated):
            raise RepeatedKeyError(found.key, value, stop)
    return value, stop


def written_json(value: object) -> str:
    """Return a value as JSON text on one line."""
    return json.dumps(value, ensure_ascii=False)


def is_call(value: Json) -> bool:
    """Return whether a value is meant as a call: OpenAI's form, or a name with arguments."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("function"), dict):
        return True
    return "name" in value and ("arguments" in value or "parameters" in value)


def call_of(value: Json, raw: str) -> ToolCall:
    """Return the call that a JSON value is; one that cannot be read has its `error`.

    Accepted are `{"name": …, "arguments": {…}}` and OpenAI's `{"id": …, "function": {…}}`; the
    arguments may be an object, the JSON text of one, or be missing.
    """
    if not isinstance(value, dict):
        return ToolCall(id="", name="", raw=raw, error="bad call: it must be a JSON object")
    call_id = value.get("id")
    inner = value.get("function")
    body = inner if isinstance(inner, dict) else value
    name = body.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(
            id="", name="", raw=raw, error="bad call: 'name' must be the name of a tool"
        )
    found, error = _arguments(body.get("arguments", body.get("parameters")))
    return ToolCall(
        id=call_id if isinstance(call_id, str) else "",
        name=name,
        arguments=found,
        raw=raw,
        error=f"bad call of {name}: {error}" if error is not None else None,
    )


def schemas(tools: Sequence[Tool]) -> tuple[dict[str, Any], ...]:
    """Return the tools as OpenAI's function descriptions."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    )


def _arguments(value: Json) -> tuple[Mapping[str, Json], str | None]:
    if isinstance(value, str) and value.strip():
        try:
            value, stop = read_json(text := value)
        except ValueError as error:
            return {}, f"the text in 'arguments' is not JSON: {error}"
        if text[stop:].strip():
            return {}, "the text in 'arguments' must be one JSON object"
    if value is None or value == "":
        return {}, None
    if not isinstance(value, dict):
        return {}, f"'arguments' must be an object (got {written_json(value)[:_MAX_SHOWN_CHARS]})"
    return value, None


def _objects_in(value: Json) -> list[dict[str, Any]] | None:
    """Return the objects in a value, or None if it is nested deeper than may be."""
    found: list[dict[str, Any]] = []
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                found.append(cast("dict[str, Any]", item))
                inner.extend(found[-1].values())
            elif isinstance(item, list):
                inner.extend(cast("list[Any]", item))
        if not inner:
            return found
        level = inner
    return None
