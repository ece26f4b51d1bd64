"""Tokens a second of in-process generation, beside three other ways to do the same.

Episodes of a few turns: a prompt, then sampled ids and an observation in turn. Each way does the
same work, end ids ignored; the ways alternate and the best round of each is printed, which other
load on the machine disturbs least. `all` counts every id of every row, `sampled` the sampled ones.

    python tests/bench/generation.py --episodes 128 --threads 1 [--model FOLDER] [--device cuda]
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig

from agentgym.policies.base import GenerateRequest
from agentgym.policies.transformers import TransformersPolicy
from agentgym.records import Sampling
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny

FIRST_ID = 20
"""Ids from here on are ordinary in every model used here."""


@dataclass(frozen=True)
class Work:
    """What each way has to do."""

    episodes: int
    turns: int
    prompt: int
    sampled: int
    observed: int

    @property
    def total(self) -> int:
        per_row = self.prompt + self.turns * self.sampled + (self.turns - 1) * self.observed
        return self.episodes * per_row

    @property
    def drawn(self) -> int:
        return self.episodes * self.turns * self.sampled


class NoEnd:
    """A renderer without an end: every turn has its full length."""

    end_ids: frozenset[int] = frozenset()

    def decode(self, ids: Any) -> str:
        return ""


def text(rows: int, length: int, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_ID, 250, (rows, length), generator=generator).to(device)


async def ours(policy: TransformersPolicy, work: Work, round_: int) -> None:
    """Every episode on its own, as the engine runs them."""
    device = torch.device("cpu")

    async def episode(index: int) -> None:
        name = f"{round_}-{index}"
        await policy.begin_episode(name)
        prompt = tuple(text(1, work.prompt, index, device)[0].tolist())
        for turn in range(work.turns):
            sampling = Sampling(max_new_tokens=work.sampled, seed=index * 100 + turn)
            answer = await policy.generate(
                GenerateRequest(
                    episode_id=name, turn=turn, messages=(), prompt_ids=prompt, sampling=sampling
                )
            )
            assert answer.tokens is not None
            observed = tuple(text(1, work.observed, index + turn, device)[0].tolist())
            prompt = prompt + answer.tokens.ids + observed
        await policy.end_episode(name)

    await asyncio.gather(*(episode(index) for index in range(work.episodes)))


@torch.no_grad()
def plain_loop(model: Any, work: Work) -> None:
    """All rows in step, one id at a time, on transformers' own cache: no episode may differ."""
    cache = DynamicCache(config=model.config)
    names = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    device = model.device
    logits = None
    for turn in range(work.turns):
        size = work.prompt if turn == 0 else work.observed
        forced = text(work.episodes, size, turn, device)
        for place in range(size + work.sampled):
            if place < size:
                ids = forced[:, place : place + 1]
            else:
                assert logits is not None
                ids = torch.multinomial(logits[:, -1].float().softmax(-1), 1)
            logits = model(ids, use_cache=True, **{name: cache}).logits


@torch.no_grad()
def generate(model: Any, work: Work) -> None:
    """`model.generate` for each turn, all rows together, the prompt computed anew each time."""
    rows = text(work.episodes, work.prompt, 0, model.device)
    for turn in range(work.turns):
        rows = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            top_k=0,
            max_new_tokens=work.sampled,
            min_new_tokens=work.sampled,
            pad_token_id=0,
        )
        rows = torch.cat((rows, text(work.episodes, work.observed, turn, model.device)), dim=1)


def continuous(model: Any, work: Work) -> None:
    """transformers' continuous batching for each turn, the prompt computed anew each time."""
    rows = text(work.episodes, work.prompt, 0, torch.device("cpu")).tolist()
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=work.sampled, eos_token_id=-1, pad_token_id=0
    )
    for turn in range(work.turns):
        answers = model.generate_batch(rows, generation_config=config, progress_bar=False)
        ordered = [answers[f"req_{index}"].generated_tokens for index in range(len(rows))]
        observed = text(work.episodes, work.observed, turn, torch.device("cpu")).tolist()
        rows = [[*a, *b, *c] for a, b, c in zip(rows, ordered, observed, strict=True)]


def measure(ways: dict[str, Callable[[], None]], work: Work, rounds: int) -> None:
    best: dict[str, float] = {}
    for round_ in range(rounds + 1):
        for name, run in list(ways.items()):
            began = time.perf_counter()
            try:
                run()
            except Exception as error:
                print(f"{name:28s} does not run here: {type(error).__name__}: {str(error)[:90]}")
                del ways[name]
                continue
            seconds = time.perf_counter() - began
            if round_:  # the first one warms up
                best[name] = min(best.get(name, seconds), seconds)
    for name, seconds in best.items():
        print(
            f"{name:28s} {seconds:8.3f} s   all {work.total / seconds / 1e3:8.1f} k/s"
            f"   sampled {work.drawn / seconds / 1e3:8.1f} k/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=12)
    parser.add_argument("--sampled", type=int, default=16)
    parser.add_argument("--observed", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--size", default="small")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--continuous", action="store_true", help="on a CPU it was not seen to end")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    work = Work(options.episodes, options.turns, options.prompt, options.sampled, options.observed)
    folder = options.model or build_tiny(
        tempfile.mkdtemp(),
        size=options.size,
        hidden=options.hidden,
        layers=options.layers,
        heads=options.heads,
    )
    model: Any = load_model(folder, device=options.device)
    print(f"{work}, {options.threads} threads, {options.device}, torch {torch.__version__}")
    renderer: Any = NoEnd()
    policy = TransformersPolicy(model, renderer)
    counter = iter(range(10**6))
    loop = asyncio.new_event_loop()
    ways: dict[str, Callable[[], None]] = {
        "this package": lambda: loop.run_until_complete(ours(policy, work, next(counter))),
        "plain loop, rows in step": lambda: plain_loop(model, work),
        "generate, each turn": lambda: generate(model, work),
    }
    if options.continuous:
        ways["continuous batching"] = lambda: continuous(model, work)
    measure(ways, work, options.rounds)
    loop.run_until_complete(policy.aclose())
    loop.close()


if __name__ == "__main__":
    main()
