"""Asynchronous against synchronous training on a tool that takes its time, and how old is too old.

    python tests/bench/async_training.py                              # minutes: shows that it works
    FULL="--updates 60 --warm-steps 2200 --groups 16 --size 8 --tasks 300"
    python tests/bench/async_training.py --part speed --seeds 5 $FULL
    python tests/bench/async_training.py --part staleness --seeds 3 $FULL

Speed: arithmetic with a calculator whose answers take lognormal time, the same number of updates
with `rollout.max_staleness` 0 and `--staleness`. The synchronous side overlaps the episodes of a
step. Printed: seconds a step, the quotient, what it could be at most, and the difference of the
held-out success, paired by task, with its 95 % interval.

Staleness: `grpo` with and without truncated importance weights at several bounds, without latency.

Runs that are finished in `--out` are not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import agentgym
from agentgym.env.registry import register_env
from agentgym.env.suite import GeneratedSplit
from agentgym.envs.math.arithmetic import ArithmeticEnv
from agentgym.evaluation import EvaluationResult
from agentgym.evaluation.comparison import combine, compare
from agentgym.records import Task
from agentgym.runs.folder import read_evaluations, read_metrics

ENV_ID = "bench/slow-arithmetic-v0"
TRUNCATED = {
    "correction.part": "truncated",
    "correction.level": "token",
    "correction.cap": 2.0,
}
"""Truncated importance weights of tokens, as in the source of the part."""
_instances = itertools.count()


class SlowArithmetic(ArithmeticEnv):
    """Arithmetic whose calculator answers after lognormal time.

    Args:
        median_s: Median of the latency.
        sigma: Deviation of its logarithm: at 1.0 one call of a hundred takes ten medians.
        **kwargs: As for arithmetic.
    """

    def __init__(self, *, median_s: float = 0.5, sigma: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._median_s = median_s
        self._sigma = sigma
        self._latency = random.Random(next(_instances))

    def splits(self) -> dict[str, GeneratedSplit]:
        """Return arithmetic's tasks, asked of this environment."""
        return {
            name: GeneratedSplit(generate=functools.partial(_slow_task, split.generate))
            for name, split in super().splits().items()
        }

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Wait as long as the tool takes, then answer."""
        if getattr(action, "tool_calls", ()) and self._median_s:
            await asyncio.sleep(self._median_s * self._latency.lognormvariate(0.0, self._sigma))
        return await super().astep(action)


def _slow_task(generate: Callable[[int], Task], index: int) -> Task:
    return replace(generate(index), env_id=ENV_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run gave."""

    final: EvaluationResult
    """Held-out success after the last step."""
    seconds: float
    """Training alone: no warm start, no evaluation."""
    rollout_s: tuple[float, ...]
    """[step] seconds that the learner waited for episodes."""
    learn_s: tuple[float, ...]
    """[step] seconds of learning."""
    staleness: tuple[float, ...]
    """[step] mean age of the trained tokens, in updates."""
    stale: float
    """Episodes that were dropped for their age."""


def main() -> None:
    """Run what is not there yet and print the tables."""
    options = _options()
    register_env(ENV_ID)(SlowArithmetic)
    if options.part in {"speed", "all"}:
        _speed(options)
    if options.part in {"staleness", "all"}:
        _staleness(options)


def _speed(options: argparse.Namespace) -> None:
    slow = {"median_s": options.median, "sigma": options.sigma}
    sides: dict[str, list[Run]] = {"synchronous": [], "asynchronous": []}
    for seed in range(options.seeds):
        for name, bound in (("synchronous", 0), ("asynchronous", options.staleness)):
            settings = {"rollout.max_staleness": bound, "preset_overrides": TRUNCATED}
            sides[name].append(_run(options, f"{name}-{seed}", seed, slow, settings))
    print(
        f"{options.updates} updates of {options.groups} x {options.size} episodes, latency of a "
        f"call: median {options.median:g} s, sigma {options.sigma:g}; {options.seeds} seeds"
    )
    for name, runs in sides.items():
        _print_side(name, runs)
    before = sum(run.seconds for run in sides["synchronous"])
    after = sum(run.seconds for run in sides["asynchronous"])
    print(f"speed: {before / after:.2f} times (wanted: 2.5)")
    for ahead in (1, options.staleness):
        ideal = sum(_ideal(run, ahead) for run in sides["synchronous"])
        print(f"ideal, max(generate, learn) with {ahead} steps ahead: {before / ideal:.2f} times")
    finals = [[run.final for run in runs] for runs in sides.values()]
    difference = compare(finals[0], finals[1])
    if difference is not None:
        print(f"final success, asynchronous minus synchronous: {difference.interval}")


def _print_side(name: str, runs: Sequence[Run]) -> None:
    steps = sum(len(run.rollout_s) for run in runs)
    waits = sum(sum(run.rollout_s) for run in runs) / steps
    learns = sum(sum(run.learn_s) for run in runs) / steps
    ages = sum(sum(run.staleness) for run in runs) / steps
    print(
        f"{name:<13} {sum(run.seconds for run in runs) / steps:6.2f} s a step "
        f"(waits {waits:.2f}, learns {learns:.2f}), tokens {ages:.2f} updates old, "
        f"{sum(run.stale for run in runs):.0f} episodes dropped for their age, "
        f"final {combine([run.final for run in runs])}"
    )


