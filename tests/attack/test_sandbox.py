"""Attacks on boxes by programs that live on in them, for as long as a box is used.

F24, *believed because of where it was read*: a result is what the kernel tells of a program, or
what came through a pipe that only this program could open.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter

import pytest

from agentgym.checks.sandbox_programs import FORGERS
from agentgym.errors import InfrastructureError
from agentgym.sandbox.backends.bubblewrap import BubblewrapSandbox
from agentgym.sandbox.backends.docker import DockerSandbox
from agentgym.sandbox.base import Sandbox

pytestmark = [pytest.mark.attack, pytest.mark.service]

CALLS = 504
"""Of each kind of box: 84 beside each of the six forgers."""
LIMIT_S = 5.0
LATE_S = 0.5


def engine_box(name: str) -> Sandbox:
    """A container box of the engine `name`, which `.ci/engines` starts."""
    listed = os.environ.get("AGENTGYM_TEST_ENGINES", "")
    engines = dict(pair.split("=", 1) for pair in listed.split(",") if pair)
    if name not in engines:
        pytest.skip(f"no engine {name}: source .ci/engines; engines_start; eval $(engines_env)")
    return DockerSandbox(engine=engines[name])


BOXES = {
    "bubblewrap": BubblewrapSandbox,
    "docker": functools.partial(engine_box, "docker"),
    "podman": functools.partial(engine_box, "podman"),
}


async def outcome(box: Sandbox) -> str:
    """Run `false` and say in a word what came back: it ends with 1 and says nothing."""
    began = time.monotonic()
    try:
        result = await box.exec(["false"], timeout_s=LIMIT_S)
    except InfrastructureError:
        return "crashed"
    if time.monotonic() - began > LIMIT_S + LATE_S:
        return "late"
    told = (result.exit_code, result.stdout, result.stderr, result.box_restarted)
    return "right" if told == (1, "", "", False) else "forged"


@pytest.mark.parametrize("kind", BOXES)
async def test_f24_no_result_of_500_is_forged_by_a_program_that_lives_on(kind: str) -> None:
    outcomes: Counter[str] = Counter()
    async with BOXES[kind]() as box:
        for forger in FORGERS.values():
            process = await box.start_process(["python3", "-c", forger])
            for _ in range(CALLS // len(FORGERS)):
                outcomes[await outcome(box)] += 1
            assert process.is_alive
            await process.stop()
    assert outcomes == {"right": CALLS}
