"""`agentgym train` for real, with a tiny model: a run, an interruption, a resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.cli.main import main
from agentgym.runs.folder import read_evaluations, read_metrics, read_trajectories

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SETTINGS = [
    *("warmstart.steps=4", "warmstart.demos=16", "warmstart.batch_size=8"),
    *("warmstart.warmup_steps=1", "optim.warmup_steps=0", "rollout.groups_per_step=2"),
    *("rollout.group_size=2", "rollout.max_new_tokens=8", "eval.max_new_tokens=8"),
    *("eval.tasks=4", "limits.max_turns=2"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_run_leaves_a_whole_folder_and_is_not_run_twice_i1(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "math/arithmetic", "run_dir=run", "steps=2", "eval.every=1", *SETTINGS]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    run = here / "run"
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert len(list(read_trajectories(run))) == 2 * 2 * 2
    assert [result["step"] for result in read_evaluations(run).values()] == [0, 1, 2]
    for name in ("config.yaml", "report.md", "curves.png", "curves.svg", "policy/config.json"):
        assert (run / name).is_file(), name
    assert "done: 2 steps" in captured.out
    assert "train 2/2" in captured.err
    assert main(arguments) == 2  # never overwritten
    assert "holds a run already" in capsys.readouterr().err
    assert main(["train", "--resume", "run"]) == 2  # no step is left
    assert "has taken all its 2 steps" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "steps=3"]) == 0
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]


def test_trained_policy_is_evaluated_and_trained_on_from_its_run_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = "math/arithmetic:instructions=false"
    assert main(["train", plain, "run_dir=run", "steps=2", "checkpoint.every=1", *SETTINGS]) == 0
    capsys.readouterr()
    whole, first = "run", "run/checkpoints/step_000001"
    for policy in (whole, first):
        assert main(["eval", "math/arithmetic", "--policy", policy, "-n", "3", "--json"]) == 0
        captured = capsys.readouterr()
        assert "math/arithmetic with instructions=False, as in the run" in captured.err
        found = json.loads(captured.out)
        assert found["counts"]["tasks"] == 3
        assert found["posed"]["math/arithmetic"]["kwargs"] == {"instructions": False}
        assert found["sampling"]["max_new_tokens"] == 8
    names = ["math-arithmetic-1.json", "math-arithmetic-2.json"]
    assert all((here / "run" / "evaluations" / name).is_file() for name in names)
    # F42: what can be evaluated can be trained further.
    cold = [word for word in SETTINGS if not word.startswith("warmstart.")]
    for policy in (whole, first):
        assert main(["train", plain, "--policy", policy, "steps=1", *cold]) == 0


def test_b10_a_checkpoint_s_policy_has_the_weights_of_its_step(here: Path) -> None:
    import torch

    from agentgym.trainers.models.load import load_model, resolve_policy

    assert main(["train", "math/arithmetic", "run_dir=run", "steps=1", *SETTINGS]) == 0
    # Other weights than those that the run began from, so that they cannot be taken for its own.
    start: Any = load_model(resolve_policy("run/warmstart"))
    with torch.no_grad():
        for parameter in start.parameters():
            parameter += 1
    start.save_pretrained("run/warmstart")
    exported = load_model(resolve_policy("run/checkpoints/step_000001")).state_dict()
    for name, weight in load_model(resolve_policy("run")).state_dict().items():
        assert torch.equal(weight, exported[name])


def ignore_interrupts() -> None:
    """As a shell does for what a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def obey_interrupts() -> None:
    """As in a terminal, whatever these tests themselves were started from."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("sent", "prepare"),
    [(signal.SIGINT, obey_interrupts), (signal.SIGTERM, ignore_interrupts)],
)
def test_interrupted_run_saves_and_prints_how_to_go_on(
    here: Path, sent: signal.Signals, prepare: Callable[[], None]
) -> None:
    command = [sys.executable, "-m", "agentgym.cli.main", "train", "math/arithmetic"]
    settings = [*SETTINGS, "run_dir=run", "steps=100000", "eval.at_start=false"]
    process = subprocess.Popen(
        [*command, *settings],
        cwd=here,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=prepare,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("train ") and "/100000" in line:
            process.send_signal(sent)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; go on with: agentgym train --resume run"
    assert "Traceback" not in err
    assert out == ""
    done = len(read_metrics(here / "run"))
    assert done >= 1
    assert (here / "run" / "report.md").is_file()
    settings = [f"steps={done + 1}", "eval.at_end=false"]
    assert main(["train", "--resume", "run", *settings]) == 0
    steps = [row["step"] for row in read_metrics(here / "run")]
    assert steps == list(range(1, done + 2))