def _ideal(run: Run, ahead: int) -> float:
    """Return the seconds of a synchronous run if nothing waited for anything but work.

    With so many steps ahead, `ahead + 1` steps' episodes share the time that a step's take.
    """
    pairs = zip(run.rollout_s, run.learn_s, strict=True)
    return sum(max(generate / (ahead + 1), learn) for generate, learn in pairs)


def _staleness(options: argparse.Namespace) -> None:
    print(f"grpo, {options.updates} updates, {options.seeds} seeds, no latency")
    for bound in options.bounds:
        for name, overrides in (("plain", {}), ("truncated", TRUNCATED)):
            settings = {"rollout.max_staleness": bound, "preset_overrides": overrides}
            runs = [
                _run(options, f"grpo-{bound}-{name}-{seed}", seed, {"median_s": 0.0}, settings)
                for seed in range(options.seeds)
            ]
            _print_side(f"{bound} {name}", runs)


def _run(
    options: argparse.Namespace,
    name: str,
    seed: int,
    env: Mapping[str, float],
    settings: Mapping[str, Any],
) -> Run:
    """Return a run, trained now if it is not there."""
    path = Path(options.out) / name
    if not _finals(path):
        begun = (path / "config.yaml").is_file()
        config = {**_settings(options, seed, env), **settings, "run_dir": str(path)}
        agentgym.train(None if begun else config, resume=path if begun else None)
    rows = read_metrics(path)
    return Run(
        final=_finals(path)[-1],
        seconds=rows[-1]["elapsed_s"],
        rollout_s=tuple(row["rollout_s"] for row in rows),
        learn_s=tuple(row["learn_s"] for row in rows),
        staleness=tuple(row["staleness_mean"] for row in rows),
        stale=sum(row["stale_episodes"] for row in rows),
    )


def _settings(options: argparse.Namespace, seed: int, env: Mapping[str, float]) -> dict[str, Any]:
    levels = {"levels": [1, 2], "instructions": False}
    return {
        "envs": [{"name": ENV_ID, "kwargs": {**levels, **env}}],
        "policy": "tiny",
        "preset": "grpo",
        "seed": seed,
        "steps": options.updates,
        "warmstart.path": str(_warm(options, seed)),
        "warmstart.steps": 0,
        "rollout.groups_per_step": options.groups,
        "rollout.group_size": options.size,
        "rollout.max_new_tokens": 32,
        # As many as may be under way; the synchronous side never comes near it.
        "rollout.max_concurrent": min(options.groups * options.size * (options.staleness + 1), 512),
        "limits.max_turns": 4,
        "optim.learning_rate": options.lr,
        "optim.warmup_steps": 2,
        "optim.device": options.device,
        "eval.at_start": False,
        "eval.tasks": options.tasks,
        "eval.max_new_tokens": 32,
    }


def _warm(options: argparse.Namespace, seed: int) -> Path:
    """Return the folder of a seed's warm start, made now if it is not there."""
    path = Path(options.out) / f"warm-{seed}"
    if not _finals(path):
        agentgym.train(
            {
                "envs": [{"name": "math/arithmetic", "kwargs": {"instructions": False}}],
                "policy": "tiny",
                "seed": seed,
                "steps": 1,
                "optim.learning_rate": 1e-12,  # one step, which changes nothing
                "optim.device": options.device,
                "rollout.groups_per_step": 1,
                "rollout.group_size": 2,
                "warmstart.steps": options.warm_steps,
                "warmstart.warmup_steps": min(50, options.warm_steps // 4),
                "warmstart.demos": min(8_000, 64 * options.warm_steps),
                "warmstart.guess_share": 0.5,
                "eval.at_start": False,
                "eval.tasks": options.tasks,
                "eval.max_new_tokens": 32,
                "run_dir": str(path),
            }
        )
    print(f"warm start of seed {seed}: {_finals(path)[-1].success}")
    return path / "warmstart"


def _finals(path: Path) -> list[EvaluationResult]:
    if not (path / "config.yaml").is_file():
        return []
    return [EvaluationResult.from_dict(found) for found in read_evaluations(path).values()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--part", choices=("speed", "staleness", "all"), default="speed")
    add("--seeds", type=int, default=1)
    add("--updates", type=int, default=6)
    add("--warm-steps", type=int, default=200)
    add("--groups", type=int, default=4)
    add("--size", type=int, default=4)
    add("--lr", type=float, default=1e-4, help="learning rate")
    add("--staleness", type=int, default=4, help="bound of the asynchronous side")
    add("--bounds", type=int, nargs="+", default=[1, 8, 32], help="bounds of part staleness")
    add("--median", type=float, default=0.5, help="median latency of a call, in seconds")
    add("--sigma", type=float, default=1.0, help="deviation of its logarithm")
    add("--tasks", type=int, default=40, help="held-out tasks")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--out", default="runs/async")
    return parser.parse_args()


if __name__ == "__main__":
    main()
