"""Gradient checkpointing in evaluation mode: layers are computed again in the backward pass.

transformers checkpoints layers of a model in training mode only. A learner's model stays in
evaluation mode, since dropout would make its ratios noisy against its own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def enable_recomputing(model: Any) -> None:
    """Let a model's layers be computed again in the backward pass, inside of `recomputing`."""
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(options)
    else:
        model.gradient_checkpointing_enable(options)
    for layer in _layers(model):
        layer._gradient_checkpointing_func = _recomputed(layer)


@contextmanager
def recomputing(model: nn.Module) -> Generator[None]:
    """Checkpoint the layers that `enable_recomputing` has prepared; without gradients, nothing."""
    layers = _layers(model) if torch.is_grad_enabled() else []
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.training = True  # the layer alone, not what is in it: what transformers looks at
    try:
        yield
    finally:
        for layer, was_training in zip(layers, before, strict=True):
            layer.training = was_training


def _layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = (one for one in model.modules() if isinstance(one, GradientCheckpointingLayer))
    return [layer for layer in found if layer.gradient_checkpointing]


def _recomputed(layer: nn.Module) -> Callable[..., Any]:
    def call(function: Callable[..., Any], *args: Any) -> Any:
        def run(*given: Any) -> Any:
            was_training, layer.training = layer.training, False  # some layers drop out themselves
            try:
                return function(*given)
            finally:
                layer.training = was_training

        return checkpoint(run, *args, use_reentrant=False)

    return call


__all__ = ["enable_recomputing", "recomputing"]
