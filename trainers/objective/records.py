"""Records between the two halves of an objective: `ValueTargets`, `Prepared`, `MicroLoss`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentgym.trainers.parts.bounds import ClipWidths
from agentgym.trainers.parts.hooks import ClipSums
from agentgym.trainers.parts.tables import TurnValues


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTargets:
    """What the value head is trained on."""

    old_values: Tensor
    """[batch, time] values at the start of the step."""
    returns: Tensor
    """[batch, time] targets."""
    coefficients: Tensor
    """[batch, time] weight of each token's value loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything of one optimiser step that is known before its first backward."""

    mask: Tensor
    """[batch, time] True on tokens that are trained."""
    turn_ids: Tensor
    """[batch, time] turn of each trained token, -1 elsewhere."""
    advantages: Tensor
    """[batch, time] advantage of each token."""
    coefficients: Tensor
    """[batch, time] aggregation times correction: the factor of each token's gate loss."""
    anchor_logprobs: Tensor | None
    """[batch, time] what the ratio is measured from; None if the policy is its own anchor."""
    widths: ClipWidths | None
    """Clip widths of tokens; None if the gate's own hold."""
    logprobs: Mapping[str, Tensor]
    """[batch, time] log-probabilities by policy name, for the regularizers."""
    regularizer_coefficients: tuple[Tensor, ...]
    """[batch, time] for each regularizer: coefficient times aggregation."""
    value_targets: ValueTargets | None
    """Targets of the value head; None without a critic."""
    turn_advantages: Tensor | None
    """[trajectory, turn] turn-level advantages; None with a token critic."""
    rewards: Mapping[str, TurnValues]
    """The named rewards."""
    terms: Mapping[str, TurnValues]
    """The finished terms, without their weights."""
    refill: tuple[int, ...]
    """Indices of the groups for which the sampler should draw others."""
    metrics: Mapping[str, float]
    """Numbers for people; nothing reads them to decide anything."""

    @property
    def moves_policy(self) -> bool:
        """True if a token has a gradient: through its advantage, or through a regularizer."""
        acts = (self.advantages != 0) & (self.coefficients != 0)
        others = [(one != 0) & self.mask for one in self.regularizer_coefficients]
        return any(bool(one.any()) for one in (acts, *others))

    @property
    def moves_critic(self) -> bool:
        """True if a token has a target of the value head."""
        return self.value_targets is not None and bool(self.value_targets.coefficients.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    """What one micro-batch adds to the step."""

    loss: Tensor
    """Its share of the loss: the step's loss is the sum over all micro-batches and ranks."""
    clip: ClipSums
    """What the clip took away, for the hooks."""
    metrics: Mapping[str, float]
    """Sums over trained tokens, named `…_sum`, maxima, named `…_max`, and `tokens`."""
