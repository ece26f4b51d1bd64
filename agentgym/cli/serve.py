"""`agentgym serve`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym.cli.output import say
from agentgym.errors import ConfigError, nearest
from agentgym.runs.policies import check_policy

if TYPE_CHECKING:
    from agentgym.serving.launch import ServerDevice, ServerSpec

ENVIRONMENT = "AGENTGYM_VLLM_ENV"
"""Variable of the process: a virtual environment that vLLM is installed in."""
_FIRST_PORT = 8_000
_LAST_PORT = 65_535
_WATCH_S = 2.0


def serve(
    policy: Annotated[
        str | None,
        typer.Argument(help="A run's folder, RUN/checkpoints/step_N, a model folder or smollm2."),
    ] = None,
    servers: Annotated[int, typer.Option("-n", help="Servers, one a GPU.", min=1)] = 1,
    port: Annotated[
        int, typer.Option(help="Port of the first; the others follow.", min=1, max=_LAST_PORT)
    ] = _FIRST_PORT,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to use, such as 0,1; one word a server.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; found out if not given.")] = None,
    transfer: Annotated[
        str | None, typer.Option(help="How a learner sends weights: ipc (same GPU) or nccl.")
    ] = None,
    lora_rank: Annotated[
        int, typer.Option(help="Largest rank of adapters; 0 takes none.", min=0)
    ] = 0,
    context: Annotated[
        int | None, typer.Option(help="Prompt and completion together.", min=1)
    ] = None,
    rows: Annotated[int, typer.Option(help="Requests that a server samples at once.", min=1)] = 256,
    gpu_memory: Annotated[
        float, typer.Option(help="Share of a GPU's memory to take.", min=0.01, max=1)
    ] = 0.85,
    front_ends: Annotated[int, typer.Option(help="Only 1; for more, start more servers (-n).")] = 1,
    eager: Annotated[bool, typer.Option("--eager", help="Start sooner, run slower.")] = False,
    python: Annotated[
        Path | None, typer.Option(help=f"Interpreter with vLLM; by default that of ${ENVIRONMENT}.")
    ] = None,
    logs: Annotated[Path, typer.Option(help="Folder of the servers' output.")] = Path("runs/serve"),
    attach: Annotated[
        str | None, typer.Option(help="Addresses of servers that run: watch, start nothing.")
    ] = None,
) -> int:
    """Start vLLM servers on this machine and look after them, or watch some that run."""
    if (policy is None) == (attach is None):
        raise ConfigError("give a policy to serve, or --attach URL,… to watch (got both or none)")
    if attach is not None:
        urls = [url.rstrip("/") for url in attach.split(",")]
        return asyncio.run(_until_signal(_watch_running(urls)))
    assert policy is not None
    _require_one(front_ends)
    from agentgym.policies.vllm.keys import new_key
    from agentgym.serving.launch import ServerDevice, ServerSpec, WeightTransfer

    known = _one_of("device", device, [d.value for d in ServerDevice])
    chosen = ServerDevice(known or _found_device())
    words = _words(gpus, servers)
    way = _one_of("transfer", transfer, [w.value for w in WeightTransfer])
    _check_ports(port, servers)
    interpreter = str(python) if python is not None else _interpreter()
    _check_interpreter(interpreter)
    check_policy(policy, trained=True)
    _check_logs(logs)
    folder = _folder(policy, chosen, logs)
    key = new_key()
    specs = [
        ServerSpec(
            folder=folder,
            port=port + index,
            log=(logs / f"server-{index}.log").resolve(),
            key=key,
            python=interpreter,
            device=chosen,
            gpu=words[index],
            max_context_tokens=context,
            max_rows=rows,
            gpu_memory=gpu_memory,
            transfer=WeightTransfer(way) if way is not None else None,
            lora_rank=lora_rank,
            is_eager=eager,
        )
        for index in range(servers)
    ]
    return asyncio.run(_until_signal(_supervise(specs)))


def _require_one(front_ends: int) -> None:
    # Its command that starts several does not say when its process began, and that is how a server
    # that was started anew is told from the one before.
    if front_ends != 1:
        more = max(front_ends, 2)
        raise ConfigError(
            f"'front_ends' must be 1 (got {front_ends!r}): vLLM's server speaks HTTP in one "
            f"process. Where that is too slow start several servers: -n {more}, with --gpus, or "
            "on one GPU with a smaller --gpu-memory each"
        )


async def _supervise(specs: list[ServerSpec]) -> None:
    """Start the servers and look after them until a signal comes."""
    from agentgym.policies.vllm.keys import VARIABLE, private_folder
    from agentgym.serving.supervisor import Supervisor

    say(f"output of the servers: {specs[0].log.parent}")
    say(
        f"key of the servers: in {private_folder() / f'key-{specs[0].port}'}, where clients of "
        f"this user find it themselves; others set {VARIABLE} to it"
    )
    async with Supervisor(specs, on_event=say) as supervisor:
        say(f"policy: vllm:{','.join(spec.url for spec in specs)}")
        await supervisor.watch()


async def _watch_running(urls: list[str]) -> None:
    """Say when servers that somebody else started come and go, until a signal comes."""
    from agentgym.policies.vllm import Server

    known: dict[str, bool] = {}
    servers = [Server(url) for url in urls]
    try:
        while True:
            for server in servers:
                is_well = await server.is_healthy()
                if known.get(server.url) != is_well:
                    known[server.url] = is_well
                    say(f"{server.url} {'answers' if is_well else 'does not answer'}")
            await asyncio.sleep(_WATCH_S)
    finally:
        for server in servers:
            await server.aclose()


async def _until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Run `work` until it ends or somebody asks for the end, by Ctrl-C or SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return 0


def _folder(policy: str, device: ServerDevice, logs: Path) -> Path:
    """Return the folder to serve: the policy's own, or a copy that a CPU can change."""
    from agentgym.runs.load_policy import load_part
    from agentgym.serving.launch import ServerDevice

    models = load_part("agentgym.trainers.models.load")
    folder = Path(models.resolve_policy(policy, folder=logs / "policy")).resolve()
    if device is ServerDevice.CPU:
        untied_copy: Any = load_part("agentgym.trainers.weight_sync.staging").untied_copy
        copy: Path = untied_copy(folder, logs.resolve() / "model")
        return copy
    return folder


