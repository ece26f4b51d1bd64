"""Spread: the crossing from turn-level advantages to tokens.

In order: the parts `turn_tokens` and `turn_end`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from agentgym.trainers.parts.registry import part
from agentgym.trainers.parts.tables import RowTable, to_tokens


@part("spread")
def turn_tokens(
    advantages: Float[Tensor, "trajectory turn"], rows: RowTable
) -> Float[Tensor, "batch time"]:
    """Return for each trained token the advantage of its turn.

    Args:
        advantages: [trajectory, turn] turn-level advantages.
        rows: The rows.
    """
    spread = to_tokens(advantages, rows.trajectory, rows.turn_ids)
    return torch.where(rows.mask, spread, torch.zeros_like(spread))


@part("spread")
def turn_end(
    advantages: Float[Tensor, "trajectory turn"], rows: RowTable
) -> Float[Tensor, "batch time"]:
    """Return the advantage of each turn on its last trained token alone, 0 elsewhere.

    Args:
        advantages: [trajectory, turn] turn-level advantages.
        rows: The rows.
    """
    spread = turn_tokens(advantages, rows)
    position = torch.arange(rows.mask.shape[1], device=rows.mask.device).expand_as(rows.turn_ids)
    turns = rows.turn_ids.clamp(min=0)
    trained = torch.where(rows.mask, position, -1)
    last = torch.full_like(turns, -1).scatter_reduce(1, turns, trained, "amax")
    is_last = rows.mask & (last.gather(1, turns) == position)
    return torch.where(is_last, spread, torch.zeros_like(spread))
