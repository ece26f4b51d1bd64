"""A training run with a policy whose answers follow from the request's seed alone, whatever the
weights and however long everything takes. Run as a process, so that it can be killed.

    python seeded_run.py RUN_DIR [--resume] [--disk=BYTES] [KEY=VALUE ...]

With `--disk` no file may grow past so many bytes once training begins, as on a disk that is full.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from agentgym.config import load_config
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, TokenTrace, VersionRun
from agentgym.renderer.base import Renderer
from agentgym.runs.folder import RunFolder, read_config
from agentgym.runs.progress import Silent
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.loop.setup import check_inputs, open_session
from agentgym.trainers.loop.train import run_loop

SETTINGS: dict[str, Any] = {
    "envs": ["math/arithmetic"],
    "preset": "trloo",
    "preset_overrides": {
        "correction.part": "truncated",
        "correction.level": "token",
        "correction.cap": 2.0,
    },
    "seed": 11,
    "steps": 12,
    "rollout.groups_per_step": 2,
    "rollout.group_size": 3,
    "rollout.max_staleness": 2,
    "rollout.max_new_tokens": 24,
    "optim.learning_rate": 0.003,
    "optim.warmup_steps": 5,
    "warmstart.steps": 0,
    "eval.at_start": False,
    "eval.at_end": False,
    "checkpoint.every": 2,
}


class SeededPolicy:
    """Asks the calculator once, then answers, rightly every other time."""

    id = "seeded"
    max_context_tokens = None

    def __init__(self, learner: Learner, renderer: Renderer, state: LoopState) -> None:
        self.renderer = renderer
        self.version = state.policy_version
        self._clock = random.Random()  # not seeded: who ends first differs from run to run

    async def generate(self, request: GenerateRequest) -> Completion:
        rng = random.Random(request.sampling.seed)
        await asyncio.sleep(self._clock.random() ** 3 * 0.3)
        expression = next(m.content for m in request.messages if m.role == "user")
        if request.turn == 0:
            text = f"<calculator>{rng.randrange(9)}+{rng.randrange(9)}</calculator>"
        else:
            right = eval(expression, {"__builtins__": {}})  # digits and operators, of our own
            answer = right if rng.random() < 0.5 else rng.randrange(99)
            text = f"<answer>{answer:g}</answer>"
        ids = self.renderer.encode_completion(text)
        return Completion(
            text=self.renderer.decode(ids),
            sampling=request.sampling,
            policy_id=self.id,
            tokens=TokenTrace(
                ids=ids,
                behavior_logprobs=tuple(-5.5 - rng.random() for _ in ids),
                versions=(VersionRun(version=self.version, count=len(ids)),),
            ),
        )

    async def begin_episode(self, episode_id: str) -> None:
        pass

    async def end_episode(self, episode_id: str) -> None:
        pass

    async def update_weights(self, weights: Any, version: int) -> None:
        self.version = version

    async def aclose(self) -> None:
        pass


async def run(folder: RunFolder, *, is_resumed: bool, disk: int | None) -> None:
    session = await open_session(
        check_inputs(folder.config),
        folder,
        progress=Silent(),
        is_resumed=is_resumed,
        make_policy=SeededPolicy,
    )
    if disk is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, resource.RLIM_INFINITY))
    await run_loop(session)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    path = Path(arguments[0])
    is_resumed = "--resume" in arguments
    words = [word for word in arguments[1:] if "=" in word and not word.startswith("--")]
    limits = [int(word[7:]) for word in arguments if word.startswith("--disk=")]
    disk = limits[0] if limits else None
    if is_resumed:
        folder = RunFolder.open(path, read_config(path))
    else:
        folder = RunFolder.create(path, load_config(settings=SETTINGS, assignments=words))
    with folder:
        asyncio.run(run(folder, is_resumed=is_resumed, disk=disk))


if __name__ == "__main__":
    main(sys.argv[1:])
