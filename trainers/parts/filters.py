"""Filters: which trajectories and turns enter the statistics, and which tokens are trained.

In order: `FilterVerdict`, the maths of `group_range`, then the parts `zero_variance_group`,
`truncated_trajectory`, `over_turn`, `stale`, `mismatch`. A filter declares with `statistics`
whether it acts before the statistics (`exclude`) or after them (`include`: the mask alone changes).
Infrastructure failures and unscored trajectories are no option: the objective leaves them out
before any filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import (
    AboveZero,
    AtLeastZero,
    Count,
    Need,
    part,
    range_problem,
)
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

Statistics = Literal["include", "exclude"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterVerdict:
    """What one filter decided."""

    statistics: Bool[Tensor, "trajectory turn"]
    """[trajectory, turn] True where the statistics count it."""
    mask: Bool[Tensor, "trajectory turn"]
    """[trajectory, turn] True where its tokens stay trained."""
    tokens: Bool[Tensor, "batch time"] | None
    """[batch, time] True where the token stays trained; None for all."""
    refill: Bool[Tensor, " trajectory"]
    """[trajectory] True where the sampler should draw another group for this one's."""


def _verdict(
    table: TurnTable, drop: Bool[Tensor, "trajectory turn"], statistics: Statistics, refill: bool
) -> FilterVerdict:
    counted = ~drop if statistics == "exclude" else torch.ones_like(drop)
    return FilterVerdict(
        statistics=counted,
        mask=~drop,
        tokens=None,
        refill=drop.any(dim=1) if refill else torch.zeros_like(table.scored),
    )


def group_range(
    values: Float[Tensor, " trajectory"],
    counted: Bool[Tensor, " trajectory"],
    group: Int[Tensor, " trajectory"],
) -> Float[Tensor, " trajectory"]:
    """Return for each trajectory the largest minus the smallest value of its group; 0 if empty."""
    count = int(group.max().item()) + 1 if group.numel() else 0
    high = values.new_full((count,), -torch.inf)
    low = values.new_full((count,), torch.inf)
    high = high.scatter_reduce(0, group[counted], values[counted], "amax")
    low = low.scatter_reduce(0, group[counted], values[counted], "amin")
    spread = high - low
    return torch.where(spread.isfinite(), spread, torch.zeros_like(spread))[group]


def _flat(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    group: Int[Tensor, " trajectory"],
    tolerance: float,
) -> Bool[Tensor, " trajectory"]:
    """Return True in groups whose counted values are all equal, and equal in their sums.

    Equal values in unequal number (a reward a turn, episodes of different length) tell members
    apart too.
    """
    total = torch.where(counted, values, torch.zeros_like(values)).sum(dim=1)
    nowhere = ~counted.any(dim=1)
    high = torch.where(counted, values, -torch.inf).amax(dim=1)
    low = torch.where(counted, values, torch.inf).amin(dim=1)
    # One entry a trajectory for each of the two extremes: the range over all places of the group.
    both = torch.cat([high, low])
    spread = group_range(both, torch.cat([~nowhere, ~nowhere]), torch.cat([group, group]))
    sums = group_range(total, torch.ones_like(nowhere), group)
    return (spread[: group.shape[0]] <= tolerance) & (sums <= tolerance)


@part("filter", needs=(Need.GROUP,), traits=("reads_rewards",))
def zero_variance_group(
    table: TurnTable,
    rows: RowTable,
    rewards: Sequence[TurnValues],
    *,
    tolerance: AtLeastZero,
    refill: bool,
    statistics: Statistics,
) -> FilterVerdict:
    """Drop groups whose rewards are all equal, and ask for others in their place.

    What counts are the outcomes and the rewards of turns that the advantages are made of: a group
    of four failures teaches, if their turns were rewarded differently. A penalty of the whole
    trajectory (its length) does not keep a group.

    Args:
        table: The trajectories.
        rows: The rows (not read).
        rewards: The rewards of turns that the preset's advantages are made of.
        tolerance: Largest range of raw rewards that counts as equal.
        refill: Whether the sampler draws another group for each dropped one (counted in groups).
        statistics: Whether the dropped ones still enter the statistics.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, dynamic sampling.
    """
    flat = group_range(table.outcome, table.scored, table.group) <= tolerance
    for one in rewards:
        flat = flat & _flat(one.values, one.valid & table.scored[:, None], table.group, tolerance)
    drop = flat[:, None].expand_as(table.turn_valid)
    return _verdict(table, drop, statistics, refill)


