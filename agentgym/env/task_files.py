"""Tasks in files: `read_tasks`, `read_source`, and `splits_of` for questions with answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agentgym.errors import TaskError, nearest
from agentgym.files import bounded
from agentgym.records import Json, Task

TRAIN = "train"
HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the tasks of a suite come from and under which licence."""

    licence: str
    """SPDX name where there is one."""
    origin: str
    """Who made them, and where or how they were got."""


def read_tasks(path: Path, *, name: str) -> list[Task]:
    """Return the tasks of a file of JSON lines, the fields of `Task` on each; `name` is for errors.

    Raises:
        TaskError: If the file is missing, holds no task, or a line is not a task.
    """
    if not path.is_file():
        raise TaskError(f"{name}: there is no file {path}")
    tasks = [_read_row(path, number, line) for number, line in _lines(path)]
    if not tasks:
        raise TaskError(f"{name}: {path} holds no task")
    return tasks


def read_source(folder: Path) -> Origin:
    """Return what the file SOURCE of a folder says: lines `licence:` and `origin:`.

    Raises:
        TaskError: If it is missing or says too little.
    """
    path = folder / "SOURCE"
    if not path.is_file():
        raise TaskError(f"{path} is missing: state 'licence:' and 'origin:' of the rows")
    pairs = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    fields = {key.strip(): value.strip() for key, colon, value in pairs if colon}
    if not fields.get("licence") or not fields.get("origin"):
        raise TaskError(f"{path} must have the lines 'licence:' and 'origin:' (got {fields!r})")
    return Origin(licence=fields["licence"], origin=fields["origin"])


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = bounded.read_text(path, max_bytes=bounded.MAX_RECORD_BYTES)
    except bounded.DataError as error:
        raise TaskError(f"{path}: {error}") from error
    return [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _read_row(path: Path, number: int, line: str) -> Task:
    try:
        fields: Any = bounded.parse_json(line)
        for name in ("answers", "tags"):
            if isinstance(fields.get(name), str):
                raise TypeError(f"{name!r} is a list of texts (got {fields[name]!r})")
            fields[name] = tuple(fields.get(name, ()))
        return Task(**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"{path.name} line {number} is not a task: {error}") from error


# -- questions and answers --------------------------------------------------------------------


def splits_of(
    path: Path, *, env_id: str, question: str, answer: str, held_out: float
) -> dict[str, tuple[Task, ...]]:
    """Return the tasks of a file by split; which one a question is in follows from its content.

    Args:
        path: JSON lines, an object each.
        env_id: Environment that poses the tasks.
        question: Field with the prompt.
        answer: Field with the gold answer, or a list of them.
        held_out: Share of the different questions that are held out, in [0, 1].

    Raises:
        TaskError: If the file is missing, a line has no such fields, or the share is none.
    """
    if not 0 <= held_out <= 1:
        raise TaskError(f"'held_out' must be a share in [0, 1] (got {held_out!r})")
    rows = [
        (number, _object(path, number, line, (question, answer))) for number, line in _lines(path)
    ]
    if not rows:
        raise TaskError(f"{path} holds no row")
    tasks = [
        _task(f"{path.name} line {number}", row, env_id, question, answer) for number, row in rows
    ]
    ranked = sorted({_content(task.prompt) for task in tasks})
    apart = frozenset(ranked[: round(held_out * len(ranked))])
    parted = {
        split: tuple(t for t in tasks if (_content(t.prompt) in apart) == (split == HELD_OUT))
        for split in (TRAIN, HELD_OUT)
    }
    return {split: found for split, found in parted.items() if found}


def _object(path: Path, number: int, line: str, needed: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        row = bounded.parse_json(line)
    except bounded.DataError as error:
        raise TaskError(f"{path.name} line {number} is {error}") from error
    if not isinstance(row, dict):
        raise TaskError(f"{path.name} line {number} must be an object (got {line[:80]!r})")
    fields = cast("dict[str, Any]", row)
    for name in needed:
        if name not in fields:
            hint = nearest(name, fields)
            raise TaskError(
                f"{path.name} line {number} has no field {name!r}{hint}; it has {sorted(fields)!r}"
            )
    return fields


def _task(where: str, row: Mapping[str, Any], env_id: str, question: str, answer: str) -> Task:
    given: Any = row[answer]
    answers = cast("list[Any]", given) if isinstance(given, list) else [given]
    prompt = row[question]
    if not isinstance(prompt, str) or not prompt.strip():
        raise TaskError(f"{where}: {question!r} must be a text that is not empty (got {prompt!r})")
    if not answers or any(not isinstance(a, str | int | float) for a in answers):
        raise TaskError(f"{where}: {answer!r} must be a text, a number or a list (got {given!r})")
    payload: dict[str, Json] = {k: v for k, v in row.items() if k not in {question, answer}}
    return Task(
        id=where.replace(" line ", "-"),
        env_id=env_id,
        prompt=prompt,
        answers=tuple(a if isinstance(a, str) else json.dumps(a) for a in answers),
        payload=payload,
    )


def _content(prompt: str) -> str:
    return hashlib.sha256(" ".join(prompt.casefold().split()).encode()).hexdigest()
