"""Rows of files as they are found: JSON lines, a JSON array, or parquet.

In order: `read_rows`, JSON, parquet. What stands in a row is read in
`agentgym.envs.search.corpus.qa_files`.
"""

from __future__ import annotations

import codecs
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from agentgym.errors import MissingExtraError, TaskError

_SHOWN_CHARS = 60
"""Of what was found instead of a row, in a message."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, one at a time.

    A byte order mark is skipped. Binary values of parquet that are UTF-8 are text.

    Raises:
        TaskError: If the file is missing, of another kind, broken or not UTF-8, or if a row is not
            an object; the message names the line or the row.
        MissingExtraError: If it is parquet, and the package that reads it is missing.
    """
    if not path.is_file():
        raise TaskError(f"there is no file {path}")
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    elif path.suffix in {".jsonl", ".json"}:
        # HotpotQA's own files are one array.
        yield from _read_array(path) if _is_array(path) else _read_lines(path)
    else:
        raise TaskError(f"{path}: rows are read from .jsonl, .json and .parquet files")


# -- JSON --------------------------------------------------------------------------------------


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        for line in file:
            if start := line.removeprefix(codecs.BOM_UTF8).lstrip():
                return start.startswith(b"[")
    return False


def _read_array(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    try:
        rows = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{path} line {line} is not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{path} line {error.lineno} is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:  # a number too long, lists too deep
        raise TaskError(f"{path} is not JSON that can be read: {error}") from error
    for number, row in enumerate(rows):
        yield _checked(row, f"{path} row {number}")


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    # As bytes: a text file that fails to decode does not say in which line.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path} line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                row = json.loads(text) if text.strip() else None
            except UnicodeDecodeError as error:
                raise TaskError(f"{where} is not UTF-8: {error}") from error
            except (ValueError, RecursionError) as error:
                raise TaskError(f"{where} is not JSON: {error}") from error
            if text.strip():
                yield _checked(row, where)


def _checked(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"{where} is not an object (got {repr(row)[:_SHOWN_CHARS]})")
    return cast("dict[str, Any]", row)


# -- parquet -----------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the file {path}", extra="parquet") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            # A large corpus is not walked through for bytes that it cannot hold.
            has_bytes = "binary" in str(file.schema_arrow)
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield _with_text(row) if has_bytes else row
                    number += 1
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise TaskError(
            f"{path} cannot be read as parquet from row {number} on: {error}"
        ) from error


def _with_text(value: Any) -> Any:
    """Return the value with each UTF-8 text in bytes as text; other bytes stay what they are."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _with_text(field) for name, field in fields.items()}
    if isinstance(value, list):
        return [_with_text(item) for item in cast("list[Any]", value)]
    return value
