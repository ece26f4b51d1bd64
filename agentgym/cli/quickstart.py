"""`make quickstart`: warm-start a tiny model, train it turn by turn, say what came of it.

Environment: SEEDS (number of seeds, 1), CONTROL (1 spends the same seconds on supervised steps
beside each seed), RUNS (where the run folders go, `runs`).
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.cli.output import INTERRUPTED, complain, console, print_table, say
from agentgym.config import (
    EnvSource,
    EvalConfig,
    LimitsConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    WarmstartConfig,
)
from agentgym.errors import AgentGymError
from agentgym.evaluation import EvaluationResult
from agentgym.evaluation.evaluator import choose_tasks, evaluation_sources
from agentgym.evaluation.statistics import Interval, mean_interval, paired_difference
from agentgym.evaluation.summary import task_key
from agentgym.records import Task
from agentgym.runs.folder import next_free, read_evaluations

CHECKS = 3
"""Evaluations at the end of training whose mean is the score: one alone moves by a few points."""
TOOL_LEVEL = 2
"""From this level on a task is out of reach without the calculator."""


def quickstart_config(seed: int) -> RunConfig:
    """Return the settings of the quickstart, which `agentgym train` takes as they are too."""
    return RunConfig(
        # Without instructions a row has half the tokens, and the tiny model learns as much: it
        # cannot read, the demonstrations are what tells it how to act.
        envs=(EnvSource(name="math/arithmetic", kwargs={"instructions": False}),),
        policy="tiny",
        preset="trloo",
        seed=seed,
        steps=80,
        rollout=RolloutConfig(groups_per_step=16, group_size=8, max_new_tokens=32),
        limits=LimitsConfig(max_turns=5),
        optim=OptimConfig(learning_rate=3e-4, warmup_steps=5, micro_batch_tokens=2048),
        warmstart=WarmstartConfig(steps=2200, demos=8000, guess_share=0.5, learning_rate=1e-3),
        eval=EvalConfig(every=20, tasks=300, max_new_tokens=32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What one seed gave."""

    folder: Path
    """Its run folder."""
    warm: EvaluationResult
    """After the warm start."""
    checks: tuple[EvaluationResult, ...]
    """The last evaluations of training."""
    control: EvaluationResult | None
    """After the control; None if none was asked for."""
    seconds: float
    """Training and evaluations, installation excluded."""
    levels: Mapping[str, float]
    """task -> its level."""

    def trained_means(self) -> dict[str, float]:
        """Return task -> mean outcome over the last checks."""
        means = [check.task_means() for check in self.checks]
        return {task: sum(m[task] for m in means) / len(means) for task in means[0]}

    def trained(self) -> Interval | None:
        """Return the mean of the last checks, clustered by task."""
        return mean_interval(list(self.trained_means().values()))

    def tool_share(self) -> float | None:
        """Return the share of solved episodes from level 2 on with a call that was needed."""
        solved = [
            attempt
            for check in self.checks
            for attempt in check.attempts
            if attempt.is_success and self.levels[attempt.task] >= TOOL_LEVEL
        ]
        if not solved:
            return None
        return sum(attempt.rewards.get("needed_call", 0) > 0 for attempt in solved) / len(solved)

    def difference(self) -> Interval | None:
        """Return trained minus control, paired by task."""
        if self.control is None:
            return None
        return paired_difference(self.control.task_means(), self.trained_means())


def run_seed(seed: int, *, with_control: bool, runs: Path) -> SeedResult:
    """Train one seed, with its control beside it if asked for, and return what it gave."""
    from agentgym import api
    from agentgym.concurrency.interruption import run_interruptible

    config = quickstart_config(seed)
    folder = next_free(f"quickstart-{seed}", runs)
    with progress_for(config) as sink:
        sink.on_note(f"seed {seed}, run folder: {folder}")
        began = time.monotonic()
        summary = api.run_training(config, folder, is_resumed=False, progress=sink)
        seconds = time.monotonic() - began
        if with_control:
            control: Any = importlib.import_module("agentgym.trainers.loop.sft_baseline")
            work = control.supervised_control(folder, seconds=summary.step_s, progress=sink)
            run_interruptible(work)
    results = {
        name: EvaluationResult.from_dict(tree) for name, tree in read_evaluations(folder).items()
    }
    steps = [results[name] for name in sorted(results) if name.startswith("step-")]
    return SeedResult(
        folder=folder,
        warm=steps[0],
        checks=tuple(steps[-CHECKS:]),
        control=results.get("control"),
        seconds=seconds,
        levels=levels_of(evaluation_tasks(config)),
    )


def evaluation_tasks(config: RunConfig) -> tuple[Task, ...]:
    """Return the held-out tasks of a run."""
    return choose_tasks(
        evaluation_sources(config),
        split=config.eval.split,
        count=config.eval.tasks,
        seed=config.eval.seed,
    )


def levels_of(tasks: Sequence[Task]) -> dict[str, float]:
    """Return task -> its level."""
    return {task_key(task): task.difficulty or 0.0 for task in tasks}


def progress_for(config: RunConfig) -> Any:
    """Return a context that gives a progress sink: a live line on a terminal, lines elsewhere."""
    from agentgym.cli.output import error_console
    from agentgym.runs.progress import Lines, Live

    if error_console().is_terminal:
        return Live(error_console())
    return nullcontext(Lines(sys.stderr))


def report(results: Sequence[SeedResult]) -> None:
    """Print one row a seed and where everything is."""
    rows: list[list[str]] = []
    for result in results:
        share = result.tool_share()
        row = [
            result.folder.name,
            str(result.warm.outcome),
            str(result.trained()),
            f"{share:.3f}" if share is not None else "-",
            f"{result.seconds:.0f} s",
        ]
        if result.control is not None:
            row += [str(result.control.outcome), str(result.difference())]
        rows.append(row)
    header = ["run", "warm start", f"trained (last {CHECKS} checks)", "tool used rightly", "time"]
    if any(result.control is not None for result in results):
        header += ["control", "trained - control"]
    console().print()
    print_table(header, rows)
    say(
        f"held-out success on {results[0].warm.counts['tasks']} tasks of levels 1 to 3, 95 % "
        "intervals; 'tool used rightly': share of solved episodes from level 2 on that contain a "
        "call whose result the solution needs"
    )
    for result in results:
        say(f"{result.folder}: report.md, curves.png, trajectories.jsonl, policy/")
    say(f"next: agentgym view {results[-1].folder}")


def main() -> int:
    """Run the quickstart and return the exit code."""
    try:
        seeds = int(os.environ.get("SEEDS", "1"))
        if seeds < 1:
            raise ValueError
    except ValueError:
        complain(f"SEEDS must be a whole number >= 1 (got {os.environ['SEEDS']!r})")
        return 2
    with_control = os.environ.get("CONTROL", "0") not in {"", "0"}
    runs = Path(os.environ.get("RUNS", "runs"))
    try:
        report([run_seed(seed, with_control=with_control, runs=runs) for seed in range(seeds)])
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except AgentGymError as error:
        complain(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
