"""The two tables of an objective, as plain tensors: turns `[N, K]` and rows `[B, T]`.

In order: `TurnValues` (one number a turn, or none), `TurnTable` (what the statistics see),
`RowTable` (what the ratio sees) and `to_tokens`, the only crossing from the first to the second.
Building them from records is `agentgym.trainers.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnValues:
    """One number for each turn that has one; a zero that counts differs from none.

    A value of the whole trajectory has a single column.

    Example:
        Two trajectories of 2 and 1 turns, a gain on all turns but the last:
        `values = [[0.3, 0.0], [0.0, 0.0]]`, `valid = [[True, False], [False, False]]`.
    """

    values: Float[Tensor, "trajectory turn"]
    """[trajectory, turn] the number; 0 where not valid."""
    valid: Bool[Tensor, "trajectory turn"]
    """[trajectory, turn] True where there is a number."""

    def __post_init__(self) -> None:
        """Check that both tensors have one shape."""
        if self.values.shape != self.valid.shape:
            raise ValueError(
                f"'values' and 'valid' must have one shape (got {tuple(self.values.shape)!r} "
                f"and {tuple(self.valid.shape)!r})"
            )

    def zeroed(self) -> Float[Tensor, "trajectory turn"]:
        """Return the values with 0 where there is none."""
        return torch.where(self.valid, self.values, torch.zeros_like(self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """The trajectories of one optimiser step; every statistic counts one of them once."""

    group: Int[Tensor, " trajectory"]
    """[trajectory] index of the group (one task, sampled together)."""
    turn_valid: Bool[Tensor, "trajectory turn"]
    """[trajectory, turn] True where the trajectory has that turn."""
    agent: Int[Tensor, "trajectory turn"]
    """[trajectory, turn] index of the agent that acted."""
    outcome: Float[Tensor, " trajectory"]
    """[trajectory] was the task solved, in [0, 1]; 0 where not scored."""
    scored: Bool[Tensor, " trajectory"]
    """[trajectory] True where there is a finite outcome and no infrastructure failure."""
    truncated: Bool[Tensor, " trajectory"]
    """[trajectory] True where a limit ended the episode."""
    on_policy: Bool[Tensor, " trajectory"]
    """[trajectory] True where every turn was sampled by the policy itself."""
    length: Int[Tensor, " trajectory"]
    """[trajectory] number of trained tokens over all its rows."""
    rewards: Mapping[str, TurnValues]
    """Named rewards of the turns."""
    fields: Mapping[str, Float[Tensor, "trajectory _"]]
    """Probe results by name, such as `belief_logprobs [trajectory, turn + 1]`; NaN is none."""

    @property
    def last_turn(self) -> Bool[Tensor, "trajectory turn"]:
        """Return True on the last turn of each trajectory that has one."""
        position = torch.arange(self.turn_valid.shape[1], device=self.turn_valid.device)
        last = torch.where(self.turn_valid, position, -1).amax(dim=1, keepdim=True)
        return self.turn_valid & (position == last)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """The rows of one optimiser step, padded on the right; built from lengths, not from ids."""

    mask: Bool[Tensor, "batch time"]
    """[batch, time] True on tokens that are trained."""
    turn_ids: Int[Tensor, "batch time"]
    """[batch, time] index of the turn within the trajectory; -1 on non-policy tokens."""
    role_ids: Int[Tensor, "batch time"]
    """[batch, time] index of the token's role, as the records say; -1 for none."""
    trajectory: Int[Tensor, " batch"]
    """[batch] index of the row's trajectory (`traj_index`)."""
    versions: Int[Tensor, "batch time"]
    """[batch, time] learner updates behind the weights that sampled; -1 elsewhere."""
    logprobs: Mapping[str, Float[Tensor, "batch time"]]
    """Log-probabilities of the ids by the name of the policy: behavior, proximal, reference, …"""
    fields: Mapping[str, Float[Tensor, "batch time"]]
    """Other numbers of each token by name: values, entropy, lag, …"""


def to_tokens(
    turn_values: Float[Tensor, "trajectory turn"],
    trajectory: Int[Tensor, " batch"],
    turn_ids: Int[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return for each token the number of its turn; 0 on tokens of no turn."""
    if turn_values.shape[1] == 1:
        rows = turn_values[trajectory].expand(-1, turn_ids.shape[1])
    else:
        rows = turn_values[trajectory].gather(1, turn_ids.clamp(min=0))
    return torch.where(turn_ids >= 0, rows, torch.zeros_like(rows))
