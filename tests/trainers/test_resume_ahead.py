"""A run ahead of learning that is killed with work in flight ends as an unbroken one, bit for bit.

The policy's answers follow from the seed of each request, so the two differ in nothing but who
ended first and which version each token was sampled under.
"""

from __future__ import annotations

import json
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

from agentgym.records import Completion, Score, Trajectory
from agentgym.runs.folder import read_metrics, read_scores, read_trajectories
from agentgym.runs.jsonl import torn_bytes

SCRIPT = Path(__file__).parent / "scripts" / "seeded_run.py"
STEPS = 30
KILLS = 3


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-3000:]


def stop_after(
    process: subprocess.Popen[str], run: Path, steps: int, how: signal.Signals, pause: float
) -> None:
    """Stop a run once it has written that many steps, and a moment more."""
    deadline = time.monotonic() + 600
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(pause)
    process.send_signal(how)
    process.communicate()


def bare(trajectory: Trajectory) -> Trajectory:
    """Return an episode without what depends on time: timings, and versions of tokens."""
    turns = tuple(
        replace(turn, timings={}, completion=unversioned(turn.completion))
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns)


def unversioned(completion: Completion) -> Completion:
    assert completion.tokens is not None
    (run,) = completion.tokens.versions
    tokens = replace(completion.tokens, versions=(replace(run, version=0),))
    return replace(completion, tokens=tokens)


def episodes(run: Path) -> dict[str, Trajectory]:
    records = list(read_trajectories(run))
    by_id = {record.id: bare(record) for record in records}
    assert len(by_id) == len(records), "an episode is recorded twice"
    return by_id


def scores(run: Path) -> dict[str, Score]:
    found = list(read_scores(run))
    by_id = {score.trajectory_id: score for score in found}
    assert len(by_id) == len(found), "an episode is trained on twice"
    return by_id


def outstanding(run: Path) -> list[int]:
    found = sorted((run / "checkpoints").glob("step_*"))
    if not found:
        return []
    return json.loads((found[-1] / "state.json").read_text())["loop"]["outstanding"]


@pytest.mark.timeout(1200)
def test_run_killed_with_work_in_flight_ends_bit_equal_to_an_unbroken_one_i5(
    tmp_path: Path,
    checkpoint_state: Callable[[Path], dict[str, Any]],
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    unbroken = start(str(whole), f"steps={STEPS}")
    rng = random.Random(2)
    moments = sorted(rng.sample(range(3, STEPS - 8), KILLS))
    # The last one is asked to stop and saves what is in flight; the others leave no time for it.
    ways = [signal.SIGKILL] * (KILLS - 1) + [signal.SIGINT]
    process = start(str(broken), f"steps={STEPS}")
    in_flight: list[int] = []
    for moment, way in zip(moments, ways, strict=True):
        stop_after(process, broken, moment, way, rng.random() * 0.05)
        in_flight += outstanding(broken)
        process = start(str(broken), "--resume")
    finish(process)
    finish(unbroken)
    assert in_flight, "no checkpoint had work in flight: nothing was tested"
    assert [row["step"] for row in read_metrics(broken)] == list(range(1, STEPS + 1))
    assert episodes(broken) == episodes(whole)
    assert len(episodes(whole)) == STEPS * 2 * 3
    assert scores(broken) == scores(whole)
    assert scores(whole).keys() == episodes(whole).keys()
    first, second = checkpoint_state(whole), checkpoint_state(broken)
    assert first.keys() == second.keys()
    assert any("exp_avg" in key for key in first)
    for key, value in first.items():
        other = second[key]
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other), key
        else:
            assert value == other, key


@pytest.mark.timeout(600)
def test_run_on_a_full_disk_stops_with_a_reason_and_can_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # An episode takes some 2,500 bytes: the disk is full in the middle of the run.
    process = start(str(run), "--disk=60000", "steps=10", "checkpoint.every=0")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    last = output.strip().splitlines()[-1]
    assert "DiskError: trajectories.jsonl cannot be written (File too large)" in last
    assert "go on with --resume" in last
    assert torn_bytes(run / "trajectories.jsonl") == 0
    before = episodes(run)
    assert 0 < len(before) < 10 * 2 * 3
    assert {str(t.stop_reason) for t in before.values()} <= {"terminated", "cancelled"}
    finish(start(str(run), "--resume"))
    assert len(episodes(run)) == 10 * 2 * 3
    assert scores(run).keys() == episodes(run).keys()


@pytest.mark.timeout(600)
def test_checkpoint_on_a_full_disk_is_a_typed_error_and_leaves_nothing_half_i8(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    process = start(str(run), "--disk=60000", "steps=6", "checkpoint.every=1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "CheckpointError: checkpoint" in output.strip().splitlines()[-1]
    assert list((run / "checkpoints").iterdir()) == []
    finish(start(str(run), "--resume"))
    assert scores(run).keys() == episodes(run).keys()
    assert len(episodes(run)) == 6 * 2 * 3