@part("filter")
def truncated_trajectory(
    table: TurnTable, rows: RowTable, *, statistics: Statistics
) -> FilterVerdict:
    """Drop trajectories that a limit ended (overlong and over-turn filtering).

    Args:
        table: The trajectories.
        rows: The rows (not read).
        statistics: Whether the dropped ones still enter the statistics.
    """
    drop = table.truncated[:, None].expand_as(table.turn_valid)
    return _verdict(table, drop, statistics, refill=False)


@part("filter")
def over_turn(
    table: TurnTable, rows: RowTable, *, turns: Count, statistics: Statistics
) -> FilterVerdict:
    """Drop trajectories that a limit ended after at least `turns` turns.

    Args:
        table: The trajectories.
        rows: The rows (not read).
        turns: The limit of turns.
        statistics: Whether the dropped ones still enter the statistics.
    """
    reached = table.truncated & (table.turn_valid.sum(dim=1) >= turns)
    return _verdict(table, reached[:, None].expand_as(table.turn_valid), statistics, refill=False)


@part("filter")
def stale(
    table: TurnTable,
    rows: RowTable,
    *,
    max_lag: Annotated[int, pydantic.Field(ge=0)],
    statistics: Statistics,
) -> FilterVerdict:
    """Drop tokens that were sampled by weights more than `max_lag` learner updates old.

    Args:
        table: The trajectories.
        rows: The rows; `fields["lag"]` is read where trained: learner updates between the weights
            that sampled a token and those that the step begins with.
        max_lag: Largest accepted lag.
        statistics: Not used by a token mask: the trajectories stay in the statistics.

    Raises:
        LookupError: If the batch does not have the lags.
    """
    if "lag" not in rows.fields:
        raise LookupError(
            "the batch has no 'lag', which 'stale' needs: attach it by with_token_fields"
        )
    nothing = torch.zeros_like(table.turn_valid)
    verdict = _verdict(table, nothing, statistics, refill=False)
    fresh = rows.fields["lag"] <= max_lag
    return FilterVerdict(
        statistics=verdict.statistics,
        mask=verdict.mask,
        tokens=fresh | ~rows.mask,
        refill=verdict.refill,
    )


@part("filter", needs=(Need.PROXIMAL,), problem_of=range_problem)
def mismatch(
    table: TurnTable,
    rows: RowTable,
    *,
    low: AtLeastZero,
    high: AboveZero,
    veto: AtLeastZero,
    statistics: Statistics,
) -> FilterVerdict:
    """Drop trajectories whose sampler and trainer disagree.

    Kept are those whose geometric mean ratio proximal / behavior, over all trained tokens in all
    rows, lies in [low, high] and none of whose tokens has a ratio below `veto`.

    Args:
        table: The trajectories.
        rows: The rows; proximal and behavior log-probabilities are read.
        low: Smallest accepted geometric mean.
        high: Largest accepted geometric mean.
        veto: Smallest accepted ratio of a single token.
        statistics: Whether the dropped ones still enter the statistics.

    Source: Dr. Kernel 2026 (mismatch rejection sampling).
    """
    gap = rows.logprobs["proximal"] - rows.logprobs["behavior"]
    gap = torch.where(rows.mask, gap, torch.zeros_like(gap)).double()
    count = table.group.shape[0]
    sums = gap.new_zeros(count).index_add(0, rows.trajectory, gap.sum(dim=1))
    tokens = gap.new_zeros(count).index_add(0, rows.trajectory, rows.mask.double().sum(dim=1))
    mean = (sums / tokens.clamp(min=1)).exp()
    lowest = gap.new_zeros(count).scatter_reduce(0, rows.trajectory, gap.amin(dim=1), "amin")
    drop = (mean < low) | (mean > high) | (lowest.exp() < veto)
    return _verdict(table, drop[:, None].expand_as(table.turn_valid), statistics, refill=False)
