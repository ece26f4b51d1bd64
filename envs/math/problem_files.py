r"""Word problems from files: JSON lines, JSON, parquet, or a folder of them.

Two shapes are read. GSM8K: `question`, and an `answer` that ends in `#### 72`. MATH: `problem`, a
`solution` with its `\boxed{...}`, and perhaps the bare `answer`. Each gold answer is checked when
the file is read, so that no run is scored against one that cannot be compared.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.envs.math.grading.extraction import extract_answer
from agentgym.envs.math.grading.grade import check_gold
from agentgym.errors import MissingExtraError, TaskError
from agentgym.files import bounded

QUESTION_FIELDS = ("question", "problem", "prompt", "input")
ANSWER_FIELDS = ("answer", "final_answer", "expected_answer", "target", "solution", "output")
HELD_OUT_SHARE = 8
"""Where no file says which split it is, one question in so many is held out."""
_HELD_OUT_NAME = re.compile(
    r"(?:^|[-_. ])(?:test|valid|validation|dev|eval|held[-_]?out)(?:$|[-_. ])"
)
_MAX_SHOWN = 5
_CHECKERS = 4
_LEVEL = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a file.

    Example:
        Problem(id="test-000003", question="...", gold="72", solution="... #### 72",
                split="held_out", tags=())
    """

    id: str
    """File and row, unique within what was read."""
    question: str
    """What is asked."""
    gold: str
    """The gold answer alone."""
    solution: str
    """The worked solution; empty if the row has none."""
    split: str
    """`train` or `held_out`."""
    tags: tuple[str, ...]
    """Level and subject, where the row names them."""
    difficulty: float | None = None
    """Number of the level; None if the row names none."""


def read_problems(path: str | Path, *, skip_unreadable: bool = False) -> tuple[Problem, ...]:
    """Return the problems of a file or folder, in order; read once while it does not change.

    Args:
        path: A `.jsonl`, `.json` or `.parquet` file, or a folder of such files.
        skip_unreadable: Leave out rows whose gold answer cannot be compared, instead of raising.

    Raises:
        TaskError: If there is nothing to read, a row lacks a field, or a gold answer cannot be
            compared; the message has the row's id.
        MissingExtraError: If parquet files are read without pyarrow.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise TaskError(f"there is no file or folder {str(path)!r}")
    files = _files(root)
    if not files:
        raise TaskError(f"{str(path)!r} holds none of {', '.join(sorted(_READERS))} files")
    stamp = tuple((str(file), file.stat().st_mtime_ns) for file in files)
    return _read(root, stamp, skip_unreadable)


@lru_cache(maxsize=8)
def _read(
    root: Path, stamp: tuple[tuple[str, int], ...], skip_unreadable: bool
) -> tuple[Problem, ...]:
    problems = [problem for name, _ in stamp for problem in _problems(root, Path(name))]
    if len({problem.split for problem in problems}) == 1:
        problems = [_with_split(problem) for problem in problems]
    with ThreadPoolExecutor(_CHECKERS) as pool:
        errors = list(pool.map(_error_of, problems))
    bad = [error for error in errors if error is not None]
    if bad and not skip_unreadable:
        more = f" (and {len(bad) - _MAX_SHOWN} more rows)" if len(bad) > _MAX_SHOWN else ""
        raise TaskError("\n".join(bad[:_MAX_SHOWN]) + more)
    return tuple(p for p, error in zip(problems, errors, strict=True) if error is None)


def _error_of(problem: Problem) -> str | None:
    try:
        check_gold(problem.gold, row_id=problem.id)
    except TaskError as error:
        return str(error)
    return None


def _files(root: Path) -> tuple[Path, ...]:
    if root.is_file():
        return (root,) if root.suffix in _READERS else ()
    return tuple(sorted(file for file in root.rglob("*") if file.suffix in _READERS))


def _problems(root: Path, file: Path) -> Iterator[Problem]:
    place = file.relative_to(root).with_suffix("") if file != root else Path(file.stem)
    is_held_out = any(_HELD_OUT_NAME.search(part.casefold()) for part in place.parts)
    for number, row in enumerate(_READERS[file.suffix](file)):
        row_id = f"{place.as_posix()}-{number:06d}"
        yield _problem(row_id, row, "held_out" if is_held_out else "train")


def _problem(row_id: str, row: Mapping[str, Any], split: str) -> Problem:
    question = _field(row_id, row, QUESTION_FIELDS)
    answer = _field(row_id, row, ANSWER_FIELDS)
    gold = extract_answer(answer)
    level = _LEVEL.search(str(row.get("level", "")))
    tags = (str(row[name]) for name in ("level", "type", "subject") if row.get(name))
    return Problem(
        id=row_id,
        question=question,
        gold=gold or answer,
        solution=str(row.get("solution") or (answer if answer != gold else "")),
        split=split,
        tags=tuple(tags),
        difficulty=float(level[0]) if level else None,
    )


def _field(row_id: str, row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value)
    raise TaskError(
        f"row {row_id} needs one of the fields {', '.join(names)} (got {', '.join(sorted(row))})"
    )


def _with_split(problem: Problem) -> Problem:
    text = " ".join(problem.question.casefold().split())
    digest = int.from_bytes(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big"
    )
    return replace(problem, split="held_out" if digest % HELD_OUT_SHARE == 0 else "train")


def _read_lines(file: Path) -> list[Mapping[str, Any]]:
    lines = _text_of(file).split("\n")
    return [
        _as_row(file, number, _loads(file, number, line))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _read_json(file: Path) -> list[Mapping[str, Any]]:
    data = _loads(file, 1, _text_of(file))
    rows = data if isinstance(data, list) else [data]
    return [_as_row(file, number, row) for number, row in enumerate(rows, start=1)]


def _text_of(file: Path) -> str:
    try:
        return bounded.read_text(file, max_bytes=bounded.MAX_RECORD_BYTES)
    except bounded.DataError as error:
        raise TaskError(f"{file}: {error}") from error


def _loads(file: Path, number: int, text: str) -> Any:
    try:
        return bounded.parse_json(text)
    except bounded.DataError as error:
        raise TaskError(f"{file.name} line {number} is {error}") from error


def _as_row(file: Path, number: int, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TaskError(f"{file.name} row {number} must be an object (got {type(row).__name__})")
    return row


def _read_parquet(file: Path) -> list[Mapping[str, Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(f"reading {file.name}", extra="parquet") from error
    return list(parquet.read_table(file).to_pylist())


_READERS: Mapping[str, Callable[[Path], list[Mapping[str, Any]]]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
