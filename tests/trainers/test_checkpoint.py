"""Checkpoints: whole or not at all, everything that has state, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.errors import CheckpointError
from agentgym.trainers import checkpoint
from agentgym.trainers.checkpoint import LoopState
from agentgym.trainers.learner import Learner
from agentgym.trainers.preset import load_preset

STATE = LoopState(
    next_step=7,
    next_draw=31,
    policy_version=5,
    sampled_tokens=1234,
    elapsed_s=12.5,
    step_s=11.25,
    offsets={"metrics": 10, "scores": 20, "trajectories": 30},
    controllers={},
)


def learner(preset: str = "grpo", *, seed: int = 0, hidden: int = 8) -> Learner:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=hidden,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Learner(
        LlamaForCausalLM(config),
        preset=load_preset(preset),
        optim=OptimConfig(learning_rate=0.1),
        total_updates=10,
        temperature=1.0,
    )


def take_step(subject: Learner) -> None:
    """Let the optimiser take a step on gradients that differ from step to step."""
    for group in subject.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 0.5 - subject.updates)
    subject.optimizer.step()
    subject.updates += 1


def weights(subject: Learner) -> list[torch.Tensor]:
    return [p.detach().clone() for group in subject.optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_load_restores_everything_that_has_state_i6(tmp_path: Path, preset: str) -> None:
    subject = learner(preset)
    take_step(subject)
    torch.manual_seed(99)
    path = checkpoint.save(tmp_path, subject, STATE, keep=2)
    drawn = torch.rand(3)
    take_step(subject)
    fourth = weights(subject)

    other = learner(preset, seed=1)
    assert checkpoint.load(path, other) == STATE
    assert other.updates == 1
    torch.testing.assert_close(torch.rand(3), drawn, rtol=0, atol=0)
    take_step(other)
    for mine, theirs in zip(weights(other), fourth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)

    # Weights alone are not enough: without the moments the next step is another one.
    bare = learner(preset, seed=1)
    checkpoint.load(path, bare)
    bare.optimizer.state.clear()
    take_step(bare)
    assert any(not torch.equal(a, b) for a, b in zip(weights(bare), fourth, strict=True))


def test_latest_ignores_what_is_not_complete_i8(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = learner()
    take_step(subject)
    good = checkpoint.save(tmp_path, subject, STATE, keep=5)
    (tmp_path / "step_000030" / "tensors").mkdir(
        parents=True
    )  # no state.json: killed while writing
    (tmp_path / ".step_000040.partial").mkdir()
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(tmp_path) == good
    assert "step_000030" in caplog.text
    assert ".step_000040.partial" in caplog.text


def test_latest_of_no_folder_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_save_keeps_the_newest(tmp_path: Path) -> None:
    subject = learner()
    take_step(subject)
    for step in (3, 12, 9, 100):
        state = LoopState(**{**_fields(STATE), "next_step": step})
        checkpoint.save(tmp_path, subject, state, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000012", "step_000100"]


def _fields(state: LoopState) -> dict[str, object]:
    return {name: getattr(state, name) for name in LoopState.__slots__}


def test_load_refuses_a_folder_of_weights_only_i9(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    model: Any = learner().model
    model.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="not a checkpoint to resume from"):
        checkpoint.load(folder, learner())


def test_load_refuses_another_schema(tmp_path: Path) -> None:
    subject = learner()
    take_step(subject)
    path = checkpoint.save(tmp_path, subject, STATE, keep=1)
    data = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**data, "schema": 7}))
    with pytest.raises(CheckpointError, match="schema 7; this version reads 1"):
        checkpoint.load(path, subject)


def test_load_refuses_a_critic_that_is_not_there(tmp_path: Path) -> None:
    subject = learner("grpo")
    take_step(subject)
    path = checkpoint.save(tmp_path, subject, STATE, keep=1)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        checkpoint.load(path, learner("ppo"))


def test_save_on_a_full_disk_is_one_error_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner()
    take_step(subject)
    good = checkpoint.save(tmp_path, subject, STATE, keep=2)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.dcp, "save", full)
    later = LoopState(**{**_fields(STATE), "next_step": 8})
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoint.save(tmp_path, subject, later, keep=2)
    assert checkpoint.latest(tmp_path) == good
