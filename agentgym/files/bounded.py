"""Text, JSON and TOML from files that people hand over, within bounds of size and depth.

Whatever is wrong with such a file is one `DataError`; a caller names the file in its own error.
Only regular files are read: a pipe would hang, a device never ends.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from agentgym.errors import AgentGymError

MAX_CONFIG_BYTES = 128 * 1024
"""Size of a file of settings. PyYAML takes seconds for as much, and no run has as many."""
MAX_RECORD_BYTES = 1 << 30
"""Size of a file that a run wrote, such as an evaluation with all its attempts."""
MAX_DEPTH = 32
"""Mappings and lists inside one another."""
MAX_KEY = 200
"""Characters of a key."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")


class DataError(AgentGymError, ValueError):
    """Text is not the data that is wanted.

    Args:
        text: What is wrong, without the file's name.
        line: Line where it stands, from 1; None if that is not known.
        column: Column, from 1.
    """

    def __init__(self, text: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.line = line
        self.column = column

    def place(self, path: Path) -> str:
        """Return where in a file it is: `run.yaml:3:1`."""
        return ":".join(str(part) for part in (path, self.line, self.column) if part is not None)


def open_regular(path: Path) -> io.BufferedReader:
    """Return a regular file, open for reading.

    Raises:
        DataError: If it cannot be opened, or is a pipe, a device or a folder.
    """
    try:
        # Without waiting for whoever would write into a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise DataError(f"the file cannot be read ({_reason(error)})") from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise DataError(f"the file cannot be read (it is {kind}, not a regular file)")


def read_bytes(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        DataError: If it cannot be read, is a pipe, a device or a folder, or is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise DataError(f"the file cannot be read ({_reason(error)})") from None
    if len(data) > max_bytes:
        raise DataError(
            f"the file has {max(size, len(data)):,} bytes; at most {max_bytes:,} are read"
        )
    return data


def read_text(path: Path, *, max_bytes: int) -> str:
    """Return the text of a regular file in UTF-8.

    Raises:
        DataError: As `read_bytes`, or if it is not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"the file is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str) -> object:
    """Return the value that `text` is as JSON.

    Raises:
        DataError: If it is not JSON, or holds what Python cannot, such as an endless integer.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {_short(error)}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the mapping that `text` is as TOML.

    Raises:
        DataError: If it is malformed, or too deep.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", str(error))
        if found is None:
            raise DataError(f"malformed TOML: {error}") from None
        raise DataError(
            f"malformed TOML: {found[1]}", line=int(found[2]), column=int(found[3])
        ) from None
    except (ValueError, RecursionError) as error:  # an endless integer; brackets without end
        raise DataError(f"malformed TOML: {_short(error)}") from None
    check_plain(tree)
    return tree


def check_plain(tree: object) -> None:
    """Raise where a tree is too deep, or holds text that no file can.

    Raises:
        DataError: With what it is.
    """
    waiting: list[tuple[object, int]] = [(tree, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise DataError(f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, object]", value)
            waiting.extend((inner, depth + 1) for inner in items.values())
            for key in items:
                check_key(key)
        elif isinstance(value, list):
            waiting.extend((inner, depth + 1) for inner in cast("list[object]", value))
        elif isinstance(value, str):
            check_text(value)


def check_key(key: object) -> None:
    """Raise where a key is not short text.

    Raises:
        DataError: With what it is.
    """
    if not isinstance(key, str):
        raise DataError(f"a key must be text (got {key!r:.60}): write it in quotes")
    if len(key) > MAX_KEY:
        raise DataError(f"a key has at most {MAX_KEY} characters (got {len(key):,}: {key[:20]!r}…)")
    check_text(key)


def check_text(text: str) -> None:
    """Raise where text holds half a surrogate pair, which UTF-8 cannot hold.

    Raises:
        DataError: With what it is.
    """
    half = _SURROGATE.search(text)
    if half is not None:
        raise DataError(f"half a surrogate pair (\\u{ord(half[0]):04x}) is not text")


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def _short(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return f"values are nested deeper than {MAX_DEPTH}"
    return " ".join(str(error).split())[:120]
