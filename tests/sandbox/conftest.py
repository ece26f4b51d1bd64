"""Boxes of every kind that this machine has, and what the host looked like before a test."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym.sandbox.base import Sandbox, SandboxLimits
from agentgym.sandbox.bubblewrap import BubblewrapSandbox
from agentgym.sandbox.subprocess import SubprocessSandbox, UnsafeSandboxWarning

MakeBox = Callable[..., Sandbox]


def make_subprocess(limits: SandboxLimits | None = None) -> Sandbox:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeSandboxWarning)
        return SubprocessSandbox(limits)


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.service), "subprocess"])
def make_box(request: pytest.FixtureRequest) -> MakeBox:
    """Make a box of each kind."""
    return {"bubblewrap": BubblewrapSandbox, "subprocess": make_subprocess}[request.param]


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.service)])
def make_isolating_box(request: pytest.FixtureRequest) -> MakeBox:
    """Make a box of each kind that isolates."""
    return {"bubblewrap": BubblewrapSandbox}[request.param]


def own_descendants() -> int:
    """Processes below this one, zombies included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    mine, found = {os.getpid()}, 0
    for _ in range(len(parents)):
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            break
        found += len(more)
        mine |= more
    return found


@pytest.fixture
def host_is_as_before() -> Iterator[None]:
    """Fail if processes, descriptors or threads are left after the test."""
    descriptors, processes = len(os.listdir("/proc/self/fd")), own_descendants()
    yield
    for _ in range(50):
        left = len(os.listdir("/proc/self/fd")) - descriptors, own_descendants() - processes
        if left <= (0, 0):
            return
        time.sleep(0.1)
    raise AssertionError(f"left on the host: descriptors and processes {left}")
