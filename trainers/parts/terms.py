"""Operations of a term: a chain over `TurnValues`, from raw rewards to a turn-level advantage.

In order: the grouping maths (`cell_index`, `cell_sums`), then the parts `total`, `to_go`,
`normalise`, `clamp`. A value that is not valid takes part in nothing and stays without value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentgym.trainers.parts.registry import AboveZero, AtLeastZero, DegreesLost, Need, Share, part
from agentgym.trainers.parts.tables import TurnTable, TurnValues

Key = Literal["group", "turn", "agent", "trajectory", "batch"]


def cell_index(
    table: TurnTable, columns: int, keys: tuple[Key, ...]
) -> Int[Tensor, "trajectory turn"]:
    """Return for each value the index of the cell it is compared within.

    Args:
        table: The trajectories.
        columns: Columns of the values: the number of turns, or 1 for one number a trajectory.
        keys: What the members of a cell share; `batch` alone puts all into one cell.

    Raises:
        ValueError: If `turn` or `agent` is asked for with one number a trajectory.
    """
    count = table.group.shape[0]
    if columns == 1 != table.turn_valid.shape[1] and {"turn", "agent"} & set(keys):
        raise ValueError("keys 'turn' and 'agent' need one number a turn (got one a trajectory)")
    shape = (count, columns)
    parts: dict[Key, Tensor] = {
        "group": table.group[:, None].expand(shape),
        "turn": torch.arange(columns, device=table.group.device).expand(shape),
        "agent": table.agent[:, :columns],
        "trajectory": torch.arange(count, device=table.group.device)[:, None].expand(shape),
    }
    stacked = [parts[key].reshape(-1) for key in keys if key != "batch"]
    if not stacked:
        return torch.zeros(shape, dtype=torch.long, device=table.group.device)
    index = torch.zeros_like(stacked[0])
    for key in stacked:
        # Mixed radix: equal numbers where, and only where, all keys so far are equal.
        index = index * (int(key.max().item()) + 2 if key.numel() else 1) + (key + 1)
    return index.reshape(shape)


def cell_sums(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    cell: Int[Tensor, "trajectory turn"],
) -> Float[Tensor, "trajectory turn"]:
    """Return for each place the sum over the counted values of its cell."""
    cells = int(cell.max().item()) + 1 if cell.numel() else 0
    sums = values.new_zeros(cells)
    sums = sums.index_add(0, cell[counted], values[counted])
    return sums[cell]


def cell_extremes(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    cell: Int[Tensor, "trajectory turn"],
) -> Float[Tensor, "trajectory turn"]:
    """Return for each place the range (largest minus smallest) of its cell; 0 where empty."""
    cells = int(cell.max().item()) + 1 if cell.numel() else 0
    high = values.new_full((cells,), -torch.inf)
    low = values.new_full((cells,), torch.inf)
    high = high.scatter_reduce(0, cell[counted], values[counted], "amax")
    low = low.scatter_reduce(0, cell[counted], values[counted], "amin")
    # Empty cells alone: a range that is no number must be seen, not pass for no variance.
    return torch.where(high < low, torch.zeros_like(high), high - low)[cell]


@part("op", name="sum")
def total(values: TurnValues, table: TurnTable) -> TurnValues:
    """Return one number a trajectory: the sum over its turns, R = sum_k r[k].

    Args:
        values: One number a turn.
        table: The trajectories (not read).
    """
    return TurnValues(
        values=values.zeroed().sum(dim=1, keepdim=True),
        valid=values.valid.any(dim=1, keepdim=True),
    )


@part("op")
def to_go(values: TurnValues, table: TurnTable, *, discount: Share) -> TurnValues:
    """Return the return to go of each turn, G[k] = r[k] + discount * G[k+1].

    Every turn of the trajectory has one, also a turn without a reward of its own, as long as the
    trajectory has a reward at all.

    Args:
        values: One number a turn.
        table: The trajectories; their turns are read.
        discount: Weight of the next turn's return, in [0, 1].

    Raises:
        ValueError: If `discount` is not in [0, 1] or the values have one column a trajectory.
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"'discount' must be in [0, 1] (got {discount!r})")
    if values.values.shape != table.turn_valid.shape:
        raise ValueError("'to_go' needs one number a turn (got one a trajectory)")
    rewards = values.zeroed()
    carried = torch.zeros_like(rewards[:, 0])
    columns: list[Tensor] = []
    for turn in reversed(range(rewards.shape[1])):
        carried = rewards[:, turn] + discount * carried
        columns.append(carried)
    returns = torch.stack(columns[::-1], dim=1)
    valid = table.turn_valid & values.valid.any(dim=1, keepdim=True)
    return TurnValues(values=torch.where(valid, returns, torch.zeros_like(returns)), valid=valid)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatistics:
    """Moments of the cell of each place, over the values that count."""

    count: Float[Tensor, "trajectory turn"]
    mean: Float[Tensor, "trajectory turn"]
    squares: Float[Tensor, "trajectory turn"]
    """Sum of squared deviations from the mean."""
    spread: Float[Tensor, "trajectory turn"]


