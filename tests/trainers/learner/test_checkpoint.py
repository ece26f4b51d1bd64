"""Checkpoints: whole or not at all, everything that has state, and what is refused.

Classes: *no checksum, no fallback* (F45), *data that is code* (F19).
"""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.errors import CheckpointError, UnusableCheckpointError
from agentgym.files.checksums import write_checksums
from agentgym.trainers.learner import checkpoint, tensor_files
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.objective.preset import load_preset

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
    # As a process leaves it that was killed while it wrote.
    (tmp_path / ".step_000030.partial" / "tensors").mkdir(parents=True)
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
    kept: list[list[int]] = []
    for step in (3, 12, 9, 999_999, 1_000_000):
        state = LoopState(**{**_fields(STATE), "next_step": step})
        checkpoint.save(tmp_path, subject, state, keep=2)
        kept.append(sorted(int(path.name.removeprefix("step_")) for path in tmp_path.iterdir()))
    # Step 12 is of a future that ended: the run went on from step 3.
    assert kept == [[3], [3, 12], [3, 9], [9, 999_999], [999_999, 1_000_000]]


def small(tmp_path: Path, *steps: int) -> list[Path]:
    """Save checkpoints of a small learner, and return their folders."""
    subject = learner()
    saved: list[Path] = []
    for step in steps:
        take_step(subject)
        state = LoopState(**{**_fields(STATE), "next_step": step})
        saved.append(checkpoint.save(tmp_path, subject, state, keep=9))
    return saved


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    file.write_bytes(data)


FILES = ("state.json", "SHA256SUMS", "tensors/.metadata", "tensors/__0_0.distcp")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["flip", "cut", "gone", "pipe"])
def test_f45_a_damaged_checkpoint_is_named_and_left_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    older, newest = small(tmp_path, 5, 10)
    assert checkpoint.latest(tmp_path) == newest
    for damaged in (newest, older):
        file = damaged / name
        if how == "flip":
            flip(file, 8 * (file.stat().st_size // 2) + 3)
        elif how == "cut":
            file.write_bytes(file.read_bytes()[:-1])
        else:
            file.unlink()
        if how == "pipe":
            os.mkfifo(file)
        if damaged is newest:
            with caplog.at_level(logging.WARNING):
                assert checkpoint.latest(tmp_path) == older
            (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            assert f"step_000010 ({name}" in line
    with pytest.raises(UnusableCheckpointError) as caught:
        checkpoint.latest(tmp_path)
    message = str(caught.value)
    assert f"step_000010 ({name}" in message
    assert f"step_000005 ({name}" in message
    assert "\n" not in message


def test_f45_a_run_that_goes_on_from_an_older_one_keeps_what_it_saves(tmp_path: Path) -> None:
    subject = learner()
    take_step(subject)
    older, newest = small(tmp_path, 5, 10)
    flip(newest / "state.json", 9)
    assert checkpoint.latest(tmp_path) == older
    state = LoopState(**{**_fields(STATE), "next_step": 6})
    saved = checkpoint.save(tmp_path, subject, state, keep=1)
    assert [*tmp_path.iterdir()] == [saved]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"loop": {"next_step": -4}}, "'loop.next_step'"),
        ({"loop": {"next_step": "7"}}, "'loop.next_step'"),
        ({"loop": {"next_step": 7.5}}, "'loop.next_step'"),
        ({"loop": {"next_step": True}}, "'loop.next_step'"),
        ({"loop": {"elapsed_s": None}}, "'loop.elapsed_s'"),
        ({"loop": {"elapsed_s": float("nan")}}, "'loop.elapsed_s'"),
        ({"loop": {"offsets": [1]}}, "'loop.offsets'"),
        ({"loop": {"offsets": {"metrics": -1}}}, "'loop.offsets.metrics'"),
        ({"loop": {"outstanding": 3}}, "'loop.outstanding'"),
        ({"loop": {"unknown": 3}}, "'loop.unknown'"),
        ({"loop": 3}, "'loop'"),
        ({"updates": "3"}, "'updates'"),
        ({"updates": -1}, "'updates'"),
    ],
)
def test_f45_a_state_of_wrong_types_is_one_line(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    (path,) = small(tmp_path, 5)
    data = json.loads((path / "state.json").read_text())
    for name, value in change.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    (path / "state.json").write_text(json.dumps(data))
    with pytest.raises(UnusableCheckpointError, match="is no state of a run") as caught:
        checkpoint.load(path, learner())
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", "[" * 5_000])
def test_f45_a_state_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    (path,) = small(tmp_path, 5)
    (path / "state.json").write_text(text)
    with pytest.raises(UnusableCheckpointError, match=r"state\.json"):
        checkpoint.load(path, learner())


class Touch:
    """What unpickling makes of this: a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_f19_the_index_of_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    (path,) = small(tmp_path, 5)
    mark = tmp_path / "mark"
    (path / "tensors" / ".metadata").write_bytes(pickle.dumps(Touch(mark)))
    write_checksums(path)  # whoever changes a folder can make its checksums too
    with pytest.raises(UnusableCheckpointError, match="which could run code"):
        checkpoint.load(checkpoint.latest(tmp_path) or path, learner())
    assert not mark.exists()


def test_f19_a_value_of_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    (path,) = small(tmp_path, 5)
    mark = tmp_path / "mark"
    index = pickle.loads((path / "tensors" / ".metadata").read_bytes())
    stream = io.BytesIO()
    torch.save(Touch(mark), stream)
    with (path / "tensors" / "__0_0.distcp").open("ab") as file:
        (place,) = [
            place
            for key, place in index.storage_data.items()
            if key.fqn.startswith("optimizer.param_groups") and key.fqn.endswith(".lr")
        ][:1]
        place.offset, place.length = file.tell(), len(stream.getvalue())
        file.write(stream.getvalue())
    (path / "tensors" / ".metadata").write_bytes(pickle.dumps(index))
    write_checksums(path)
    with pytest.raises(UnusableCheckpointError, match="does not fit this run"):
        checkpoint.load(path, learner())
    assert not mark.exists()


def test_f19_the_index_leads_to_files_of_its_folder_only(tmp_path: Path) -> None:
    (path,) = small(tmp_path, 5)
    index = pickle.loads((path / "tensors" / ".metadata").read_bytes())
    for place in index.storage_data.values():
        place.relative_path = "../../elsewhere"
    (path / "tensors" / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(UnusableCheckpointError, match=r"leads to '\.\./\.\./elsewhere'"):
        checkpoint.load(path, learner())


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

    monkeypatch.setattr(tensor_files.dcp, "save", full)
    later = LoopState(**{**_fields(STATE), "next_step": 8})
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoint.save(tmp_path, subject, later, keep=2)
    assert checkpoint.latest(tmp_path) == good
