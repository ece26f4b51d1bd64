"""One training step beside TRL's `GRPOTrainer`: `python tests/bench/trl_step.py`.

Both train the same folder on the same prompt through the same chat template: 8 rollouts of exactly
88 sampled tokens (the end is ignored), one update, no KL term, float32, 2 threads. Steps alternate
in one process and the medians are printed, with the floor beside them: one `generate` and one
forward and backward of the same tokens by plain transformers. TRL must be importable, in any
environment that also holds this package: `pip install trl==1.16.0 datasets accelerate`.

With `--tools FOLDER` (a policy that `make quickstart` trained) a second table: steps of 16 groups
of 8 episodes with real calls of the calculator, ours alone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from agentgym import Action, TextEnv
from agentgym.config import OptimConfig
from agentgym.env.contract import Reply
from agentgym.env.suites import load_suite
from agentgym.policies.transformers import TransformersPolicy
from agentgym.records import Sampling, Task
from agentgym.records.limits import Limits
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.samples import to_samples
from agentgym.rollouts.scoring import Rubric, score_all
from agentgym.trainers.batch import collate
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.models.load import load_model, resolve_policy
from agentgym.trainers.objective.preset import load_preset

PROMPT = "Write a few sentences about a river that flows from the mountains to the sea."
ROLLOUTS, TOKENS = 8, 88
RATE = 1e-6


def share_of_e(text: str) -> float:
    """Return a reward that differs between completions."""
    return text.count("e") / max(len(text), 1)


class OneTurnEnv(TextEnv):
    """The prompt, then the end."""

    limits = Limits(max_turns=1)

    def start(self, task: Task, rng: Any) -> str:
        """Return the prompt."""
        return PROMPT

    def respond(self, action: Action) -> Reply:
        """End with the share of a letter as the outcome."""
        return Reply(outcome=share_of_e(str(action)))


class Endless:
    """A renderer without an end, so that every completion has its full length."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self.end_ids: frozenset[int] = frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)


@dataclass(slots=True)
class Ours:
    """Our step: engine, policy and learner as in a run."""

    engine: Engine
    learner: Learner
    policy: TransformersPolicy
    renderer: Any
    max_tokens: int
    drawn: int = 0
    splits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    async def step(self, tasks: list[Task], size: int) -> tuple[int, int, int]:
        """Take one step; return sampled tokens, turns and tool calls."""
        began = time.perf_counter()
        specs = [
            GroupSpec(
                id=f"g{self.drawn}-{index}",
                task=task,
                size=size,
                seed=self.drawn * 1000 + index,
                sampling=Sampling(
                    temperature=1.0, max_new_tokens=self.max_tokens, seed=self.drawn * 1000 + index
                ),
                limits=Limits(),
            )
            for index, task in enumerate(tasks)
        ]
        self.drawn += 1
        groups = await self.engine.run_groups(specs)
        episodes = [t for group in groups for t in group.trajectories]
        scores = await score_all(episodes, Rubric())
        rows = [sample for t in episodes for sample in to_samples(t)]
        batch = collate(rows, episodes, scores, pad_id=self.renderer.pad_id)
        middle = time.perf_counter()
        metrics = self.learner.update(batch, is_single=True)
        assert metrics["trained_tokens"] > 0, [t.failure for t in episodes]
        await self.policy.update_weights(None, version=self.learner.updates)
        self.splits.append((middle - began, time.perf_counter() - middle))
        turns = [turn for t in episodes for turn in t.turns]
        traces = [turn.completion.tokens for turn in turns]
        sampled = sum(len(trace.ids) for trace in traces if trace is not None)
        return sampled, len(turns), sum(len(turn.tool_results) for turn in turns)


def ours(folder: Path, *, is_endless: bool, max_tokens: int, make_env: Any = None) -> Ours:
    """Return our step on a folder."""
    model = load_model(folder, dtype="float32")
    renderer: Any = load_renderer(folder)
    renderer = Endless(renderer) if is_endless else renderer
    policy = TransformersPolicy(model, renderer, policy_id="bench", max_rows=256)
    learner = Learner(
        model,
        preset=load_preset("grpo"),
        optim=OptimConfig(learning_rate=RATE),
        total_updates=1000,
        temperature=1.0,
        options=UpdateOptions(micro_batch_tokens=2048),
    )
    extra = {"make_env": make_env} if make_env is not None else {}
    engine = Engine(policy, max_concurrent=256, **extra)
    return Ours(engine, learner, policy, renderer, max_tokens)


