"""Critic: token-level advantages from learned values, instead of terms.

In order: `CriticResult`, `TokenOrder` (the trained tokens of a trajectory in the order in which
they were sampled, across its rows), `clipped_value_loss`, the recursion `discounted_residuals`,
then the part `token_gae`. A value belongs to the context before its token, as a log-probability
does; observations are skipped, the state is carried over them unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import Need, Share, part
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticResult:
    """What a critic gives for each trained token; 0 elsewhere."""

    advantages: Float[Tensor, "batch time"]
    returns: Float[Tensor, "batch time"]
    """Targets of the value head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOrder:
    """The trained tokens of each trajectory, by turn and then by position.

    Example:
        A trajectory of two rows, turn 1 in the first and turn 0 in the second, one token each:
        `flat = [[4, 1]]` for rows of 3 tokens with the tokens at (0, 1) and (1, 1).
    """

    flat: Int[Tensor, "trajectory token"]
    """[trajectory, token] place of the token among the flattened rows; 0 where not valid."""
    valid: Bool[Tensor, "trajectory token"]
    """[trajectory, token] True where there is such a token."""

    def gather(self, values: Float[Tensor, "batch time"]) -> Float[Tensor, "trajectory token"]:
        """Return the values in this order, 0 where there is no token."""
        chosen = values.reshape(-1)[self.flat]
        return torch.where(self.valid, chosen, torch.zeros_like(chosen))

    def scatter(
        self, values: Float[Tensor, "trajectory token"], shape: tuple[int, int]
    ) -> Float[Tensor, "batch time"]:
        """Return the values at their places in the rows, 0 elsewhere."""
        result = values.new_zeros(shape[0] * shape[1])
        return result.index_put((self.flat[self.valid],), values[self.valid]).reshape(shape)


def token_order(rows: RowTable, trajectories: int) -> TokenOrder:
    """Return the order of the trained tokens of each trajectory."""
    width = rows.mask.shape[1]
    place = rows.mask.reshape(-1).nonzero().reshape(-1)
    owner = rows.trajectory[place.div(width, rounding_mode="floor")]
    turn = rows.turn_ids.reshape(-1)[place]
    key = owner * (int(turn.max().item()) + 1 if turn.numel() else 1) + turn
    if not bool((key[1:] >= key[:-1]).all()):
        # Stable, so that tokens of one turn keep the order of their positions. Rows that are
        # whole trajectories are in order already, and a sort of millions of tokens is dear.
        order = key.argsort(stable=True)
        owner, place = owner[order], place[order]
    counts = torch.bincount(owner, minlength=trajectories)
    starts = counts.cumsum(0) - counts
    column = torch.arange(place.shape[0], device=place.device) - starts[owner]
    longest = int(counts.max().item()) if place.numel() else 0
    flat = place.new_zeros((trajectories, longest))
    flat = flat.index_put((owner, column), place)
    valid = torch.arange(longest, device=place.device) < counts[:, None]
    return TokenOrder(flat=flat, valid=valid)


def clipped_value_loss(
    values: Float[Tensor, "batch time"],
    old_values: Float[Tensor, "batch time"],
    returns: Float[Tensor, "batch time"],
    *,
    width: float,
) -> Float[Tensor, "batch time"]:
    """Return the larger of (v - R)^2 / 2 and the same with v cut to old_v +- width.

    Args:
        values: Values under the weights that are trained.
        old_values: Values at the start of the step; no gradient.
        returns: Targets; no gradient.
        width: Largest counted change of a value, above 0.

    Raises:
        ValueError: If `width` is not above 0.

    Source: Schulman et al. 2017 (PPO), arXiv:1707.06347, as in its reference implementation.
    """
    if width <= 0:
        raise ValueError(f"'width' must be > 0 (got {width!r})")
    clipped = old_values + (values - old_values).clamp(-width, width)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())


