"""Servers that are started for a learner answer its user alone: F20."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.vllm import Server
from agentgym.policies.vllm.handshake import describe
from agentgym.policies.vllm.keys import (
    VARIABLE,
    key_for,
    leave_key,
    new_key,
    private_folder,
    take_key_away,
)
from agentgym.serving import guard
from agentgym.serving.launch import ServerDevice, ServerProcess, ServerSpec, free_port
from agentgym.serving.launch import server_command as command_of

# A server of vLLM's shape: its module says what it was told, and answers nothing but one path.
MODULE = """
import asyncio, importlib, os, sys
path, _, name = sys.argv[sys.argv.index("--middleware") + 1].rpartition(".")
Guard = getattr(importlib.import_module(path), name)

async def app(scope, receive, send):
    await send({"type": "answered"})

async def ask(path, *headers, kind="http"):
    said = []
    async def send(message): said.append(message)
    async def receive(): return {"type": "websocket.connect"}
    scope = {"type": kind, "path": path, "headers": list(headers)}
    await Guard(app)(scope, receive, send)
    return said[0].get("status", said[0]["type"])

async def main():
    key = b"Bearer " + os.environ["VLLM_API_KEY"].encode()
    print(await ask("/health"))
    for path in ("/v1/completions", "/pause", "/collective_rpc", "/update_weights", "/health/",
                 "/metrics", "/tokenize", "/HEALTH", "//health"):
        print(path, await ask(path), await ask(path, (b"authorization", key)),
              await ask(path, (b"authorization", b"Bearer x")),
              await ask(path, (b"authorization", key), (b"authorization", key)))
    print(await ask("/health", kind="websocket"), await ask("", kind="lifespan"))
    print(__name__, sys.argv[1:3], sys.modules["__main__"].__spec__.name)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv(VARIABLE, raising=False)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_f20_every_path_but_health_asks_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(MODULE, encoding="utf-8")

    async def run() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            guard.__file__,
            "served",
            "--middleware",
            guard.MIDDLEWARE,
            env={**os.environ, VARIABLE: "k-1", "PYTHONPATH": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return out.decode()

    lines = asyncio.run(run()).splitlines()
    assert lines[0] == "answered"
    for line in lines[1:-2]:
        assert line.split()[1:] == ["401", "answered", "401", "401"], line
    assert lines[-2] == "websocket.close answered"
    # To itself, and to the processes that it starts, the module is what `python -m` would make it.
    assert lines[-1] == "__main__ ['--middleware', 'agentgym_guard.KeyGuard'] served"


def test_f20_a_key_is_random_and_in_no_command_and_no_text(tmp_path: Path) -> None:
    one, two = (
        ServerSpec(folder=tmp_path, port=port, log=tmp_path / "log") for port in (8000, 8001)
    )
    assert one.key != two.key
    assert len(one.key) >= 32
    for spec in (one, two):
        assert spec.key not in repr(spec)
        assert not [word for word in command_of(spec) if spec.key in word]
        assert f"--middleware {guard.MIDDLEWARE}" in " ".join(command_of(spec))


def test_f20_clients_of_the_user_find_the_key_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key_for("http://127.0.0.1:8000") is None
    path = leave_key(8000, "k-1")
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert key_for(f"http://{host}:8000") == "k-1"
    # No other server is sent it.
    for url in ("http://127.0.0.1:8001", "http://example.com:8000", "http://127.0.0.1"):
        assert key_for(url) is None
    monkeypatch.setenv(VARIABLE, "k-env")
    assert key_for("http://example.com:8000") == "k-env"
    assert key_for("http://127.0.0.1:8000") == "k-1"
    assert new_key() == "k-env"
    monkeypatch.delenv(VARIABLE)
    for loose in (path, path.parent):
        before = mode(loose)
        loose.chmod(before | 0o040)
        assert key_for("http://127.0.0.1:8000") is None
        loose.chmod(before)
    take_key_away(8000, "of a server that was there before")
    assert key_for("http://127.0.0.1:8000") == "k-1"
    take_key_away(8000, "k-1")
    assert key_for("http://127.0.0.1:8000") is None


def test_f20_a_folder_that_others_may_read_or_a_link_takes_no_key(tmp_path: Path) -> None:
    folder = private_folder()
    folder.chmod(0o755)
    with pytest.raises(InfrastructureError, match="mode 0700"):
        leave_key(8000, "k-1")
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="mode 0700"):
        leave_key(8000, "k-1")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_f20_a_server_that_is_started_here_is_open_to_its_user_alone(tmp_path: Path) -> None:
    np: Any = pytest.importorskip("numpy")
    build = pytest.importorskip("agentgym.trainers.models.tiny").build_tiny
    assert np is not None
    folder = build(tmp_path / "tiny", corpus=("37*48 = 1776 ",) * 30, seed=1)
    spec = ServerSpec(
        folder=folder,
        port=free_port(),
        log=tmp_path / "logs" / "server.log",
        device=ServerDevice.CPU,
        module="agentgym.testing.fake_vllm",
    )
    process = ServerProcess(spec)
    try:
        process.wait_ready(60)
        for path in ("/pause", "/collective_rpc", "/reset_prefix_cache", "/v1/completions"):
            answer = httpx.post(f"{spec.url}{path}", json={}, trust_env=False)
            assert answer.status_code == 401, path

        async def look(**key: Any) -> str:
            server = Server(spec.url, **key)
            try:
                return (await describe(server)).model
            finally:
                await server.aclose()

        assert asyncio.run(look()) == "policy"  # it found the key
        with pytest.raises(PolicyError, match="401"):
            asyncio.run(look(key="another"))
        others = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert spec.key.encode() not in others
    finally:
        process.stop()
    assert key_for(spec.url) is None
