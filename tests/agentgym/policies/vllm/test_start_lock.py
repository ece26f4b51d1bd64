"""Engines start one after the other on a GPU: F53. The class: two measurers of one resource."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.start_lock import blocking_gpu_turn, gpu_turn, gpus_of
from agentgym.serving import supervisor as supervision
from agentgym.serving.launch import ServerDevice, ServerProcess, ServerSpec, free_port
from agentgym.serving.supervisor import Supervisor, WatchOptions

HOLD = """
import asyncio, sys
from agentgym.policies.vllm.start_lock import gpu_turn
async def main():
    async with gpu_turn(["7"], patience_s=20):
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def test_a_process_sees_the_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_of(None) == ("0",)
    assert gpus_of("3, 1") == ("1", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpus_of(None) == ("2",)


async def test_f53_a_turn_is_held_against_all_who_share_one_of_its_gpus() -> None:
    said: list[str] = []
    async with gpu_turn(["0", "1"], patience_s=0):
        for gpus in (["0"], ["1"], ["1", "2"]):
            with pytest.raises(InfrastructureError, match="another engine has been starting"):
                async with gpu_turn(gpus, patience_s=0, on_wait=said.append):
                    pass
            with pytest.raises(InfrastructureError), blocking_gpu_turn(gpus, patience_s=0):
                pass
        # "1" was taken and "2" was free: it is free again.
        async with gpu_turn(["2"], patience_s=0), gpu_turn([], patience_s=0):
            pass
    assert said[-1] == "waiting for an engine that starts on GPU 1, 2"
    with blocking_gpu_turn(["0", "1"], patience_s=0):
        pass


async def test_f53_a_process_that_is_killed_gives_its_turn_back() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    with pytest.raises(InfrastructureError):
        async with gpu_turn(["7"], patience_s=0):
            pass
    process.kill()
    await process.wait()
    async with gpu_turn(["7"], patience_s=20):
        pass


@pytest.mark.parametrize(
    ("device", "gpus", "is_in_turn"),
    [
        (ServerDevice.CUDA, ("0", "0", "0"), True),
        (ServerDevice.CUDA, ("0", "1", "2"), False),
        (ServerDevice.CPU, (None, None, None), False),
    ],
)
async def test_f53_servers_on_one_gpu_start_in_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: ServerDevice,
    gpus: tuple[str | None, ...],
    is_in_turn: bool,
) -> None:
    build = pytest.importorskip("agentgym.trainers.models.tiny").build_tiny
    folder = build(tmp_path / "tiny", corpus=("37*48 = 1776 ",) * 30, seed=1)
    specs = [
        ServerSpec(
            folder=folder,
            port=free_port(),
            log=tmp_path / "logs" / f"{index}.log",
            device=device,
            gpu=gpu,
            module="agentgym.testing.fake_vllm",
        )
        for index, gpu in enumerate(gpus)
    ]
    events: list[str] = []

    def start(spec: ServerSpec) -> ServerProcess:
        events.append(f"start {spec.url}")
        return ServerProcess(spec)

    def note(event: str) -> None:
        if "is ready" in event:
            events.append(f"ready {event.split()[0]}")

    monkeypatch.setattr(supervision, "ServerProcess", start)
    # As three commands do it: each has a supervisor of its own.
    supervisors = [Supervisor([spec], options=WatchOptions(), on_event=note) for spec in specs]
    try:
        await asyncio.gather(*(one.__aenter__() for one in supervisors))
    finally:
        for one in supervisors:
            await one.aclose()
    words = [event.split()[0] for event in events]
    if is_in_turn:
        assert words == ["start", "ready"] * 3
        addresses = [event.split()[1] for event in events]
        assert addresses[::2] == addresses[1::2]
    else:
        assert words[:3] == ["start"] * 3
