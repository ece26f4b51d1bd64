"""Hooks: what happens between the backward pass and the optimiser.

In order: `ClipSums` (what the micro-batches measure), then the part `clip_bias`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentgym.trainers.parts.registry import AboveZero, Need, Share, Width, part


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSums:
    """How much the clip took away, as sums over tokens: add them over micro-batches and ranks."""

    tokens: float
    """Trained tokens."""
    clipped: float
    """Trained tokens without gradient because of the clip."""
    signed: float
    """Sum of coefficient * r * A over the clipped tokens."""
    absolute: float
    """Sum of coefficient * r * |A| over the clipped tokens."""

    def __add__(self, other: ClipSums) -> ClipSums:
        """Return the sums of both."""
        return ClipSums(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            signed=self.signed + other.signed,
            absolute=self.absolute + other.absolute,
        )


def clipped_tokens(
    ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    *,
    clip_low: Width,
    clip_high: Width,
) -> Bool[Tensor, "batch time"]:
    """Return True where the clip is active: A > 0 above 1 + high, or A < 0 below 1 - low."""
    above = (advantages > 0) & (ratio > 1 + clip_high)
    below = (advantages < 0) & (ratio < 1 - clip_low)
    return above | below


def _clip_bias_needs(parameters: Mapping[str, Any]) -> tuple[Need, ...]:
    return (Need.GRADIENT_NORM,) if parameters["measure"] == "norm" else ()


@part("hook", needs=(Need.CLIP_WIDTHS,), needs_of=_clip_bias_needs)
def clip_bias(
    sums: ClipSums,
    norm: float | None,
    *,
    measure: Literal["norm", "signed", "absolute"],
    strength: AboveZero,
    trigger: Share,
) -> float:
    """Return the factor of the policy's gradient, 1 / max(1, strength * magnitude).

    The magnitude is that of the gradient which the clip took away, C = sum over clipped tokens of
    coefficient * r * A * grad log r: its exact norm (an extra backward), or one of two sums that
    cost nothing. Nothing clipped gives 1; the factor never amplifies.

    Args:
        sums: Sums over the whole batch.
        norm: L2 norm of C; None where `measure` does not need it.
        measure: `norm`, or the absolute value of the signed sum, or the sum of absolute values.
        strength: Factor of the magnitude, above 0.
        trigger: The factor is 1 as long as at most this share of the tokens is clipped.

    Raises:
        ValueError: If `strength` is not above 0.
        LookupError: If `measure` is `norm` and no norm was given.

    Source: ST-PPO 2025, arXiv:2511.20718: the gradient is divided by the norm of the clipping
    bias. The bound at 1, the two sums and the trigger are ours.
    """
    if strength <= 0:
        raise ValueError(f"'strength' must be > 0 (got {strength!r})")
    if measure == "norm" and norm is None:
        raise LookupError("'clip_bias' with measure 'norm' needs the norm of the extra backward")
    share = sums.clipped / max(sums.tokens, 1.0)
    if sums.clipped == 0 or share <= trigger:
        return 1.0
    magnitudes = {"signed": abs(sums.signed), "absolute": sums.absolute, "norm": norm or 0.0}
    return 1.0 / max(1.0, strength * magnitudes[measure])


def clip_sums(
    coefficients: Float[Tensor, "batch time"],
    ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    clipped: Bool[Tensor, "batch time"],
    tokens: int,
) -> ClipSums:
    """Return the sums of one micro-batch."""
    removed = torch.where(clipped, coefficients * ratio * advantages, torch.zeros_like(ratio))
    return ClipSums(
        tokens=float(tokens),
        clipped=float(clipped.sum()),
        signed=float(removed.detach().sum()),
        absolute=float(removed.detach().abs().sum()),
    )
