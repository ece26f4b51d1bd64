"""Reshape: a chain over token-level advantages, before the coefficients.

In order: `whiten`, `kl_to_go`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentgym.trainers.parts.critic import discounted_residuals, token_order
from agentgym.trainers.parts.registry import AtLeastZero, DegreesLost, Need, part
from agentgym.trainers.parts.tables import RowTable, TurnTable


@part("reshape")
def whiten(
    advantages: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
    *,
    ddof: DegreesLost,
    eps: AtLeastZero,
) -> Float[Tensor, "batch time"]:
    """Return (A - mean) / (std + eps) over the trained tokens of the whole batch; 0 elsewhere.

    With one trained token or none there is no deviation: the advantages stay as they are.

    Args:
        advantages: Advantage of each token.
        mask: True on trained tokens.
        rows: The rows (not read).
        table: The trajectories (not read).
        ddof: 1 for the sample, 0 for the population deviation.
        eps: Added to the deviation.
    """
    if int(mask.sum()) <= 1:
        return advantages
    chosen = advantages[mask]
    deviation = chosen.var(correction=ddof).sqrt()
    whitened = (advantages - chosen.mean()) / (deviation + eps)
    return torch.where(mask, whitened, torch.zeros_like(whitened))


@part("reshape", needs=(Need.REFERENCE, Need.PROXIMAL))
def kl_to_go(
    advantages: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    rows: RowTable,
    table: TurnTable,
    *,
    coefficient: AtLeastZero,
) -> Float[Tensor, "batch time"]:
    """Return A[t] - coefficient * the sum of log proximal - log reference from t on.

    The penalty of a token is a reward (k1, exact in expectation), summed to go over the trained
    tokens of the trajectory.

    Args:
        advantages: Advantage of each token.
        mask: True on trained tokens.
        rows: The rows; proximal and reference log-probabilities are read.
        table: The trajectories.
        coefficient: Weight of the penalty, at least 0.

    Source: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.
    """
    gap = rows.logprobs["proximal"] - rows.logprobs["reference"]
    penalty = torch.where(mask, gap, torch.zeros_like(gap)).to(advantages.dtype)
    order = token_order(rows, table.group.shape[0])
    shape = (rows.mask.shape[0], rows.mask.shape[1])
    to_go = order.scatter(discounted_residuals(order.gather(penalty), decay=1.0), shape)
    return torch.where(mask, advantages - coefficient * to_go, torch.zeros_like(advantages))