def discounted_residuals(
    residuals: Float[Tensor, "trajectory token"], *, decay: float
) -> Float[Tensor, "trajectory token"]:
    """Return A[t] = residual[t] + decay * A[t+1], from the last token to the first."""
    carried = torch.zeros_like(residuals[:, 0]) if residuals.shape[1] else residuals.sum(1)
    columns: list[Tensor] = []
    for token in reversed(residuals.unbind(dim=1)):
        carried = token + decay * carried
        columns.append(carried)
    return torch.stack(columns[::-1], dim=1) if columns else residuals


def place_rewards(
    rewards: Float[Tensor, "trajectory turn"], order: TokenOrder, rows: RowTable
) -> Float[Tensor, "trajectory token"]:
    """Return each turn's reward on the last trained token at or before that turn.

    A turn without a token of its own (an empty answer) passes its reward back; with no token
    before it, there is nothing that the reward could train.
    """
    turns = rows.turn_ids.reshape(-1)[order.flat]
    result = torch.zeros(order.flat.shape, dtype=rewards.dtype, device=rewards.device)
    for turn in range(rewards.shape[1]):
        before = order.valid & (turns <= turn)
        last = before.sum(dim=1) - 1
        has_token = last >= 0
        at = last.clamp(min=0)[:, None]
        amount = torch.where(has_token, rewards[:, turn], 0)[:, None]
        if result.shape[1]:
            result = result.scatter_add(1, at, amount)
    return result


@part("critic", needs=(Need.VALUES,))
def token_gae(
    rewards: TurnValues,
    values: Float[Tensor, "batch time"],
    after_end: Float[Tensor, " trajectory"],
    rows: RowTable,
    table: TurnTable,
    *,
    discount: Share,
    decay_actor: Share,
    decay_critic: Share,
) -> CriticResult:
    """Return A[t] = d[t] + discount * decay * A[t+1], d[t] = r[t] + discount * V[t+1] - V[t].

    t runs over the trained tokens of the trajectory, whichever rows they are in. What comes after
    the last one is given: which episodes bootstrap is not the critic's to decide.

    Args:
        rewards: One number a turn.
        values: Value of the context before each token; no gradient.
        after_end: Value after the last token of each trajectory; 0 where its outcome says all.
        rows: The rows.
        table: The trajectories.
        discount: Weight of the next token's value, in [0, 1].
        decay_actor: Lambda of the advantages, in [0, 1].
        decay_critic: Lambda of the returns that the value head is trained on, in [0, 1].

    Raises:
        ValueError: If a weight is not in [0, 1] or the rewards have one column a trajectory.

    Source: Schulman et al. 2015 (GAE), arXiv:1506.02438, eq. 16, over sampled tokens only.
    """
    weights = {"discount": discount, "decay_actor": decay_actor, "decay_critic": decay_critic}
    for name, weight in weights.items():
        if not 0 <= weight <= 1:
            raise ValueError(f"'{name}' must be in [0, 1] (got {weight!r})")
    if rewards.values.shape != table.turn_valid.shape:
        raise ValueError("'token_gae' needs one number a turn (got one a trajectory)")
    order = token_order(rows, table.group.shape[0])
    shape = (rows.mask.shape[0], rows.mask.shape[1])
    placed = place_rewards(rewards.zeroed(), order, rows)
    v = order.gather(values.detach().to(placed.dtype))
    following = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], dim=1)
    has_next = torch.cat([order.valid[:, 1:], torch.zeros_like(order.valid[:, :1])], dim=1)
    is_last = order.valid & ~has_next
    following = torch.where(is_last, after_end.to(v.dtype)[:, None], following)
    residuals = torch.where(order.valid, placed + discount * following - v, torch.zeros_like(v))
    actor = discounted_residuals(residuals, decay=discount * decay_actor)
    critic = discounted_residuals(residuals, decay=discount * decay_critic)
    return CriticResult(
        advantages=order.scatter(actor, shape), returns=order.scatter(critic + v, shape)
    )