class Floor:
    """One `generate` and one forward and backward of its tokens, nothing else."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._model: Any = load_model(folder, dtype="float32")
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        self._ids = ids.repeat(ROLLOUTS, 1)

    def step(self) -> None:
        """Generate, then run the same tokens forward and backward."""
        with torch.no_grad():
            ids = self._model.generate(
                self._ids,
                attention_mask=torch.ones_like(self._ids),
                do_sample=True,
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                pad_token_id=0,
            )
        self._model(input_ids=ids, labels=ids).loss.backward()
        self._model.zero_grad(set_to_none=True)


class Alternate(TrainerCallback):
    """Times TRL's steps, and takes one of ours and one of the floor after each."""

    def __init__(self, own: Ours, floor: Floor, loop: asyncio.AbstractEventLoop) -> None:
        self.own, self.floor, self.loop = own, floor, loop
        self.times: dict[str, list[float]] = {"TRL": [], "ours": [], "floor": []}
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start TRL's clock."""
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop TRL's clock, then take the other two."""
        self.times["TRL"].append(time.perf_counter() - self._began)
        began = time.perf_counter()
        task = Task(id="t", env_id="bench/one-turn-v0", prompt=PROMPT)
        counts = self.loop.run_until_complete(self.own.step([task], ROLLOUTS))
        assert counts[0] == ROLLOUTS * TOKENS
        self.times["ours"].append(time.perf_counter() - began)
        began = time.perf_counter()
        self.floor.step()
        self.times["floor"].append(time.perf_counter() - began)
        last = {name: round(values[-1], 2) for name, values in self.times.items()}
        print(f"step {len(self.times['TRL'])}: {last}", flush=True)


def trl_trainer(folder: Path, steps: int) -> Any:
    """Return TRL's trainer with the same settings."""
    datasets: Any = importlib.import_module("datasets")
    trl: Any = importlib.import_module("trl")
    rows = [{"prompt": [{"role": "user", "content": PROMPT}]}] * (steps * ROLLOUTS)
    options = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=ROLLOUTS,
        num_generations=ROLLOUTS,
        max_completion_length=TOKENS,
        generation_kwargs={"min_new_tokens": TOKENS},
        beta=0.0,
        learning_rate=RATE,
        max_steps=steps,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
    )

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [share_of_e(one[0]["content"]) for one in completions]

    model = load_model(folder, dtype="float32")
    return trl.GRPOTrainer(
        model=model,
        args=options,
        train_dataset=datasets.Dataset.from_list(rows),
        reward_funcs=reward,
    )


def main() -> None:
    """Print both tables."""
    options = _options()
    torch.set_num_threads(options.threads)
    folder = resolve_policy(options.policy)
    loop = asyncio.new_event_loop()
    if options.steps and importlib.util.find_spec("trl") is None:
        print("TRL is not installed here: pip install trl==1.16.0 datasets accelerate")
    elif options.steps:
        trainer = trl_trainer(folder, options.steps + 1)
        own = ours(
            folder, is_endless=True, max_tokens=TOKENS, make_env=lambda *_, **__: OneTurnEnv()
        )
        alternate = Alternate(own, Floor(folder), loop)
        trainer.add_callback(alternate)
        trainer.train()
        # The first step of each warms up.
        medians = {name: statistics.median(t[1:]) for name, t in alternate.times.items()}
        print(f"{ROLLOUTS} rollouts of {TOKENS} tokens, one update, {options.threads} threads")
        for name, seconds in medians.items():
            print(f"{name:6} {seconds:7.2f} s")
        print(f"ours / TRL   {medians['ours'] / medians['TRL']:.2f}")
        print(f"ours / floor {medians['ours'] / medians['floor']:.2f}")
    if options.tools:
        _tool_steps(Path(options.tools), loop)


def _tool_steps(folder: Path, loop: asyncio.AbstractEventLoop) -> None:
    own = ours(folder, is_endless=False, max_tokens=32)
    suite = load_suite("math/arithmetic", env_kwargs={"instructions": False})
    for index in range(4):
        tasks = [suite.task("train", 16 * index + i) for i in range(16)]
        sampled, turns, calls = loop.run_until_complete(own.step(tasks, 8))
        generate, learn = own.splits[-1]
        if index:
            print(
                f"128 episodes, {turns} turns, {calls} tool calls, {sampled} sampled tokens: "
                f"rollout {generate:.2f} s, update {learn:.2f} s, "
                f"{sampled / (generate + learn):,.0f} sampled tokens/s"
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="smollm2", help="smollm2 or a folder")
    parser.add_argument("--steps", type=int, default=5, help="timed steps; 0 leaves TRL out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tools", default="", help="folder of a policy that calls the calculator")
    return parser.parse_args()


if __name__ == "__main__":
    main()
