"""Killed runs and damaged checkpoints. Class: *no checksum, no fallback*.

A run that is killed at random moments, or finds a bit of its newest checkpoint flipped, ends bit
for bit as one that nothing happened to; where no checkpoint is whole, one line says which files are
damaged. Runs are forks of one interpreter that has imported everything, which saves most of their
time.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.attack, pytest.mark.timeout(900)]

Read = Callable[[Path], dict[str, Any]]

KILLS = 20
FLIPS = 40
STEPS = 8
EVERY = 3
SETTINGS = [
    "math/arithmetic",
    "--policy=tiny",
    # Most answers are wrong: a critic learns all the same, and then moves the policy.
    "--preset=ppo",
    "critic.warmup_updates=2",
    "--quiet",
    "deterministic=true",
    "seed=11",
    "rollout.groups_per_step=2",
    "rollout.group_size=3",
    "rollout.max_new_tokens=12",
    "limits.max_turns=3",
    "optim.learning_rate=0.003",
    "optim.schedule=cosine",
    "warmstart.steps=4",
    "warmstart.warmup_steps=1",
    "warmstart.demos=16",
    "warmstart.batch_size=8",
    "eval.at_start=false",
    "eval.at_end=false",
    f"checkpoint.every={EVERY}",
    "checkpoint.keep=2",
]

_FORKS = """
import importlib, json, os, signal, sys, time, warnings
from pathlib import Path

from agentgym.cli.main import main

for name in ("agentgym.trainers.loop.setup", "agentgym.trainers.loop.train",
             "agentgym.trainers.objective.preset", "transformers"):
    importlib.import_module(name)

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        output = os.open(order["output"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1), os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os._exit(main(["train", *order["words"]]) or 0)
    begun = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        is_there = not order["when"] or Path(order["when"]).exists()
        if order["after_s"] is not None and is_there:
            if time.monotonic() - begun >= order["after_s"]:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                break
        time.sleep(0.002)
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


class Forks:
    """Runs of `agentgym train`, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output.txt"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *words: str, after_s: float | None = None, when: Path | None = None
    ) -> tuple[int, str]:
        """Return the exit code and the output of a run.

        Args:
            words: Of the command, behind `train`.
            after_s: Seconds after which it is killed; None lets it end.
            when: A file that must be there before it is killed.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        order = {
            "words": words,
            "output": str(self._output),
            "after_s": after_s,
            "when": str(when or ""),
        }
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return int(stdout.readline()), self._output.read_text()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    started = Forks(tmp_path_factory.mktemp("forks"))
    yield started
    assert started.process.stdin is not None
    assert started.process.stdout is not None
    started.process.stdin.close()
    started.process.wait(timeout=60)
    started.process.stdout.close()


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        for name, value in left.items()
    )


def settings(run: Path, steps: int) -> list[str]:
    return [*SETTINGS, f"run_dir={run}", f"steps={steps}"]


def test_f45_twenty_kills_at_random_moments_change_nothing(
    forks: Forks, tmp_path: Path, checkpoint_state: Read
) -> None:
    steps = 2 * KILLS
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    code, output = forks.run(*settings(whole, steps))
    assert code == 0, output[-2000:]
    rng = random.Random(1)
    words, kills = settings(broken, steps), 0
    while kills < KILLS:
        begun = broken / "config.yaml"
        code, output = forks.run(*words, after_s=rng.uniform(0.2, 1.5), when=begun)
        words = ["--resume", str(broken), "--quiet"]
        if code == 0:
            break  # a fast machine: it was through before
        assert code == -9, output[-2000:]
        kills += 1
    if code != 0:
        code, output = forks.run(*words)
        assert code == 0, output[-2000:]
    assert kills >= KILLS // 2
    assert same(checkpoint_state(broken), checkpoint_state(whole))


@pytest.fixture(scope="module")
def stopped(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run that was killed behind its second checkpoint, and one that went on unharmed."""
    folder = tmp_path_factory.mktemp("stopped")
    run, whole = folder / "run", folder / "whole"
    second = run / "checkpoints" / f"step_{2 * EVERY:06d}" / "SHA256SUMS"
    code, output = forks.run(*settings(run, STEPS), after_s=0, when=second)
    assert code == -9, output[-2000:]
    shutil.copytree(run, whole)
    code, output = forks.run("--resume", str(whole), "--quiet")
    assert code == 0, output[-2000:]
    return run, whole


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("seed", range(FLIPS))
def test_f45_a_flipped_bit_is_named_and_changes_nothing(
    forks: Forks, stopped: tuple[Path, Path], tmp_path: Path, checkpoint_state: Read, seed: int
) -> None:
    run, whole = stopped
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    rng = random.Random(seed)
    newest = max((copy / "checkpoints").glob("step_*"))
    files = _files(newest)
    file = files[seed % len(files)]  # each file, whatever its size
    _flip(file, rng)
    code, output = forks.run("--resume", str(copy))
    assert code == 0, output[-2000:]
    told = [line for line in output.splitlines() if "damaged" in line]
    assert len(told) == 1
    assert str(file.relative_to(newest)) in told[0]
    assert same(checkpoint_state(copy), checkpoint_state(whole))


@pytest.mark.parametrize("seed", range(4))
def test_f45_without_a_whole_checkpoint_one_line_names_the_files(
    forks: Forks, stopped: tuple[Path, Path], tmp_path: Path, seed: int
) -> None:
    run, _ = stopped
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    rng = random.Random(seed)
    damaged: list[str] = []
    for checkpoint in sorted((copy / "checkpoints").glob("step_*")):
        file = _files(checkpoint)[seed % len(_files(checkpoint))]
        _flip(file, rng)
        damaged.append(str(file.relative_to(checkpoint)))
    before = {path: path.read_bytes() for path in _files(copy / "checkpoints")}
    code, output = forks.run("--resume", str(copy))
    assert code == 2, output[-2000:]
    (line,) = [line for line in output.splitlines() if "step_" in line]
    assert all(name in line for name in damaged)
    assert {path: path.read_bytes() for path in _files(copy / "checkpoints")} == before
