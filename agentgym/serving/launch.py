"""How a vLLM server is started: `ServerSpec`, its command and environment, and `ServerProcess`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agentgym.concurrency.threads import run_coroutine
from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.keys import VARIABLE, leave_key, new_key, take_key_away
from agentgym.policies.vllm.server import Server
from agentgym.serving import guard

SERVED_NAME = "policy"
"""Name under which servers that are started here serve their model."""
HOST = "127.0.0.1"
"""Nobody outside need reach the endpoints that change weights; who is inside brings the key."""
_READY_POLL_S = 0.5
_TERM_S = 10.0
"""Seconds from a polite end to a forced one."""
_TAIL_CHARACTERS = 1_500


class ServerDevice(StrEnum):
    """What a server computes on."""

    CPU = "cpu"
    CUDA = "cuda"


class WeightTransfer(StrEnum):
    """How tensors get into a server on a GPU."""

    IPC = "ipc"
    """From a learner on the same GPU."""
    NCCL = "nccl"
    """From a learner on another GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server to start.

    Example:
        ServerSpec(folder=Path("/models/smol"), port=8000, log=Path("server-0.log"))
    """

    folder: Path
    """Model folder."""
    port: int
    """Port on the loopback interface."""
    log: Path
    """File that takes everything it prints."""
    key: str = field(default_factory=new_key, repr=False)
    """What it asks its clients for; it is in its environment and in no command."""
    python: str = sys.executable
    """Interpreter of the environment that vLLM is installed in."""
    device: ServerDevice = ServerDevice.CUDA
    """What it computes on."""
    gpu: str | None = None
    """Which GPU, as in CUDA_VISIBLE_DEVICES; None takes what this process sees."""
    max_context_tokens: int | None = None
    """Prompt and completion together; None takes what the model declares."""
    max_rows: int = 512
    """Requests sampled at once."""
    gpu_memory: float = 0.4
    """Share of the GPU's memory, weights included."""
    cache_gib: int = 1
    """Memory for keys and values on a CPU."""
    transfer: WeightTransfer | None = None
    """How tensors get in; None: by folder or adapter only."""
    lora_rank: int = 0
    """Largest rank of adapters; 0 takes none."""
    is_eager: bool = False
    """Leave out compilation and graphs: starts sooner, runs slower."""
    extra: tuple[str, ...] = ()
    """Further arguments of vLLM's own."""
    module: str = "vllm.entrypoints.openai.api_server"
    """What the interpreter runs."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{HOST}:{self.port}"


def server_command(spec: ServerSpec) -> list[str]:
    """Return the command of a server."""
    options: list[tuple[str, object]] = [
        ("--model", spec.folder),
        ("--served-model-name", SERVED_NAME),
        ("--host", HOST),
        ("--port", spec.port),
        ("--max-num-seqs", spec.max_rows),
        # Log-probabilities of the distribution that is sampled from: after the temperature.
        ("--logprobs-mode", "processed_logprobs"),
        # None of the model's own sampling defaults: each request brings all of its own.
        ("--generation-config", "vllm"),
        ("--middleware", guard.MIDDLEWARE),
    ]
    if spec.max_context_tokens is not None:
        options.append(("--max-model-len", spec.max_context_tokens))
    if spec.device is ServerDevice.CPU:
        # No bfloat16 instructions on most CPUs, and equal log-probabilities to the learner's.
        options.append(("--dtype", "float32"))
    else:
        options.append(("--gpu-memory-utilization", spec.gpu_memory))
        if spec.transfer is not None:
            options.append(("--weight-transfer-config", f'{{"backend":"{spec.transfer}"}}'))
    if spec.lora_rank:
        options.append(("--max-lora-rank", spec.lora_rank))
    flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if spec.device is ServerDevice.CPU:
        # vLLM 0.32 on a CPU ends at a seeded request whose prompt it takes in pieces.
        flags.append("--no-enable-chunked-prefill")
    flags += ["--enable-lora"] if spec.lora_rank else []
    flags += ["--enforce-eager"] if spec.is_eager else []
    pairs = [text for name, value in options for text in (name, str(value))]
    return [
        spec.python,
        str(Path(guard.__file__).resolve()),
        spec.module,
        *pairs,
        *flags,
        *spec.extra,
    ]


def server_environment(spec: ServerSpec, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a server: this process's, and what the endpoints need."""
    own = dict(os.environ if base is None else base)
    own |= {
        VARIABLE: spec.key,
        "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that pause, reset and change weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",  # longer than any client's, which then ends first
    }
    if spec.device is ServerDevice.CPU:
        own |= {"VLLM_CPU_KVCACHE_SPACE": str(spec.cache_gib)}
    else:
        own.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it compiles where there is no compiler
    if spec.transfer is WeightTransfer.IPC:
        own["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles of shared memory are pickled
    if spec.lora_rank:
        own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if spec.gpu is not None:
        own["CUDA_VISIBLE_DEVICES"] = spec.gpu
    return own


class ServerProcess:
    """A server that runs, with all the processes that it starts.

    Args:
        spec: What to start.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        leave_key(spec.port, spec.key)
        with spec.log.open("ab") as log:
            # A session of its own: all it starts can be ended together, and Ctrl-C in a terminal
            # ends the run, which ends the server.
            self._process = subprocess.Popen(
                server_command(spec),
                env=server_environment(spec),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=spec.log.parent,
            )

    @property
    def pid(self) -> int:
        """Process id, and id of the group of all its processes."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float = 600.0) -> None:
        """Wait until the server answers.

        Raises:
            InfrastructureError: If it ends, or does not answer in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not answers(self.spec.url):
            if self.exit_code is not None:
                raise InfrastructureError(
                    f"the server ended with code {self.exit_code} before it answered; the end of "
                    f"{self.spec.log}:\n{log_tail(self.spec.log)}"
                )
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the server did not answer within {timeout_s:g} s; the end of "
                    f"{self.spec.log}:\n{log_tail(self.spec.log)}"
                )
            time.sleep(_READY_POLL_S)

    def stop(self, *, grace_s: float = _TERM_S) -> None:
        """End the server and all it started. May be called more than once."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        # Always: a parent that ended may have left its engine behind, with the GPU's memory.
        self.kill()

    def kill(self) -> None:
        """End the server and all it started at once."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        take_key_away(self.spec.port, self.spec.key)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def answers(url: str, *, timeout_s: float = 5.0) -> bool:
    """Return whether a server says that it is well."""

    async def ask() -> bool:
        server = Server(url)
        try:
            return await server.is_healthy(timeout_s=timeout_s)
        finally:
            await server.aclose()

    return run_coroutine(ask())


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as opened:
        opened.bind((HOST, 0))
        return int(opened.getsockname()[1])


def log_tail(path: Path, *, characters: int = _TAIL_CHARACTERS) -> str:
    """Return the end of a log file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-characters:]
    except OSError as error:
        return f"(cannot be read: {error})"


__all__ = [
    "SERVED_NAME",
    "ServerDevice",
    "ServerProcess",
    "ServerSpec",
    "WeightTransfer",
    "answers",
    "free_port",
    "log_tail",
    "server_command",
    "server_environment",
]
