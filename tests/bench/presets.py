"""Presets side by side: held-out success against environment turns and seconds, in one figure.

    SEEDS=3 make quickstart                                   # gives the three warm starts
    python tests/bench/presets.py --warm runs/quickstart-{0,1,2}-1/warmstart --jobs 1

Each preset trains each warm start (one a seed) on arithmetic of level 3: two calls of the
calculator and an answer. Drawn and printed: the mean over seeds of the held-out success, with 95 %
intervals clustered by task (the seeds share the tasks). `--draw FOLDER` draws finished runs again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.evaluation import EvaluationResult
from agentgym.evaluation.statistics import Interval, mean_interval
from agentgym.runs.folder import read_evaluations

PRESETS = ("ppo", "st_ppo", "igpo", "a2tgpo", "trloo", "grpo")
SETTINGS = (
    "math/arithmetic:levels=[3]:instructions=false",
    "rollout.groups_per_step=16",
    "rollout.group_size=8",
    "rollout.max_new_tokens=32",
    "eval.max_new_tokens=32",
    "eval.tasks=300",
    "limits.max_turns=5",
    "optim.device=cpu",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One evaluation of one run."""

    step: int
    turns: float
    seconds: float
    tasks: dict[str, float]


def main() -> None:
    """Train what is not there yet, then draw and print."""
    options = _options()
    folder = Path(options.draw or options.out)
    if not options.draw and not options.warm:
        print("give the warm starts: --warm FOLDER FOLDER FOLDER, or runs to draw: --draw FOLDER")
        return
    if not options.draw:
        _train_all(options, folder)
    runs = {
        name: [read_run(run) for run in sorted(folder.glob(f"{name}-[0-9]*")) if run.is_dir()]
        for name in options.presets
    }
    runs = {name: found for name, found in runs.items() if found}
    _print_table(runs)
    _draw(runs, folder / "presets")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", nargs="+", default=[], help="warm-started folders, one a seed")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--out", default="runs/presets")
    parser.add_argument("--draw", default="", help="only draw the runs of this folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="threads of one run")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--critic-rate", type=float, default=1e-4, help="that of ppo and st_ppo")
    return parser.parse_args()


def _train_all(options: argparse.Namespace, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    work = [
        (name, seed, warm) for seed, warm in enumerate(options.warm) for name in options.presets
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda item: _train(options, folder, *item), work))


def _train(options: argparse.Namespace, folder: Path, name: str, seed: int, warm: str) -> None:
    run = folder / f"{name}-{seed}"
    if run.exists():
        return
    rate = options.critic_rate if "ppo" in name.split("_") else options.rate
    own = (
        f"policy={warm}",
        f"preset={name}",
        f"seed={seed}",
        f"steps={options.steps}",
        f"eval.every={options.every}",
        f"optim.learning_rate={rate}",
        f"optim.warmup_steps={min(5, options.steps)}",
        f"run_dir={run}",
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    with (folder / f"{name}-{seed}.log").open("w") as log:
        command = [sys.executable, "-m", "agentgym", "train", *SETTINGS, *own]
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    print(f"{name}, seed {seed}: exit code {ended.returncode}", flush=True)


def read_run(run: Path) -> list[Check]:
    """Return a run's checks, with the turns and seconds of training before each."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    turns = [0.0]
    seconds = [0.0]
    for row in rows:
        turns.append(turns[-1] + row["turns_per_episode"] * row["episodes"])
        # Rollouts and updates only: evaluations and saving are not training.
        seconds.append(seconds[-1] + row["rollout_s"] + row["learn_s"])
    checks: list[Check] = []
    for tree in read_evaluations(run).values():
        result = EvaluationResult.from_dict(tree)
        if result.step is None or result.step >= len(turns):
            continue
        checks.append(
            Check(
                step=result.step,
                turns=turns[result.step],
                seconds=seconds[result.step],
                tasks=dict(result.task_means()),
            )
        )
    return sorted(checks, key=lambda check: check.step)


def pooled(checks: list[Check]) -> Interval | None:
    """Return the mean over seeds, clustered by the tasks that they share."""
    names = set.intersection(*(set(check.tasks) for check in checks))
    means = [sum(check.tasks[name] for check in checks) / len(checks) for name in sorted(names)]
    return mean_interval(means)


def _at_steps(runs: list[list[Check]]) -> list[tuple[int, list[Check]]]:
    """Return the checks that every seed has, by step."""
    steps = sorted(set.intersection(*({check.step for check in run} for run in runs)))
    return [(step, [c for run in runs for c in run if c.step == step]) for step in steps]


def _print_table(runs: dict[str, list[list[Check]]]) -> None:
    for name, found in runs.items():
        print(f"{name}, {len(found)} seeds")
        for step, checks in _at_steps(found):
            interval = pooled(checks)
            assert interval is not None
            seeds = ", ".join(f"{sum(c.tasks.values()) / len(c.tasks):.3f}" for c in checks)
            mean_turns = sum(check.turns for check in checks) / len(checks)
            mean_seconds = sum(check.seconds for check in checks) / len(checks)
            print(
                f"  step {step:3}  {mean_turns:8,.0f} turns {mean_seconds:6.0f} s  "
                f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]  seeds {seeds}"
            )


def _draw(runs: dict[str, list[list[Check]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure: Any
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for name, found in runs.items():
        points = _at_steps(found)
        intervals: list[Any] = [pooled(checks) for _, checks in points]
        means = [interval.mean for interval in intervals]
        for axis, field in zip(axes, ("turns", "seconds"), strict=True):
            x = [sum(getattr(c, field) for c in checks) / len(checks) for _, checks in points]
            (line,) = axis.plot(x, means, marker="o", markersize=3, label=name)
            axis.fill_between(
                x,
                [interval.low for interval in intervals],
                [interval.high for interval in intervals],
                color=line.get_color(),
                alpha=0.12,
            )
    axes[0].set_xlabel("environment turns")
    axes[1].set_xlabel("seconds of rollouts and updates")
    axes[0].set_ylabel("held-out success, mean of 3 seeds, 95 %")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_ylim(0, 1.02)
    axes[1].legend(loc="lower right")
    for ending in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=150)
    print(f"drawn: {path}.png")


if __name__ == "__main__":
    main()