def cell_statistics(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    cell: Int[Tensor, "trajectory turn"],
) -> CellStatistics:
    """Return count, mean, squared deviations and range of each place's cell.

    The deviations are taken after centring: a sum of squares minus a squared sum loses the digits.
    """
    count = cell_sums(counted.to(values.dtype), counted, cell)
    mean = cell_sums(values, counted, cell) / count.clamp(min=1)
    return CellStatistics(
        count=count,
        mean=mean,
        squares=cell_sums((values - mean).square(), counted, cell),
        spread=cell_extremes(values, counted, cell),
    )


def _centred(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    statistics: CellStatistics,
    centre: str,
    baseline: Float[Tensor, "trajectory turn"] | None,
) -> Float[Tensor, "trajectory turn"]:
    """Return the values minus their baseline: the cell's mean, or the mean of the others in it."""
    if centre == "none":
        return values
    if baseline is not None:
        return values - baseline
    difference = values - statistics.mean
    if centre == "mean":
        return difference
    # Leave one out, in the difference form: N/(N-1) (x - mean) for a member of the statistics.
    # For one that is not a member the others are all of them.
    others = (statistics.count - 1).clamp(min=1)
    return torch.where(counted, difference * statistics.count / others, difference)


def _length_weighted(
    values: Float[Tensor, "trajectory turn"],
    counted: Bool[Tensor, "trajectory turn"],
    cell: Int[Tensor, "trajectory turn"],
    table: TurnTable,
) -> Float[Tensor, "trajectory turn"]:
    """Return sum(L x) / sum(L) of each cell, L the trained tokens of the trajectory."""
    lengths = table.length[:, None].to(values.dtype).expand_as(values)
    total = cell_sums(lengths, counted, cell)
    return cell_sums(lengths * values, counted, cell) / total.clamp(min=1)


def _needs_group(parameters: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the need of a second member where a group sets the baseline."""
    baseline = "group" in parameters["keys"] and parameters["centre"] != "none"
    return (Need.GROUP,) if baseline else ()


@part("op", needs_of=_needs_group)
def normalise(
    values: TurnValues,
    table: TurnTable,
    *,
    keys: tuple[Key, ...],
    centre: Literal["mean", "leave_one_out", "length_weighted", "none"],
    scale: Literal["std", "none"],
    ddof: DegreesLost,
    eps: AtLeastZero,
    variance_eps: AtLeastZero,
    floor: AtLeastZero,
    singleton: Literal["zero", "keep"],
    source_rows: Literal["all", "on_policy"],
) -> TurnValues:
    """Return (x - baseline) / (sqrt(var + variance_eps) + eps) within each cell.

    Args:
        values: One number a turn, or a trajectory.
        table: The trajectories.
        keys: What the members of a cell share.
        centre: Baseline: the cell's mean, the mean of the others, the mean weighted by the number
            of trained tokens, or 0.
        scale: Divide by the cell's standard deviation, or not.
        ddof: 1 for the sample, 0 for the population deviation.
        eps: Added to the deviation.
        variance_eps: Added to the variance, under the root.
        floor: A range of raw values up to this counts as no variance: the result is exactly 0,
            except where nothing is taken off and nothing divides.
        singleton: Result of a value that is alone in its cell: 0, or the value itself.
        source_rows: Whose values form the statistics: all, or on-policy trajectories only.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300; the leave-one-out baseline from Ahmadian
    et al. 2024 (RLOO), arXiv:2402.14740, the length-weighted one from Hao et al. 2025 (OPO),
    arXiv:2505.23585. The floor is ours: a tiny deviation of nearly equal
    rewards would blow rounding errors up to full advantages.
    """
    x, valid = values.zeroed(), values.valid
    cell = cell_index(table, x.shape[1], keys)
    counted = valid if source_rows == "all" else valid & table.on_policy[:, None]
    statistics = cell_statistics(x, counted, cell)
    baseline = _length_weighted(x, counted, cell, table) if centre == "length_weighted" else None
    centred = _centred(x, counted, statistics, centre, baseline)
    if scale == "std":
        freedom = (statistics.count - ddof).clamp(min=1)
        deviation = (statistics.squares / freedom + variance_eps).sqrt()
        centred = centred / (deviation + eps)
    if centre != "none" or scale != "none":
        centred = torch.where(statistics.spread <= floor, torch.zeros_like(centred), centred)
    alone = statistics.count <= 1
    single = x if singleton == "keep" else torch.zeros_like(x)
    result = torch.where(alone, single, centred)
    return TurnValues(values=torch.where(valid, result, torch.zeros_like(x)), valid=valid)


@part("op")
def clamp(values: TurnValues, table: TurnTable, *, bound: AboveZero) -> TurnValues:
    """Return the values cut to [-bound, bound].

    Args:
        values: One number a turn, or a trajectory.
        table: The trajectories (not read).
        bound: Largest absolute value, above 0.

    Raises:
        ValueError: If `bound` is not above 0.
    """
    if bound <= 0:
        raise ValueError(f"'bound' must be > 0 (got {bound!r})")
    return TurnValues(values=values.zeroed().clamp(-bound, bound), valid=values.valid)
