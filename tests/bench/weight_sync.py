"""Seconds from pause to resume of a change of weights, with a split of where they go.

Engine and learner share one GPU. Requests are live while weights change; every change is proved by
the log-probabilities of a fixed text.

    python tests/bench/weight_sync.py --model /opt/smol                      # a GPU, 135M and 1.5B
    python tests/bench/weight_sync.py --model DIR --mini                     # vLLM for the CPU

Ways: `inprocess-shared` (tensors in the engine's own layout, copied over), `inprocess-ipc` and
`http-ipc` (vLLM's own loading of a checkpoint), `http-folder` (a saved file; the CPU's way).
Results are printed as they come, one JSON line each; every engine is ended at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm import Pause, VllmOptions, connect
from agentgym.policies.vllm.engine_policy import EnginePolicy
from agentgym.records import Completion, Sampling
from agentgym.renderer.folder import load_renderer
from agentgym.serving.launch import (
    ServerDevice,
    ServerProcess,
    ServerSpec,
    WeightTransfer,
    free_port,
    log_tail,
)
from agentgym.trainers.weight_sync.synced_policy import SyncedPolicy, tolerance_of
from agentgym.trainers.weight_sync.transports import FolderTransfer, IpcTransfer, SharedTransfer

STRETCHES = ("prepare", "pause", "start", "transfer", "finish", "reset", "resume", "prove")
TARGETS_S = {"small": 0.08, "large": 0.3}


def say(**row: Any) -> None:
    """Print one result at once."""
    print(json.dumps(shortened(row)), flush=True)


def shortened(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return {k: shortened(v) for k, v in value.items()} if isinstance(value, dict) else value


def rounded(seconds: Any) -> dict[str, float]:
    return {name: round(seconds.get(name, 0.0), 4) for name in STRETCHES}


def random_model(base: Path, folder: Path) -> Path:
    """Return a folder with a Llama of 1.5 billion random weights and the tokenizer of `base`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=json.loads((base / "config.json").read_text())["vocab_size"],
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config)
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
    ):
        if (base / name).is_file():
            shutil.copy2(base / name, folder / name)
    return folder


def learner(folder: Path, *, is_mini: bool) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if is_mini else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to("cpu" if is_mini else "cuda").eval()


@asynccontextmanager
async def opened(
    way: str, folder: Path, pause: Pause, args: argparse.Namespace
) -> AsyncIterator[EnginePolicy]:
    """Start an engine or a server, and end it."""
    began = time.perf_counter()
    if way.startswith("inprocess"):
        from agentgym.policies.vllm.inprocess import InprocessOptions, open_inprocess

        policy: Any = open_inprocess(
            folder,
            load_renderer(folder),
            options=InprocessOptions(
                gpu_memory_utilization=args.gpu_memory,
                max_context_tokens=args.context,
                max_rows=max(*args.live, 1),
                is_seeded=False,
                is_eager=args.mini or args.eager,
                takes_tensors=not args.mini,
                pause=pause,
                extra={"dtype": "float32"} if args.mini else None,
            ),
        )
        say(way=way, ready_s=time.perf_counter() - began)
        try:
            yield policy
        finally:
            await policy.aclose()
        return
    log = Path(tempfile.mkdtemp(prefix="agentgym-bench-")) / "server.log"
    spec = ServerSpec(
        folder=folder,
        port=free_port(),
        log=log,
        python=args.server_python,
        device=ServerDevice.CPU if args.mini else ServerDevice.CUDA,
        max_context_tokens=args.context,
        max_rows=max(*args.live, 1),
        gpu_memory=args.gpu_memory,
        transfer=None if args.mini else WeightTransfer.IPC,
        is_eager=args.mini or args.eager,
    )
    process = ServerProcess(spec)
    try:
        await asyncio.to_thread(process.wait_ready, 240)
        say(way=way, ready_s=time.perf_counter() - began)
        options = VllmOptions(is_seeded=False, pause=pause)
        served = await connect(spec.url, renderer=load_renderer(folder), options=options)
        yield served
        await served.aclose()
    except BaseException:
        print(log_tail(log), file=sys.stderr, flush=True)
        raise
    finally:
        process.stop()


def transfer_of(way: str, folder: Path, scratch: Path) -> Any:
    kinds: dict[str, Any] = {
        "shared": SharedTransfer,
        "ipc": IpcTransfer,
        "folder": FolderTransfer,
    }
    return kinds[way.rpartition("-")[2]](folder, scratch)


