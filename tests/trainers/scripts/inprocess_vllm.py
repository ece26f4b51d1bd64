"""vLLM's engine in this process, on a CPU: run by test_vllm_inprocess.py in vLLM's environment.

    python inprocess_vllm.py FOLDER SCRATCH SITE_PACKAGES

Prints one line of JSON at the end: what was measured.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

# What vLLM's environment lacks comes from the project's own; what both have is vLLM's.
sys.path.append(sys.argv[3])
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

import torch

from agentgym import train
from agentgym.checks.policy import check_policy
from agentgym.env.suites import load_suite
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm.inprocess import InprocessOptions, open_inprocess
from agentgym.records import Sampling
from agentgym.records.limits import Limits
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.runs.folder import read_metrics, read_trajectories
from agentgym.trainers.models.load import load_model
from agentgym.trainers.weight_sync.staging import untied_copy
from agentgym.trainers.weight_sync.synced_policy import FLOAT32, SyncedPolicy, probe_logprobs
from agentgym.trainers.weight_sync.transports import FolderTransfer


async def episodes(policy: Any, count: int) -> list[Any]:
    """Play arithmetic, all at once."""
    suite = load_suite("math/arithmetic")
    specs = [
        GroupSpec(
            id=f"g{number}",
            task=suite.task("train", number),
            size=2,
            seed=number,
            sampling=Sampling(max_new_tokens=24, seed=11),
            limits=Limits(max_turns=4),
        )
        for number in range(count)
    ]
    async with Engine(policy, max_concurrent=64) as engine:
        groups = await engine.run_groups(specs)
    return [trajectory for group in groups for trajectory in group.trajectories]


def off_by(model: Any, trajectories: list[Any]) -> float:
    """Return the largest difference between stored log-probabilities and the learner's."""
    worst = 0.0
    for trajectory in trajectories:
        ids: list[int] = []
        for turn in trajectory.turns:
            ids = [*ids[: turn.prefix_length], *turn.prompt_ids, *turn.completion.tokens.ids]
            stored = turn.completion.tokens.behavior_logprobs
            own = probe_logprobs(model, ids)[-len(stored) :]
            worst = max(worst, *(abs(a - b) for a, b in zip(own, stored, strict=True)))
    return worst


async def busy(policy: Any) -> None:
    """Return once the engine has a request."""
    for _ in range(3_000):
        if (await policy.load()).running:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("no request reached the engine")


async def cancelled(policy: Any) -> int:
    """Cancel a call; return how many requests the engine has afterwards."""
    request = GenerateRequest(
        episode_id="cancelled",
        turn=0,
        messages=(),
        prompt_ids=policy.probe_ids,
        sampling=Sampling(max_new_tokens=1_000),
    )
    task = asyncio.create_task(policy.generate(request))
    await busy(policy)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return (await policy.load()).running


def shake(model: Any, version: int, part: str = "") -> None:
    """Add noise to the parameters that have `part` in their names."""
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


async def change(policy: Any, model: Any, transfer: Any, version: int) -> dict[str, Any]:
    """Change the weights while episodes run; return the proof and the versions of their ids."""
    synced = SyncedPolicy(policy, model, transfer, tolerance=FLOAT32)
    playing = asyncio.create_task(episodes(synced, 16))
    await busy(policy)
    shake(model, version)
    await synced.update_weights(None, version)
    during = await playing
    assert synced.last_sync is not None
    return {
        "proved": synced.last_sync.largest,
        "versions": sorted({version for t in during for version in versions(t)}),
        "failures": sum(t.failure is not None for t in during),
        "after": off_by(model, await episodes(synced, 4)),
    }


async def copied(policy: Any, model: Any) -> float:
    """Copy norms over the engine's own; return how far its probe is from the learner's.

    An engine on a CPU packs its projections, so a copy over parameters reaches only the others.
    """
    shake(model, 3, "norm")
    pairs = [(name, p.detach()) for name, p in model.named_parameters() if "norm" in name]
    stream = io.BytesIO()
    ForkingPickler(stream).dump(pairs)
    (control,) = policy.controls
    await control.pause()
    await control.copy_in(stream.getvalue())
    await control.reset_cache()
    await control.resume()
    own = probe_logprobs(model, policy.probe_ids)
    return max(abs(a - b) for a, b in zip(await control.probe(), own, strict=True))


async def driven(folder: Path, scratch: Path) -> dict[str, Any]:
    """Drive one engine through what the tests ask about, and a second one through the contract."""
    served, renderer = untied_copy(folder, scratch / "served"), load_renderer(folder)
    model = load_model(folder)
    options = InprocessOptions(
        max_context_tokens=1_536,
        max_rows=64,
        is_eager=True,
        extra={"dtype": "float32", "enable_chunked_prefill": False},
    )
    found: dict[str, Any] = {}
    policy = open_inprocess(served, renderer, options=options)
    try:
        found["at_start"] = off_by(model, await episodes(policy, 16))
        found["running_after_cancel"] = await cancelled(policy)
        found["folder"] = await change(policy, model, FolderTransfer(served, scratch / "f"), 1)
        found["copied"] = await copied(policy, model)
        try:
            await policy.score([((), (1, 2))])
        except PolicyError as error:
            found["refused"] = str(error)
    finally:
        await policy.aclose()
        await policy.aclose()
    policy = open_inprocess(served, renderer, options=options)
    report = await check_policy(policy)  # closes it
    found["problems"] = [str(problem) for problem in report.problems]
    return found


def trained(folder: Path, run: Path) -> dict[str, Any]:
    """Train for two steps on the engine in this process; return what the run says of itself."""
    settings = {
        "envs": [{"name": "math/arithmetic", "kwargs": {"instructions": False}}],
        "policy": str(folder),
        # Every answer of a random model is wrong; the bonus moves its weights all the same.
        "preset_overrides": {"regularizers": [{"part": "entropy_bonus", "coefficient": 0.01}]},
        "rollout.engine": "vllm",
        "rollout.groups_per_step": 2,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 24,
        "rollout.max_concurrent": 16,
        "limits.max_context_tokens": 1_024,
        "optim.device": "cpu",
        "optim.learning_rate": 1e-3,
        "eval.tasks": 8,
        "eval.max_new_tokens": 24,
        "run_dir": str(run),
    }
    summary = train(settings, steps=2)
    records = list(read_trajectories(run))
    first = [record for record in records if versions(record) == {0}]
    return {
        "steps": [row["step"] for row in read_metrics(run)],
        "off": off_by(load_model(folder), first),
        "versions": sorted({version for record in records for version in versions(record)}),
        "is_scored": summary.final is not None,
    }


def versions(trajectory: Any) -> set[int]:
    """Return the versions of the weights that sampled an episode."""
    return {run.version for turn in trajectory.turns for run in turn.completion.tokens.versions}


def main() -> None:
    """Print what was found."""
    folder, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    found = asyncio.run(driven(folder, scratch))
    found["train"] = trained(folder, scratch / "run")
    print(json.dumps(found))


if __name__ == "__main__":  # vLLM starts its engine by spawning this very file
    main()