def _one_of(option: str, word: str | None, known: list[str]) -> str | None:
    if word is not None and word not in known:
        raise ConfigError(
            f"'--{option}' must be one of {known!r} (got {word!r}){nearest(word, known)}"
        )
    return word


def _check_ports(first: int, servers: int) -> None:
    if first + servers - 1 > _LAST_PORT:
        raise ConfigError(
            f"the ports of {servers} servers end at {_LAST_PORT}: '--port' must be at most "
            f"{_LAST_PORT - servers + 1} (got {first!r})"
        )


def _check_interpreter(python: str) -> None:
    """Raise where an interpreter is missing, or has no vLLM: a server would not start."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    except OSError as error:
        raise ConfigError(
            f"'--python' must be an interpreter that has vLLM (got {python!r}: {error.strerror})"
        ) from error
    if done.returncode != 0:
        raise ConfigError(
            f"serving needs vLLM, which {python!r} has not: pip install 'agentgym-rl-kit[vllm]' "
            f"there, or name an interpreter that has it with --python or ${ENVIRONMENT}"
        )


def _check_logs(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"'--logs' must be a folder that can be written to (got {str(folder)!r}: "
            f"{error.strerror})"
        ) from error


def _words(gpus: str | None, servers: int) -> Sequence[str | None]:
    """Return the GPU of each server; None leaves it to the environment."""
    words = gpus.split(",") if gpus is not None else [None] * servers
    if len(words) != servers:
        raise ConfigError(f"'gpus' must name one GPU a server, {servers} (got {gpus!r})")
    return words


def _found_device() -> str:
    from agentgym.policies.vllm.start_lock import has_gpu

    return "cuda" if has_gpu() else "cpu"


def _interpreter() -> str:
    """Return the interpreter of vLLM's environment, if one is named, else this one."""
    named = os.environ.get(ENVIRONMENT)
    return str(Path(named) / "bin" / "python") if named else sys.executable


__all__ = ["ENVIRONMENT", "serve"]
