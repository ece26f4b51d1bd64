"""Aggregation: the coefficient of each token's loss, from global counts.

The loss of a step is the sum of coefficient times loss over all rows of all ranks; nothing is
divided again. A sequence is a trajectory, over all its rows; one without a trained token counts
nowhere.

In order: `trajectory_lengths`, then the parts `token_mean`, `sequence_mean_token_mean`,
`sequence_mean_token_sum`, `constant`, `turn_mean`, `sequence_mean_turn_mean`, `group_mean`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import Count, part
from agentgym.trainers.parts.tables import RowTable, TurnTable


def trajectory_lengths(
    mask: Bool[Tensor, "batch time"], trajectory: Int[Tensor, " batch"], count: int
) -> Float[Tensor, " trajectory"]:
    """Return the number of trained tokens of each trajectory over all its rows."""
    lengths = torch.zeros(count, dtype=torch.float64, device=mask.device)
    return lengths.index_add(0, trajectory, mask.sum(dim=1, dtype=torch.float64))


def turn_lengths(
    mask: Bool[Tensor, "batch time"], rows: RowTable, shape: tuple[int, int]
) -> Float[Tensor, "trajectory turn"]:
    """Return the number of trained tokens of each turn."""
    cell = rows.trajectory[:, None] * shape[1] + rows.turn_ids.clamp(min=0)
    counts = torch.bincount(cell[mask], minlength=shape[0] * shape[1])
    return counts.reshape(shape).to(torch.float64)


def _reciprocal(counts: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return 1 / count, and 0 for a count of 0."""
    return torch.where(counts > 0, 1 / counts.clamp(min=1), torch.zeros_like(counts))


def _per_trajectory(
    weights: Float[Tensor, " trajectory"], mask: Bool[Tensor, "batch time"], rows: RowTable
) -> Float[Tensor, "batch time"]:
    return weights[rows.trajectory][:, None] * mask


@part("aggregation")
def token_mean(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / N with N the trained tokens of the whole batch.

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows (not read).
        table: The trajectories (not read).

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476.
    """
    return mask.to(torch.float64) / mask.sum().clamp(min=1)


@part("aggregation")
def sequence_mean_token_mean(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / (B L) with B trajectories and L the trained tokens of the token's own.

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300, eq. 3.
    """
    lengths = trajectory_lengths(mask, rows.trajectory, table.group.shape[0])
    return _per_trajectory(_reciprocal(lengths) / (lengths > 0).sum().clamp(min=1), mask, rows)


@part("aggregation", traits=("token_sum",))
def sequence_mean_token_sum(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / B: the mean over trajectories of the sum over their tokens.

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.
    """
    lengths = trajectory_lengths(mask, rows.trajectory, table.group.shape[0])
    return mask.to(torch.float64) / (lengths > 0).sum().clamp(min=1)


@part("aggregation", traits=("token_sum",))
def constant(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
    *,
    max_tokens: Count,
) -> Float[Tensor, "batch time"]:
    """Return 1 / (B T) with T a constant, never the longest row of the batch.

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.
        max_tokens: The configured largest number of sampled tokens of a trajectory.

    Raises:
        ValueError: If `max_tokens` is not positive.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.
    """
    if max_tokens <= 0:
        raise ValueError(f"'max_tokens' must be > 0 (got {max_tokens!r})")
    return sequence_mean_token_sum(mask, advantages, rows, table) / max_tokens


@part("aggregation")
def turn_mean(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / (turns of the batch * tokens of the turn).

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.
    """
    shape = (table.turn_valid.shape[0], table.turn_valid.shape[1])
    lengths = turn_lengths(mask, rows, shape)
    weights = _reciprocal(lengths) / (lengths > 0).sum().clamp(min=1)
    return _gather_turns(weights, mask, rows)


def _gather_turns(
    weights: Float[Tensor, "trajectory turn"], mask: Bool[Tensor, "batch time"], rows: RowTable
) -> Float[Tensor, "batch time"]:
    return weights[rows.trajectory].gather(1, rows.turn_ids.clamp(min=0)) * mask


@part("aggregation")
def sequence_mean_turn_mean(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / (B * turns of the trajectory * tokens of the turn).

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.
    """
    shape = (table.turn_valid.shape[0], table.turn_valid.shape[1])
    lengths = turn_lengths(mask, rows, shape)
    turns = (lengths > 0).sum(dim=1, keepdim=True).to(torch.float64)
    weights = _reciprocal(lengths) * _reciprocal(turns) / (turns > 0).sum().clamp(min=1)
    return _gather_turns(weights, mask, rows)


@part("aggregation")
def group_mean(
    mask: Bool[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
) -> Float[Tensor, "batch time"]:
    """Return 1 / (groups * trained tokens of the group): each prompt weighs the same.

    Args:
        mask: True on trained tokens.
        advantages: Advantage of each token (not read).
        rows: The rows.
        table: The trajectories.
    """
    lengths = trajectory_lengths(mask, rows.trajectory, table.group.shape[0])
    groups = int(table.group.max().item()) + 1 if table.group.numel() else 0
    sums = torch.zeros(groups, dtype=torch.float64, device=mask.device)
    sums = sums.index_add(0, table.group, lengths)
    weights = _reciprocal(sums) / (sums > 0).sum().clamp(min=1)
    return _per_trajectory(weights[table.group], mask, rows)
