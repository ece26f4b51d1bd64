"""Ratio: from the log-ratio of each token to the log-ratio of the unit that is clipped.

In order: `segment_total`, `segment_mean`, `row_total`, `row_mean`, then the parts `token`,
`turn_mean`, `turn_sum`, `sequence_mean`, `sequence_sum`, `sequence_token`. The input is policy
minus anchor, 0 outside the mask; the result is bounded before anyone takes its exponential. A
sequence is one row.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import AboveZero, part


def segment_total(
    values: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the sum over the trained tokens of its row and turn."""
    width = int(turn_ids.max().item()) + 1 if turn_ids.numel() else 1
    turns = turn_ids.clamp(min=0)
    kept = torch.where(mask, values, torch.zeros_like(values))
    sums = values.new_zeros((values.shape[0], max(width, 1))).scatter_add(1, turns, kept)
    return torch.where(mask, sums.gather(1, turns), torch.zeros_like(values))


def segment_mean(
    values: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the mean over the trained tokens of its row and turn."""
    count = segment_total(mask.to(values.dtype), mask, turn_ids)
    return segment_total(values, mask, turn_ids) / count.clamp(min=1)


def row_total(
    values: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the sum over the trained tokens of its row."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    total = kept.sum(dim=1, keepdim=True).expand_as(values)
    return torch.where(mask, total, torch.zeros_like(values))


def row_mean(
    values: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the mean over the trained tokens of its row."""
    return row_total(values, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _value_of_unit(
    log_ratio: Float[Tensor, "batch time"], unit: Float[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    """Return the unit's value with the gradient of the token alone."""
    return unit.detach() + log_ratio - log_ratio.detach()


@part("ratio")
def token(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the log-ratio of each token.

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token (not read).
        log_bound: Largest absolute log-ratio; float32 overflows at exp(89).
    """
    return log_ratio.clamp(-log_bound, log_bound)


@part("ratio")
def turn_mean(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    gradient: Literal["through", "token"],
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the mean log-ratio of each token's turn, the log of a geometric mean.

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token.
        gradient: `through` the mean, so that each token gets the turn's average advantage, or to
            the `token` alone, so that it keeps its own.
        log_bound: Largest absolute log-ratio.

    Source: ST-PPO 2025, arXiv:2511.20718 (through); A2TGPO 2026, arXiv:2605.06200 (token).
    """
    mean = segment_mean(log_ratio, mask, turn_ids)
    unit = mean if gradient == "through" else _value_of_unit(log_ratio, mean)
    return unit.clamp(-log_bound, log_bound)


@part("ratio")
def turn_sum(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the summed log-ratio of each token's turn: the ratio of the whole turn.

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token.
        log_bound: Largest absolute log-ratio.
    """
    return segment_total(log_ratio, mask, turn_ids).clamp(-log_bound, log_bound)


@part("ratio", traits=("per_row",))
def sequence_mean(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the mean log-ratio of each token's row, over trained tokens.

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token (not read).
        log_bound: Largest absolute log-ratio.

    Source: Zheng et al. 2025 (GSPO), arXiv:2507.18071.
    """
    return row_mean(log_ratio, mask).clamp(-log_bound, log_bound)


@part("ratio", traits=("per_row", "sequence_sum"))
def sequence_sum(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the summed log-ratio of each token's row; it grows with the length.

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token (not read).
        log_bound: Largest absolute log-ratio.
    """
    return row_total(log_ratio, mask).clamp(-log_bound, log_bound)


@part("ratio", traits=("per_row",))
def sequence_token(
    log_ratio: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    turn_ids: Int[Tensor, "batch time"],
    *,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the row's mean log-ratio with the gradient of each token alone (GSPO-token).

    Args:
        log_ratio: Policy minus anchor.
        mask: True on trained tokens.
        turn_ids: Turn of each token (not read).
        log_bound: Largest absolute log-ratio.

    Source: Zheng et al. 2025 (GSPO), arXiv:2507.18071, the token-level variant.
    """
    unit = _value_of_unit(log_ratio, row_mean(log_ratio, mask))
    return unit.clamp(-log_bound, log_bound)
