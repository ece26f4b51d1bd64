"""What the supervisor of a box tells, and what the host makes of it.

F27, *cut inside a character*: where bytes are cut, what is left begins and ends with whole
characters. F24, *believed because of where it was read*: the exit code of a start is its own, and
text in the pipe of a child is a reason only if it looks like one.
"""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.sandbox import doctor
from agentgym.sandbox.inside import supervisor
from agentgym.sandbox.inside.supervisor import Capture, Program, Supervisor, start_problem
from agentgym.sandbox.supervised.wire import joined, whole_characters

# ------------------------------------------------------------------------- characters (F27)


@pytest.mark.parametrize(
    ("data", "is_head", "whole"),
    [
        ("aä".encode(), True, "aä".encode()),
        ("aä".encode()[:2], True, b"a"),
        ("a€".encode()[:3], True, b"a"),  # two of three bytes
        ("a😀".encode()[:4], True, b"a"),  # three of four
        (b"a\xff", True, b"a\xff"),  # no part of any character: it stays, and is replaced
        ("äb".encode()[1:], False, b"b"),
        ("😀b".encode()[1:], False, b"b"),
        (b"\x80\x80\x80\x80b", False, b"\x80b"),  # no character has four such bytes
        (b"", False, b""),
    ],
)
def test_f27_a_piece_loses_the_part_of_a_character_at_its_cut(
    data: bytes, is_head: bool, whole: bytes
) -> None:
    assert whole_characters(data, is_head=is_head) == whole


@given(st.text(min_size=1), st.integers(min_value=1, max_value=40))
def test_f27_no_limit_cuts_inside_a_character(text: str, limit: int) -> None:
    """Head and tail are a beginning and an end of the text, and the notice counts the rest."""
    data = text.encode()
    capture = Capture(limit)
    capture.add(data)
    pieces = capture.pieces()
    shown, is_cut = joined(b"".join(pieces), [len(piece) for piece in pieces], len(data))
    assert is_cut == (len(data) > limit)
    if not is_cut:
        assert shown == text
        return
    for omitted in range(1, len(data) + 1):
        head, notice, tail = shown.partition(f"\n[... {omitted} bytes left out ...]\n")
        if notice and text.startswith(head) and text.endswith(tail):
            assert len(head.encode()) + omitted + len(tail.encode()) == len(data)
            return
    raise AssertionError(f"no notice with the right count in {shown!r}")


# ---------------------------------------------------------------------------- starting (F24)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", ""),
        (b"127 x: No such file or directory", "127 x: No such file or directory"),
        (b"126 x: Permission denied", "126 x: Permission denied"),
        (b"0 ", "126 cannot start"),
        (b"garbage", "126 cannot start"),
        (b"\xff\xfe", "126 cannot start"),
        (b"1270 x", "126 cannot start"),
    ],
)
def test_f24_what_is_no_reason_is_not_believed(text: bytes, problem: str) -> None:
    end, other_end = os.pipe()
    os.write(other_end, text)
    os.close(other_end)
    assert start_problem(end, time.monotonic() + 60) == problem
    os.close(end)


def test_f24_a_pipe_that_is_held_open_is_not_waited_for_after_the_deadline() -> None:
    end, other_end = os.pipe()
    assert start_problem(end, time.monotonic()) == ""
    os.close(end)
    os.close(other_end)


def test_f24_an_exit_code_belongs_to_a_start_and_not_to_a_process_number() -> None:
    """A program that ended unasked must not lend its exit code to the next of its number."""
    box = Supervisor.__new__(Supervisor)
    pid = os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", "exit 7")
    first = Program(pid, -1, ())
    box.tracked = {pid: first}
    assert box.wait_for(first, 60) == 7
    again = Program(pid, -1, ())
    assert (first.exit_code, again.exit_code) == (7, None)
    box.programs = {1: first, 2: again}
    assert box.living() == {pid}


@pytest.mark.parametrize(
    ("version", "word"), [(0, "memory"), (1, "memory"), (2, "signal"), (5, "signal"), (6, "")]
)
def test_f24_doctor_says_where_programs_are_not_kept_apart(
    monkeypatch: pytest.MonkeyPatch, version: int, word: str
) -> None:
    monkeypatch.setattr(supervisor, "landlock_version", lambda libc: version)
    found = doctor._kept_apart("bubblewrap")
    assert [word in finding.text for finding in found] == [True] * bool(word)
