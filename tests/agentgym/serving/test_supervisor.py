"""Servers that are started, die, hang and are started anew; what their command says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agentgym.errors import InfrastructureError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm import Retries, VllmOptions, connect
from agentgym.policies.vllm.keys import key_for
from agentgym.records import Sampling
from agentgym.serving.launch import (
    ServerDevice,
    ServerProcess,
    ServerSpec,
    WeightTransfer,
    answers,
    free_port,
    server_command,
    server_environment,
)
from agentgym.serving.supervisor import ServerState, Supervisor, Watched, WatchOptions
from agentgym.trainers.models.tiny import build_tiny

FAKE = "agentgym.testing.fake_vllm"
WATCH = WatchOptions(every_s=0.05, answer_s=0.5, engine_s=0.5, silences=2, start_s=30)
CORPUS = ("The product of 37 and 48 is 1776. hello again ",) * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from safetensors.torch import load_file, save_file

    target = build_tiny(tmp_path_factory.mktemp("tiny"), corpus=CORPUS, seed=7)
    tensors = load_file(str(target / "model.safetensors"))
    name = "model.embed_tokens.weight"
    tensors[name] = 0.3 * torch.randn(
        tensors[name].shape, generator=torch.Generator().manual_seed(1)
    )
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
    return target


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> ServerSpec:
    return ServerSpec(
        folder=folder,
        port=free_port(),
        log=tmp_path / "logs" / "server.log",
        device=ServerDevice.CPU,
        module=FAKE,
    )


def ask() -> GenerateRequest:
    return GenerateRequest(
        episode_id="e",
        turn=0,
        messages=(),
        prompt_ids=(5, 6, 7),
        sampling=Sampling(max_new_tokens=8, seed=3),
    )


async def test_killed_server_is_started_anew_and_its_episode_goes_on(spec: ServerSpec) -> None:
    events: list[str] = []
    async with Supervisor([spec], options=WATCH, on_event=events.append) as supervisor:
        watch = asyncio.gather(supervisor.watch())
        options = VllmOptions(retries=Retries(first_wait_s=0.01), patience_s=30, trust_s=0)
        policy = await connect(spec.url, options=options)
        before = await policy.generate(ask())
        process = supervisor.servers[0].process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert await policy.generate(ask()) == before
        await policy.aclose()
        watch.cancel()
        assert [e for e in events if "ended with code -9" in e]
        again = supervisor.servers[0].process
        assert again is not None
        assert again.pid != process.pid
    # The group of the one that ran last is gone too.
    with pytest.raises(ProcessLookupError):
        os.killpg(again.pid, 0)


async def test_server_that_hangs_is_ended_and_started_anew(spec: ServerSpec) -> None:
    events: list[str] = []
    async with Supervisor([spec], options=WATCH, on_event=events.append) as supervisor:
        server = supervisor.servers[0]
        assert server.process is not None
        stopped = server.process
        os.kill(stopped.pid, signal.SIGSTOP)
        await supervisor.look(server)
        assert server.state is ServerState.SILENT
        await supervisor.look(server)
        assert server.state is ServerState.READY
        assert stopped.exit_code == -signal.SIGKILL
        assert "gave no answer 2 times" in " ".join(events)


async def test_server_that_dies_again_and_again_ends_the_watch_h8(spec: ServerSpec) -> None:
    options = replace(WATCH, restarts=2)
    async with Supervisor([spec], options=options) as supervisor:
        server = supervisor.servers[0]
        for _ in range(2):
            assert server.process is not None
            server.process.kill()
            await supervisor.look(server)
        assert server.process is not None
        server.process.kill()
        with pytest.raises(InfrastructureError, match="started anew 2 times"):
            await supervisor.look(server)


@pytest.fixture
def two(spec: ServerSpec) -> list[ServerSpec]:
    return [spec, replace(spec, port=free_port(), log=spec.log.with_name("second.log"))]


async def test_slow_restart_does_not_hide_that_another_server_died(
    two: list[ServerSpec],
) -> None:
    async with Supervisor(two, options=WATCH) as supervisor:
        slow, other = supervisor.servers
        wait_ready, is_slow = supervisor._wait_ready, asyncio.Event()

        async def held(server: Watched) -> None:
            if server is slow:
                is_slow.set()
                await asyncio.Event().wait()
            await wait_ready(server)

        supervisor._wait_ready = held
        watch = asyncio.create_task(supervisor.watch())
        assert slow.process is not None
        slow.process.kill()
        await is_slow.wait()
        first = other.process
        assert first is not None
        first.kill()
        async with asyncio.timeout(30):
            while other.process is first or other.state is not ServerState.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watch.cancel()


async def test_nothing_is_started_once_the_watch_of_a_server_has_ended_in_an_error_h8(
    two: list[ServerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first one's restarts are used up while the second is on its way to a new process.
    async with Supervisor(two, options=replace(WATCH, restarts=1)) as supervisor:
        failing, dying = supervisor.servers
        failing.restarts.append(time.monotonic())
        kill, may_go_on = ServerProcess.kill, threading.Event()
        last = dying.process

        def slowly(process: ServerProcess) -> None:
            kill(process)
            if process is last:
                may_go_on.wait(30)

        for server in supervisor.servers:
            assert server.process is not None
            server.process.kill()
        started: list[ServerSpec] = []
        monkeypatch.setattr(ServerProcess, "kill", slowly)
        monkeypatch.setattr("agentgym.serving.supervisor.ServerProcess", started.append)
        with pytest.raises(InfrastructureError, match="started anew 1 times"):
            await supervisor.watch()
        await supervisor.aclose()
        may_go_on.set()
        await asyncio.sleep(0.2)
        assert started == []


async def test_closed_supervisor_starts_nothing(
    spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Supervisor([spec], options=WATCH) as supervisor:
        (server,) = supervisor.servers
        process = server.process
        assert process is not None
        process.kill()
        await supervisor.aclose()
        server.process = process  # as a look that began before the end has it
        started: list[ServerSpec] = []
        monkeypatch.setattr("agentgym.serving.supervisor.ServerProcess", started.append)
        await supervisor._start_anew(server, "ended")
        assert started == []


async def test_server_that_cannot_start_shows_the_end_of_its_log(spec: ServerSpec) -> None:
    broken = replace(spec, folder=spec.folder / "missing")
    with pytest.raises(InfrastructureError, match=r"missing.*has no tokenizer\.json"):
        async with Supervisor([broken], options=WATCH):
            pass


def test_process_writes_to_its_log_and_ends_with_all_it_started(spec: ServerSpec) -> None:
    process = ServerProcess(spec)
    try:
        process.wait_ready(30)
        assert answers(spec.url)
    finally:
        process.stop()
        process.stop()
    assert not answers(spec.url, timeout_s=1)
    assert spec.log.is_file()


def test_fault_reaches_a_server_that_is_a_process(spec: ServerSpec) -> None:
    process = ServerProcess(spec)
    try:
        process.wait_ready(30)
        fault = {"kind": "die", "path": "/health"}
        headers = {"Authorization": f"Bearer {spec.key}"}
        httpx.post(f"{spec.url}/fault", json=fault, headers=headers, trust_env=False)
        assert not answers(spec.url)
        with pytest.raises(InfrastructureError, match="ended with code 0"):
            process.wait_ready(10)
    finally:
        process.stop()


def test_command_says_what_the_client_relies_on(spec: ServerSpec) -> None:
    on_gpu = replace(
        spec,
        device=ServerDevice.CUDA,
        gpu="1",
        transfer=WeightTransfer.IPC,
        lora_rank=16,
        max_context_tokens=2_048,
        gpu_memory=0.3,
    )
    command = " ".join(server_command(on_gpu))
    for part in (
        "--logprobs-mode processed_logprobs",
        "--generation-config vllm",
        "--host 127.0.0.1",
        "--enable-prefix-caching",
        '--weight-transfer-config {"backend":"ipc"}',
        "--enable-lora",
        "--max-lora-rank 16",
        "--max-model-len 2048",
        "--gpu-memory-utilization 0.3",
    ):
        assert part in command
    environment = server_environment(on_gpu, {"PATH": "/bin"})
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"
    # Where nothing is pickled, pickles are not taken.
    plain = server_environment(replace(on_gpu, transfer=WeightTransfer.NCCL), {})
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in plain
    assert "--dtype float32" in " ".join(server_command(spec))


def test_serve_ends_its_servers_when_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    # vLLM's place is taken by an interpreter that starts the fake server, whatever it is told.
    shim = tmp_path / "python"
    # Asked with -c whether it has vLLM, it has.
    script = f'[ "$1" = -c ] && exit 0\nshift 2\nexec {sys.executable} -m {FAKE} "$@"\n'
    shim.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    shim.chmod(0o755)
    port = free_port()
    command = [sys.executable, "-m", "agentgym.cli.main", "serve", str(folder), "--device", "cpu"]
    command += ["--port", str(port), "--python", str(shim), "--logs", str(tmp_path / "logs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(f"policy: vllm:http://127.0.0.1:{port}" in line for line in lines)
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {key_for(url)}"}
        served = httpx.get(f"{url}/v1/models", headers=headers, trust_env=False).json()
        # On a CPU, a copy whose head is a tensor of its own.
        root = Path(served["data"][0]["root"])
        assert json.loads((root / "config.json").read_text())["tie_word_embeddings"] is False
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert not answers(f"http://127.0.0.1:{port}", timeout_s=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a policy to serve"),
        (["x", "--device", "gpu"], "got 'gpu'"),
        (["x", "--device", "cpu", "--transfer", "ipx"], "did you mean 'ipc'"),
        (["x", "--device", "cuda", "-n", "2", "--gpus", "0"], "one GPU a server, 2"),
        (["x", "--device", "cpu", "--front-ends", "4"], "start several servers: -n 4"),
        (["x", "--device", "cpu", "--front-ends", "0"], "'front_ends' must be 1 (got 0)"),
    ],
)
def test_wrong_input_of_serve_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentgym.cli.main import main

    assert main(["serve", *words]) == 2
    assert message in capsys.readouterr().err
