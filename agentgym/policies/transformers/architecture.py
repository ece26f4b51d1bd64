"""What a model does beside its layers' own forward: scaled logits, and layers that see a window.

Whoever runs body and head apart, or brings a mask of their own, does both by these functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentgym.errors import PolicyError

FULL, SLIDING = "full_attention", "sliding_attention"


def scaled_logits(logits: Tensor, text: Any) -> Tensor:
    """Return a head's output as the model itself gives it: scaled, divided or capped.

    Args:
        logits: [..., vocabulary] output of the head.
        text: The model's text configuration.
    """
    scale: float | None = getattr(text, "logit_scale", None)
    divisor: float | None = getattr(text, "logits_scaling", None)
    cap: float | None = getattr(text, "final_logit_softcapping", None)
    logits = logits * scale if scale else logits
    logits = logits / divisor if divisor else logits
    return torch.tanh(logits / cap) * cap if cap else logits


def layer_types(text: Any) -> frozenset[str]:
    """Return the kinds of attention of a model's layers.

    Raises:
        PolicyError: If it has layers without keys and values (state-space, linear).
    """
    declared: Any = getattr(text, "layer_types", None)
    if declared is None:
        is_sliding = getattr(text, "sliding_window", None) is not None
        return frozenset({SLIDING if is_sliding else FULL})
    types = frozenset(map(str, declared))
    if types - {FULL, SLIDING}:
        raise PolicyError(
            f"in-process generation needs layers with keys and values "
            f"(got {sorted(types - {FULL, SLIDING})!r}); serve this model with vLLM"
        )
    return types


def layer_masks(full: Tensor, distance: Tensor, text: Any) -> Tensor | dict[str, Tensor]:
    """Return a mask for layers of one kind, or one for each kind.

    Args:
        full: True where a token may look.
        distance: How many positions lie between a token and what it looks at; fits `full`.
        text: The model's text configuration.
    """
    types = layer_types(text)
    window: int | None = getattr(text, "sliding_window", None)
    if window is None or SLIDING not in types:
        return full
    sliding = full & (distance < window)
    return {FULL: full, SLIDING: sliding} if FULL in types else sliding


def added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of booleans as what is added to attention's scores."""
    floor = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, floor)


__all__ = ["FULL", "SLIDING", "added_mask", "layer_masks", "layer_types", "scaled_logits"]
