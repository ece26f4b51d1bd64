"""Keeps secrets out of what is written: values under telling names, and passwords in addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

REDACTED = "<redacted>"

# `max_tokens` and `tokens` are numbers of tokens, not secrets: only a final `token` counts.
_SECRET_NAME = re.compile(
    r"(?:api_?key|secret|passw(?:or)?d|credential|authorization|bearer|private_?key)|(?:^|[_.-])token$",
    re.IGNORECASE,
)
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET_IN_QUERY = re.compile(r"([?&](?:api_?key|token|secret|password)=)[^&\s]+", re.IGNORECASE)


def redact(value: Any, *, name: str = "") -> Any:
    """Return plain data with every secret in it replaced by `<redacted>`.

    Example:
        redact({"api_key": "abc", "max_tokens": 5}) == {"api_key": "<redacted>", "max_tokens": 5}
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: redact(content, name=str(key)) for key, content in items}
    if _SECRET_NAME.search(name) and value not in (None, "", False):
        return REDACTED
    if isinstance(value, str):
        hidden = _PASSWORD_IN_ADDRESS.sub(REDACTED, value)
        return _SECRET_IN_QUERY.sub(rf"\g<1>{REDACTED}", hidden)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [redact(item, name=name) for item in cast("Sequence[Any]", value)]
    return value


def redacted_settings(tree: Mapping[str, Any]) -> list[str]:
    """Return the top-level names below which something is redacted."""
    return [name for name, value in tree.items() if REDACTED in str(value)]
