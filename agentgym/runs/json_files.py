"""JSON that lies in the folder of a run: read so that whatever is wrong with it names its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from agentgym.errors import RecordError
from agentgym.files import bounded
from agentgym.files.bounded import MAX_RECORD_BYTES, DataError


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds.

    Raises:
        RecordError: If it cannot be read, or holds something else.
    """
    try:
        text = bounded.read_text(path, max_bytes=MAX_RECORD_BYTES)
    except DataError as error:
        raise RecordError(f"{path}: {error}") from error
    return parse_json(text, str(path))


def parse_json(text: str, place: str) -> dict[str, Any]:
    """Return the mapping that `text` is as JSON.

    Args:
        text: One JSON value.
        place: Where it stands, for the message.

    Raises:
        RecordError: If it is not JSON, or another value.
    """
    try:
        value = bounded.parse_json(text)
    except DataError as error:
        where = f" (line {error.line}, column {error.column})" if error.line is not None else ""
        raise RecordError(f"{place} is {error}{where}") from None
    if not isinstance(value, dict):
        raise RecordError(f"{place} must hold a mapping (got {value!r:.60})")
    return cast("dict[str, Any]", value)
