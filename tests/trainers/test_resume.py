"""A run that is killed again and again ends as an unbroken one, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.records import Trajectory
from agentgym.runs.folder import read_metrics, read_scores, read_trajectories

STEPS = 20
KILLS = 5
SETTINGS = [
    "math/arithmetic",
    "--policy=tiny",
    # Most answers are wrong: a critic learns all the same, and then moves the policy.
    "--preset=ppo",
    "critic.warmup_updates=5",
    "--quiet",
    "deterministic=true",
    "seed=11",
    f"steps={STEPS}",
    "rollout.groups_per_step=2",
    "rollout.group_size=3",
    "rollout.max_new_tokens=12",
    "limits.max_turns=3",
    "optim.learning_rate=0.003",
    "optim.warmup_steps=7",
    "optim.schedule=cosine",
    "warmstart.steps=4",
    "warmstart.warmup_steps=1",
    "warmstart.demos=16",
    "warmstart.batch_size=8",
    "eval.at_start=false",
    "eval.at_end=false",
    "checkpoint.every=3",
]


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agentgym.cli.main", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-3000:]


def kill_after(process: subprocess.Popen[str], run: Path, steps: int, pause: float) -> None:
    """Kill a run once it has written that many steps, and a moment more."""
    deadline = time.monotonic() + 600
    while steps_written(run) < steps:
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def steps_written(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def without_timings(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, turns=tuple(replace(turn, timings={}) for turn in trajectory.turns))


def episodes(run: Path) -> dict[str, Trajectory]:
    records = [without_timings(trajectory) for trajectory in read_trajectories(run)]
    by_id = {record.id: record for record in records}
    assert len(by_id) == len(records), "an episode is recorded twice"
    return by_id


@pytest.mark.timeout(1200)
def test_killed_run_ends_bit_equal_to_an_unbroken_one_i6(
    tmp_path: Path, checkpoint_state: Callable[[Path], dict[str, Any]]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    unbroken = start(*SETTINGS, f"run_dir={whole}")
    rng = random.Random(1)
    moments = sorted(rng.sample(range(1, STEPS), KILLS))
    process = start(*SETTINGS, f"run_dir={broken}")
    for moment in moments:
        kill_after(process, broken, moment, rng.random() * 0.2)
        process = start("--resume", str(broken), "--quiet")
    finish(process)
    finish(unbroken)
    assert steps_written(broken) == STEPS
    assert [row["step"] for row in read_metrics(broken)] == list(range(1, STEPS + 1))
    assert episodes(broken) == episodes(whole)
    scores = [{score.trajectory_id: score for score in read_scores(run)} for run in (whole, broken)]
    assert scores[0] == scores[1]
    first, second = checkpoint_state(whole), checkpoint_state(broken)
    assert first.keys() == second.keys()
    assert any("exp_avg" in key for key in first)
    for key, value in first.items():
        other = second[key]
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other), key
        else:
            assert value == other, key
    # Resuming a finished run would take no step: that is said, not done (I1).
    process = start("--resume", str(broken), "--quiet")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "has taken all its 20 steps" in output
