"""Boxes of every kind that this machine has, and what the host looked like before a test."""

from __future__ import annotations

import functools
import os
import signal
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.sandbox.backends.bubblewrap import BubblewrapSandbox
from agentgym.sandbox.backends.docker import DockerSandbox, default_engine, in_thread
from agentgym.sandbox.backends.subprocess import SubprocessSandbox, UnsafeSandboxWarning
from agentgym.sandbox.base import Sandbox, SandboxLimits

MakeBox = Callable[..., Sandbox]


def make_subprocess(limits: SandboxLimits | None = None) -> Sandbox:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeSandboxWarning)
        return SubprocessSandbox(limits)


def make_engine_box(name: str, limits: SandboxLimits | None = None) -> Sandbox:
    """A container box of the engine `name`; `.ci/engines` starts both and names their sockets."""
    listed = os.environ.get("AGENTGYM_TEST_ENGINES", "")
    engines = dict(pair.split("=", 1) for pair in listed.split(",") if pair)
    engine = engines.get(name) or (default_engine() if name == "docker" else None)
    if engine is None:
        pytest.skip(f"no engine {name}: source .ci/engines; engines_start; eval $(engines_env)")
    return DockerSandbox(limits, engine=engine)


ISOLATING = {
    "bubblewrap": BubblewrapSandbox,
    "docker": functools.partial(make_engine_box, "docker"),
    "podman": functools.partial(make_engine_box, "podman"),
}
ISOLATING_PARAMS = [pytest.param(name, marks=pytest.mark.service) for name in ISOLATING]


@pytest.fixture(params=[*ISOLATING_PARAMS, "subprocess"])
def make_box(request: pytest.FixtureRequest) -> MakeBox:
    """Make a box of each kind."""
    return {**ISOLATING, "subprocess": make_subprocess}[request.param]


@pytest.fixture(params=ISOLATING_PARAMS)
def make_isolating_box(request: pytest.FixtureRequest) -> MakeBox:
    """Make a box of each kind that isolates."""
    return ISOLATING[request.param]


@pytest.fixture
def kill_box() -> Callable[[Any], Awaitable[None]]:
    """Kill a box from outside, as a failing machine would."""

    async def kill(box: Any) -> None:
        if box.name == "docker":
            await in_thread(box._channel._container.kill)
            return
        pid = box._channel._process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: ASYNC230
            inner = file.read().split()
        os.kill(int(inner[0]) if box.isolates else pid, signal.SIGKILL)

    return kill


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
    left = (0, 0)
    yield
    for _ in range(50):
        left = len(os.listdir("/proc/self/fd")) - descriptors, own_descendants() - processes
        if left <= (0, 0):
            return
        time.sleep(0.1)
    raise AssertionError(f"left on the host: descriptors and processes {left}")
