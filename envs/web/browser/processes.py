"""Processes below one of ours: found by their parents, and ended whatever they are doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_PROC = Path("/proc")
_POLL_S = 0.01


def children_of(pid: int) -> tuple[int, ...]:
    """Return the ids of the direct children of a process."""
    return tuple(child for child, parent in _parents().items() if parent == pid)


def tree_of(pid: int) -> tuple[int, ...]:
    """Return a process with all below it, the process itself first."""
    parents = _parents()
    found = [pid]
    for one in found:  # grows while it is walked
        found.extend(child for child, parent in parents.items() if parent == one)
    return tuple(found)


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it is gone."""
    if _PROC.is_dir():
        try:
            return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            return ""
    return _ps("-o", "command=", "-p", str(pid)).strip()


def is_alive(pid: int) -> bool:
    """Return whether a process is there and is not a zombie."""
    if _PROC.is_dir():
        state = _stat(pid)
        return state is not None and state[0] not in {"Z", "X"}
    return bool(_ps("-o", "pid=", "-p", str(pid)).strip())


def groups_below(pid: int) -> tuple[int, ...]:
    """Return the process groups of what runs below a process, but for its own group."""
    groups = {os.getpgid(0), *(_group(one) for one in tree_of(pid)[:1])}
    found = dict.fromkeys(_group(one) for one in tree_of(pid)[1:])
    return tuple(group for group in found if group and group not in groups)


def kill_tree(
    pids: Iterable[int], *, groups: Iterable[int] = (), timeout_s: float
) -> tuple[int, ...]:
    """End processes by SIGKILL, stopped ones too: these, all below them, and whole groups.

    What its parent left behind is below nobody any more, but still in its group.

    Returns:
        Those that are still alive after `timeout_s`.
    """
    doomed = dict.fromkeys(one for pid in pids for one in tree_of(pid))
    wanted = set(groups)
    if wanted:
        doomed.update((pid, None) for pid in _parents() if _group(pid) in wanted)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while (alive := tuple(filter(is_alive, doomed))) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def _parents() -> Mapping[int, int]:
    """Return process -> its parent, of all processes that can be seen."""
    if not _PROC.is_dir():
        pairs = (line.split() for line in _ps("-ax", "-o", "pid=,ppid=").splitlines())
        return {int(pair[0]): int(pair[1]) for pair in pairs if len(pair) == 2}
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    stats = ((pid, _stat(pid)) for pid in pids)
    return {pid: int(stat[1]) for pid, stat in stats if stat is not None}


def _stat(pid: int) -> list[str] | None:
    """Return state, parent and so on of a process; None if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command stands in brackets and may hold brackets and spaces itself.
    return text.rpartition(")")[2].split()


def _group(pid: int) -> int:
    """Return the process group of a process; 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _ps(*arguments: str) -> str:
    done = subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False)
    return done.stdout
