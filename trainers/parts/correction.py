"""Correction: a detached weight for the gap between the sampler and the anchor.

In order: `Correction`, the maths of `unit_log_ratio`, then the parts `none`, `truncated` and
`masked`. A rejected token keeps its place in the denominators, so that survivors are not weighted
up. The gap is anchor minus behavior, 0 outside the mask; a sequence is one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.ratio import row_mean, row_total, segment_mean, segment_total
from agentgym.trainers.parts.registry import AboveZero, AtLeastZero, Need, part, range_problem

Level = Literal["token", "turn", "turn_geometric", "sequence", "sequence_geometric"]
LOG_BOUND = 20.0
"""Largest absolute log-ratio of a unit: exp(20) is 5e8, far above any cap, and float32 holds it."""


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


def unit_log_ratio(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    level: Level,
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the log-ratio of its unit: a sum, or a mean (geometric)."""
    units = {
        "token": lambda: torch.where(mask, log_ratio, torch.zeros_like(log_ratio)),
        "turn": lambda: segment_total(log_ratio, mask, turn_ids),
        "turn_geometric": lambda: segment_mean(log_ratio, mask, turn_ids),
        "sequence": lambda: row_total(log_ratio, mask),
        "sequence_geometric": lambda: row_mean(log_ratio, mask),
    }
    return units[level]().clamp(-LOG_BOUND, LOG_BOUND)


@part("correction", needs=(Need.PROXIMAL,))
def truncated(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    level: Level,
    cap: AboveZero,
) -> Correction:
    """Return min(unit ratio, cap): truncated importance sampling.

    Args:
        log_ratio: Anchor minus behavior.
        mask: True on trained tokens.
        turn_ids: Turn of each token.
        level: The unit whose ratio is taken.
        cap: Largest weight, above 0.

    Raises:
        ValueError: If `cap` is not above 0.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy training".
    """
    if cap <= 0:
        raise ValueError(f"'cap' must be > 0 (got {cap!r})")
    ratio = unit_log_ratio(log_ratio, mask, turn_ids, level=level).exp()
    return Correction(weight=ratio.clamp(max=cap), keep=torch.ones_like(mask))


@part("correction", needs=(Need.PROXIMAL,), problem_of=range_problem)
def masked(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    level: Level,
    low: AtLeastZero,
    high: AboveZero,
) -> Correction:
    """Return the unit ratio where it lies in [low, high], and nothing of the unit elsewhere.

    Args:
        log_ratio: Anchor minus behavior.
        mask: True on trained tokens.
        turn_ids: Turn of each token.
        level: The unit whose ratio is taken.
        low: Smallest accepted ratio, at least 0.
        high: Largest accepted ratio, above `low`.

    Raises:
        ValueError: If not 0 <= low < high.

    Source: Ling Team 2025 (IcePop) at token level; Liu et al. 2025 (masked importance sampling)
    at sequence level.
    """
    if not 0 <= low < high:
        raise ValueError(f"'low' and 'high' must hold 0 <= low < high (got {low!r}, {high!r})")
    ratio = unit_log_ratio(log_ratio, mask, turn_ids, level=level).exp()
    return Correction(weight=ratio, keep=(ratio >= low) & (ratio <= high))
