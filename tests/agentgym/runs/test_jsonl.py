"""Append-only files that survive being killed and a full disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.errors import RecordError
from agentgym.runs.jsonl import DiskError, LineWriter, read_lines, torn_bytes


def test_written_lines_are_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:
        for line in ("one", "zwei ü", ""):
            writer.append(line)
        # "one\n" 4, "zwei ü\n" 8 (ü has two bytes), "\n" 1
        assert writer.offset() == 13
    assert list(read_lines(path)) == ["one", "zwei ü", ""]
    assert list(read_lines(path, start=4)) == ["zwei ü", ""]


def test_torn_last_line_is_ignored_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    assert list(read_lines(path)) == ["one", "two"]
    assert torn_bytes(path) == 3
    with LineWriter(path) as writer:
        assert torn_bytes(path) == 0
        writer.append("three")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("content", [b"", b"torn only", b"x" * 200_000])
def test_file_without_a_whole_line_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert torn_bytes(path) == len(content)
    LineWriter(path).close()
    assert path.read_bytes() == b""


def test_torn_line_longer_than_a_chunk_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n" + b"x" * 150_000)
    LineWriter(path).close()
    assert path.read_bytes() == b"one\n"


def test_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none")) == []
    assert torn_bytes(tmp_path / "none") == 0


def test_truncation_goes_back_to_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:
        writer.append("one")
        mark = writer.offset()
        writer.append("two")
        writer.truncate_to(mark)
        writer.append("three")
    assert list(read_lines(path)) == ["one", "three"]


@pytest.mark.parametrize(("offset", "words"), [(3, "inside a record"), (9, "fewer than the 9")])
def test_truncation_to_no_record_is_refused(tmp_path: Path, offset: int, words: str) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:
        writer.append("one")
        writer.append("two")  # 8 bytes in all
        with pytest.raises(RecordError, match=words):
            writer.truncate_to(offset)
    assert list(read_lines(path)) == ["one", "two"]


def test_line_break_inside_a_record_is_refused(tmp_path: Path) -> None:
    with LineWriter(tmp_path / "a.jsonl") as writer, pytest.raises(RecordError, match="one line"):
        writer.append("one\ntwo")
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    # A limit on the size of files fails a write part of the way, as a full disk does.
    path = tmp_path / "a.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = LineWriter(path)
    writer.append("x" * 99)  # 100 bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, before[1]))
    try:
        with pytest.raises(DiskError) as caught:
            writer.append("y" * 99)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "a.jsonl cannot be written" in str(caught.value)
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert "the 100 bytes before are whole" in str(caught.value)
    assert path.read_bytes() == b"x" * 99 + b"\n"
    writer.append("z")
    writer.close()
    assert list(read_lines(path)) == ["x" * 99, "z"]


def test_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be opened"):
        LineWriter(tmp_path / "missing" / "a.jsonl")


def test_killed_writer_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = (
        "import os, sys, pathlib\n"
        "from agentgym.runs.jsonl import LineWriter\n"
        f"writer = LineWriter(pathlib.Path({str(path)!r}))\n"
        "for number in range(1000):\n"
        "    writer.append(str(number))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False)
    assert result.returncode == -signal.SIGKILL
    assert list(read_lines(path)) == [str(number) for number in range(1000)]
