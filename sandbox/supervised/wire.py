"""Frames between the host and a supervisor, and what answers become: results, texts, errors."""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from agentgym.errors import InfrastructureError, SandboxError
from agentgym.sandbox.base import EXIT_SIGNAL_BASE, ExecResult, SandboxFileError

KILLED = EXIT_SIGNAL_BASE + 9
LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the supervisor."""

    header: Mapping[str, Any]
    payload: bytes


def frame(header: Mapping[str, Any], payload: bytes) -> bytes:
    """Return one frame: two lengths, the header as JSON, the payload."""
    text = json.dumps(header).encode()
    return struct.pack(">II", len(text), len(payload)) + text + payload


def positive(name: str, value: float | None, default: float) -> float:
    """Return the value, or the default; raise SandboxError unless it is above 0."""
    number = default if value is None else value
    if not number > 0:
        raise SandboxError(f"'{name}' must be > 0 (got {number!r})")
    return number


def path_parts(path: str, *, is_folder: bool = False) -> list[str]:
    """Return the parts of a path below the work folder."""
    pure = PurePosixPath(path)
    parts = list(pure.parts)
    if pure.is_absolute() or ".." in parts or "\0" in path or not (parts or is_folder):
        raise SandboxFileError(
            f"paths are relative to the work folder, without '..' (got {path!r})"
        )
    return parts


def check_file(answer: Answer, path: str) -> None:
    """Raise SandboxFileError if the box refused to read or write the file."""
    if "refused" in answer.header:
        raise SandboxFileError(f"cannot use the file {path!r}: {answer.header['text']}")


def whole_characters(data: bytes, *, is_head: bool) -> bytes:
    r"""Return a piece that was cut out of UTF-8 without the part of a character at its cut.

    Args:
        data: First bytes, cut at their end, or last bytes, cut at their start.
        is_head: Which of the two.

    Example:
        whole_characters(b"a\xc3", is_head=True) is b"a": two bytes make "ä".
    """
    if is_head:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        pending = len(decoder.getstate()[0])
        return data[: len(data) - pending]
    continuation = range(0x80, 0xC0)
    begin = 0
    while begin < min(len(data), LONGEST_CHARACTER - 1) and data[begin] in continuation:
        begin += 1
    return data[begin:]


def joined(pieces: bytes, sizes: Sequence[int], total: int) -> tuple[str, bool]:
    """Return head and tail as one text, the gap named; and whether there is one."""
    head, tail = pieces[: sizes[0]], pieces[sizes[0] : sizes[0] + sizes[1]]
    if total == len(head) + len(tail):
        return (head + tail).decode("utf-8", "replace"), False
    head, tail = whole_characters(head, is_head=True), whole_characters(tail, is_head=False)
    omitted = total - len(head) - len(tail)
    texts = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
    return f"{texts[0]}\n[... {omitted} bytes left out ...]\n{texts[1]}", True


def exec_result(answer: Answer) -> ExecResult:
    """Return what became of a program, as the supervisor tells it."""
    header = answer.header
    if "refused" in header:
        raise InfrastructureError(f"the box refused to run a program: {header['text']}")
    if "lost" in header:
        return ExecResult(
            exit_code=KILLED,
            stdout="",
            stderr="",
            timed_out=not header["out_of_memory"],
            out_of_memory=header["out_of_memory"],
            box_restarted=True,
            wall_s=header["wall_s"],
        )
    sizes, totals = header["sizes"], header["totals"]
    split = sizes[0] + sizes[1]
    stdout, stdout_cut = joined(answer.payload[:split], sizes[:2], totals[0])
    stderr, stderr_cut = joined(answer.payload[split:], sizes[2:], totals[1])
    return ExecResult(
        exit_code=header["exit_code"],
        stdout=stdout,
        stderr=stderr,
        stdout_truncated=stdout_cut,
        stderr_truncated=stderr_cut,
        timed_out=header["timed_out"],
        out_of_memory=header["out_of_memory"],
        wall_s=header["wall_s"],
        cpu_s=header["cpu_s"],
    )


def lost_answer(wall_s: float, out_of_memory: bool) -> Answer:
    """Return the answer that stands for a supervisor which programs made unusable."""
    header = {"lost": True, "wall_s": wall_s, "out_of_memory": out_of_memory}
    return Answer(header=header, payload=b"")
