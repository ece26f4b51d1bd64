"""Checkpointed layers of a model in evaluation mode: run twice, with the same gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM

from agentgym.config.schema import ModelConfig
from agentgym.trainers.learner.gradient_checkpointing import enable_recomputing
from agentgym.trainers.learner.layout import MicroBatch
from agentgym.trainers.learner.token_logprobs import token_outputs, transformer_blocks
from agentgym.trainers.models.load import load_learner
from agentgym.trainers.models.tiny import build_tiny

CORPUS = ("12+37*48 <answer>1776</answer> ",) * 30


def run(model: Any) -> tuple[list[Tensor], int, list[bool]]:
    """Return gradients, how often a layer ran, and whether layers were in training mode."""
    count, modes = 0, list[bool]()

    def see(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal count
        count += 1
        modes.append(module.training)

    inner: Any = transformer_blocks(model)[0].self_attn
    handle = inner.register_forward_hook(see, with_kwargs=True)
    ids = torch.arange(20, 30)[None]
    micro = MicroBatch(
        rows=torch.tensor([0]),
        ids=ids,
        position_ids=torch.arange(10)[None],
        segment_ids=torch.zeros_like(ids),
        index=torch.arange(10)[None],
        valid=torch.ones_like(ids, dtype=torch.bool),
    )
    mask = torch.arange(10)[None] > 3
    token_outputs(model, micro, mask, temperature=1.0).logprobs.sum().backward()
    handle.remove()
    return [p.grad for p in model.parameters() if p.grad is not None], count, modes


@pytest.mark.parametrize("rank", [0, 4])
def test_layers_run_once_more_in_the_backward_pass(tmp_path: Path, rank: int) -> None:
    folder = build_tiny(tmp_path / "tiny", corpus=CORPUS, seed=7)
    found = {}
    for is_checkpointed in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            settings = ModelConfig(lora_rank=rank, gradient_checkpointing=is_checkpointed)
            model, _ = load_learner(folder, settings)
        found[is_checkpointed] = run(model)
        assert not any(module.training for module in model.modules())
    assert (found[False][1], found[True][1]) == (1, 2)
    assert found[True][0]
    for plain, checkpointed in zip(found[False][0], found[True][0], strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_layer_that_drops_out_itself_does_not() -> None:
    torch.manual_seed(3)
    config = OPTConfig(
        vocab_size=32,
        hidden_size=16,
        ffn_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        word_embed_proj_dim=16,
        dropout=0.5,
    )
    model: Any = OPTForCausalLM(config).eval()
    plain, _, _ = run(model)
    model.zero_grad()
    enable_recomputing(model)
    checkpointed, count, _ = run(model)
    assert count == 2
    for left, right in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(left, right)