async def measure(way: str, size: str, folder: Path, args: argparse.Namespace) -> None:
    """Change the weights a few times under each load, and print each split."""
    model = learner(folder, is_mini=args.mini)
    dtype = next(model.parameters()).dtype
    scratch = Path(tempfile.mkdtemp(prefix="agentgym-weights-"))
    count = sum(p.numel() for p in model.parameters())
    try:
        async with opened(way, folder, Pause(args.pause), args) as policy:
            policy_version = 0
            synced = SyncedPolicy(
                policy, model, transfer_of(way, folder, scratch), tolerance=tolerance_of(dtype)
            )
            first = await synced.verify()
            say(
                way=way,
                model=size,
                parameters=count,
                before_any_change_mean=first.mean,
                before_any_change_largest=first.largest,
            )
            for live in args.live:
                policy_version = await one_load(
                    way, size, live, synced, model, policy_version, args
                )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        del model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


async def one_load(
    way: str,
    size: str,
    live: int,
    synced: SyncedPolicy,
    model: torch.nn.Module,
    version: int,
    args: argparse.Namespace,
) -> int:
    stopped: list[float] = []
    splits: list[dict[str, float]] = []
    is_over = False
    finished: list[Completion] = []

    async def keep_busy(index: int) -> None:
        turn = 0
        while not is_over:
            request = GenerateRequest(
                episode_id=f"live-{index}",
                turn=turn,
                messages=(),
                prompt_ids=synced.inner.probe_ids[:32],
                sampling=Sampling(max_new_tokens=args.tokens),
            )
            finished.append(await synced.generate(request))
            turn += 1

    async with asyncio.TaskGroup() as tasks:
        for index in range(live):
            tasks.create_task(keep_busy(index))
        try:
            for _ in range(args.changes):
                await asyncio.sleep(args.between)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1 + 1e-2 * (torch.rand((), device=parameter.device) - 0.5))
                version += 1
                await synced.update_weights(None, version)
                report = synced.last_sync
                assert report is not None
                stopped.append(report.stopped_s)
                splits.append(rounded(report.seconds))
                say(
                    way=way,
                    model=size,
                    pause=args.pause,
                    live=live,
                    version=version,
                    pause_to_resume_s=report.stopped_s,
                    split=splits[-1],
                    proof_mean=report.mean,
                    proof_largest=report.largest,
                )
        finally:
            is_over = True
    mixed = [c for c in finished if c.tokens is not None and len(c.tokens.versions) > 1]
    warm = stopped[1:] or stopped
    say(
        way=way,
        model=size,
        pause=args.pause,
        live=live,
        summary=True,
        median_s=statistics.median(warm),
        best_s=min(warm),
        worst_s=max(warm),
        target_s=TARGETS_S[size],
        completions=len(finished),
        completions_over_a_change=len(mixed),
        median_split={n: statistics.median(s[n] for s in splits[1:] or splits) for n in STRETCHES},
    )
    return version


async def run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="agentgym-model-") as name:
        folders = {"small": args.model}
        if "large" in args.sizes:
            began = time.perf_counter()
            folders["large"] = random_model(args.model, Path(name))
            say(model="large", built_s=time.perf_counter() - began)
        for size in args.sizes:
            for way in args.ways:
                try:
                    await measure(way, size, folders[size], args)
                except Exception as error:  # the other ways are worth their time all the same
                    say(way=way, model=size, failed=f"{type(error).__name__}: {error}"[:800])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--ways", default="")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--live", default="64")
    parser.add_argument("--changes", type=int, default=6)
    parser.add_argument("--between", type=float, default=1.0, help="seconds between two changes")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pause", default="cut", choices=[p.value for p in Pause])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--gpu-memory", type=float, default=0.3)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--server-python", default=sys.executable)
    parser.add_argument("--mini", action="store_true", help="vLLM for the CPU, one small model")
    args = parser.parse_args()
    if args.model is None:
        print("skipped: give --model FOLDER, and --mini without a GPU")
        sys.exit(0)
    ways = args.ways or ("http-folder" if args.mini else "inprocess-shared,http-ipc,inprocess-ipc")
    args.ways = ways.split(",")
    args.sizes = (args.sizes or ("small" if args.mini else "small,large")).split(",")
    args.live = [int(part) for part in args.live.split(",")]
    return args


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asyncio.run(run(parsed()))
