"""JSON that lies in the folder of a run: read so that whatever is wrong with it names its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from agentgym.errors import RecordError


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds.

    Raises:
        RecordError: If it cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not JSON: it is no text in UTF-8") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror})") from error
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
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise RecordError(f"{place} must hold a mapping (got {value!r:.60})")
    return cast("dict[str, Any]", value)
