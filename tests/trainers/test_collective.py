"""Ranks fail together. Class of faults: errors that are not collective."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from agentgym.errors import InfrastructureError
from agentgym.trainers.learner.distributed import World

_RANKS = """
import dataclasses
import importlib.util
import torch
from agentgym.errors import AgentGymError, ConfigError, InfrastructureError
from agentgym.trainers.objective import prepare as objective
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import DivergedError, Learner
from agentgym.trainers.objective.preset import load_preset
from agentgym.config import OptimConfig
from agentgym.trainers.learner.distributed import join_world

spec = importlib.util.spec_from_file_location("shared", {tests!r})
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
world = join_world("cpu")
whole = objective.micro_loss

def broken(*given, **named):
    part = whole(*given, **named)
    return dataclasses.replace(part, loss=part.loss * float("nan"))

if world.rank == 1:
    objective.micro_loss = broken
learner = Learner(
    shared.small_model(torch.float32), preset=load_preset("trloo"), optim=OptimConfig(),
    total_updates=5, temperature=1.0, world=world, options=UpdateOptions(micro_batch_rows=2),
)
try:
    learner.update(shared.random_batch(), is_single=False)
except DivergedError as error:
    print("diverged", learner.updates, error, flush=True)
objective.micro_loss = whole
learner.update(shared.random_batch(), is_single=False)
print("goes on", learner.updates, flush=True)
for kind in (InfrastructureError, ConfigError):
    try:
        with world.together():
            if world.is_main:
                raise kind("the disk is full")
    except InfrastructureError as error:
        print("infrastructure", error, flush=True)
    except AgentGymError as error:
        print("other", error, flush=True)
with world.together():
    print("both", flush=True)
world.close()
"""


def test_f11_what_fails_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    """Two gloo processes: a loss that is NaN on rank 1 alone; a failure of rank 0 alone."""
    script = tmp_path / "ranks.py"
    tests = str(Path(__file__).parent / "learner" / "test_learner.py")
    script.write_text(_RANKS.format(tests=tests))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout
    assert said.count("diverged 0 the loss is nan; the step was not taken") == 2
    assert said.count("goes on 1") == 2
    assert said.count("the disk is full") == 2
    assert said.count("another process of this run failed") == 2
    assert (
        said.count("infrastructure") == said.count("other the") + said.count("other another") == 2
    )
    assert said.count("both") == 2


def test_f11_one_process_raises_its_own() -> None:
    with pytest.raises(InfrastructureError, match="a server is gone"), World().together():
        raise InfrastructureError("a server is gone")
