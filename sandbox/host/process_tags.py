"""Names that tell which process made a thing, so that what a crashed one left can be found."""

from __future__ import annotations

import os
from pathlib import Path


def owned_name(prefix: str) -> str:
    """Return the prefix followed by this process's id and start time."""
    return f"{prefix}{os.getpid()}-{start_time(os.getpid())}"


def is_owner_alive(name: str, prefix: str) -> bool:
    """Return whether the process that made a thing of that name still runs.

    Ids are used again; the start time tells a later process of the same id apart.
    """
    pid, _, rest = name.removeprefix(prefix).partition("-")
    started = rest.partition("-")[0]
    return pid.isdigit() and started.isdigit() and start_time(int(pid)) == int(started)


def start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])
