"""Correction: a detached weight for the gap between the sampler and the anchor.

In order: `Correction`, then the part `none`. A rejected token keeps its place in the denominators,
so that survivors are not weighted up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Weight of each token's loss, and whether it is used at all."""

    weight: Float[Tensor, "batch time"]
    keep: Bool[Tensor, "batch time"]


@part("correction")
def none(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
) -> Correction:
    """Return weight 1 everywhere.

    Args:
        log_ratio: Anchor minus behavior.
        mask: True on trained tokens.
        turn_ids: Turn of each token (not read).
    """
    return Correction(weight=torch.ones_like(log_ratio), keep=torch.ones_like(mask))
