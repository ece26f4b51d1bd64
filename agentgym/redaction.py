"""Keeps secrets out of what is written or shown, wherever they turn up.

`remember` takes note of the secrets among settings: values under telling names, and passwords in
addresses. `masked` then hides them in any text, whoever says it: a server may repeat a key in an
error, an environment in an observation. Every writer of records, results and logs, and all that
goes to a terminal, passes through `masked` or `masked_tree`; `redact` hides by name as well, for
settings themselves.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote, quote_plus

REDACTED = "<redacted>"

# `max_tokens` and `tokens` are numbers of tokens, not secrets: only a final `token` counts.
_SECRET_NAME = re.compile(
    r"(?:api_?key|secret|passw(?:or)?d|credential|authorization|bearer|private_?key)"
    r"|(?:access|auth|account|service|signing|encryption)_?key"
    r"|(?:^|[_.-])token$",
    re.IGNORECASE,
)
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET_IN_QUERY = re.compile(r"([?&](?:api_?key|token|secret|password)=)([^&\s]+)", re.IGNORECASE)
_SHORTEST = 6
"""Characters of a secret that is looked for: shorter ones are part of any text."""

_MARK = re.compile(r"<[^<>]*>")
"""What a setting such as `end_token` holds: a mark of a template, which is no secret."""

_lock = threading.Lock()
_secrets: frozenset[str] = frozenset()
_pattern: re.Pattern[str] | None = None


def remember(value: Any, *, name: str = "") -> None:
    """Take note of every secret in settings, or of one value by its name.

    Example:
        remember({"api_key": "sk-123", "max_tokens": 5})
    """
    global _secrets, _pattern
    found = {secret for secret in _secrets_in(value, name) if len(secret) >= _SHORTEST}
    with _lock:
        if not found - _secrets:
            return
        _secrets = _secrets | found
        spellings = {spelling for secret in _secrets for spelling in _spellings(secret)}
        longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        _pattern = re.compile("|".join(map(re.escape, longest_first)))


def forget() -> None:
    """Forget every secret; for tests, which share a process."""
    global _secrets, _pattern
    with _lock:
        _secrets, _pattern = frozenset(), None


def masked(text: str) -> str:
    """Return `text` with every remembered secret in it replaced by `<redacted>`."""
    pattern = _pattern
    return text if pattern is None else pattern.sub(REDACTED, text)


def masked_tree(value: Any) -> Any:
    """Return plain data with `masked` applied to its texts; keys stay as they are."""
    if _pattern is None:
        return value
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: masked_tree(content) for key, content in items}
    if isinstance(value, list | tuple):
        items = [masked_tree(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def redact(value: Any, *, name: str = "") -> Any:
    """Return settings with every secret in them replaced by `<redacted>`.

    Example:
        redact({"api_key": "abc", "max_tokens": 5}) == {"api_key": "<redacted>", "max_tokens": 5}
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: redact(content, name=str(key)) for key, content in items}
    if _SECRET_NAME.search(name) and value not in (None, "", False):
        return REDACTED
    if isinstance(value, str):
        hidden = _PASSWORD_IN_ADDRESS.sub(REDACTED, masked(value))
        return _SECRET_IN_QUERY.sub(rf"\g<1>{REDACTED}", hidden)
    if isinstance(value, list | tuple):
        return [redact(item, name=name) for item in cast("list[Any] | tuple[Any, ...]", value)]
    return value


def _secrets_in(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, content in cast("Mapping[Any, Any]", value).items():
            yield from _secrets_in(content, str(key))
    elif isinstance(value, list | tuple):
        for item in cast("list[Any] | tuple[Any, ...]", value):
            yield from _secrets_in(item, name)
    elif hasattr(value, "get_secret_value"):  # pydantic's SecretStr
        yield str(value.get_secret_value())
    elif isinstance(value, str) and value != REDACTED:
        if _SECRET_NAME.search(name) and not _MARK.fullmatch(value):
            yield value
        for found in _PASSWORD_IN_ADDRESS.findall(value):
            yield from (found, found.partition(":")[2])
        yield from (found for _, found in _SECRET_IN_QUERY.findall(value))


def _spellings(secret: str) -> set[str]:
    """Return a secret as it stands in text, in JSON, in a `repr` and in an address."""
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
    }
