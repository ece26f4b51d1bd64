"""How the supervisor gets into a box: its source, and the command that reads it and becomes it."""

from __future__ import annotations

import functools
from importlib import resources

BOOT = """\
import os
def take(count):
    data = b""
    while len(data) < count:
        chunk = os.read(0, count - len(data))
        if not chunk: raise SystemExit(0)
        data += chunk
    return data
exec(compile(take(int.from_bytes(take(4), "big")), "supervisor", "exec"))
"""
"""Through standard input the source stays out of the box's process list."""


@functools.cache
def supervisor_source() -> bytes:
    """Return the program that runs first in every box."""
    return resources.files("agentgym.sandbox.inside").joinpath("supervisor.py").read_bytes()


def supervisor_argv(python: str) -> list[str]:
    """Return the command that reads the supervisor from standard input and becomes it."""
    return [python, "-I", "-S", "-c", BOOT]
