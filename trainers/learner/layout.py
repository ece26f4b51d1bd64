"""Rows of token ids as a model takes them: padded or packed pieces, and each rank's share of them.

In order: `TokenRows` (what has rows), `MicroBatch`, `micro_batches`, `UpdateOptions` (how large the
pieces are) and `rank_micro_batches`. How rows are cut changes memory and speed, never a result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from agentgym.trainers.learner.distributed import World


@runtime_checkable
class TokenRows(Protocol):
    """Rows of token ids, such as a batch."""

    @property
    def ids(self) -> Tensor:
        """[batch, time] token ids, padded on the right."""
        ...

    @property
    def lengths(self) -> Tensor:
        """[batch] number of real tokens of each row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some rows as a model takes them: padded (one line a row) or packed (one line for all).

    Example:
        Rows of 3 and 2 tokens, packed: `ids [1, 5]`, `position_ids [[0, 1, 2, 0, 1]]`,
        `segment_ids [[0, 0, 0, 1, 1]]`, `index [[0, 1, 2], [3, 4, 0]]`.
    """

    rows: Tensor
    """[row] indices of the rows in the batch."""
    ids: Tensor
    """[line, position] token ids."""
    position_ids: Tensor
    """[line, position] position within the row, from 0."""
    segment_ids: Tensor
    """[line, position] which of `rows` the token belongs to; -1 on padding."""
    index: Tensor
    """[row, time] where the row's tokens are among the flattened lines; 0 on padding."""
    valid: Tensor
    """[row, time] True on real tokens."""

    def to_rows(self, values: Tensor) -> Tensor:
        """Return values of the lines `[line, position, …]` as `[row, time, …]`, 0 on padding."""
        gathered = values.flatten(0, 1)[self.index]
        keep = self.valid.reshape(*self.valid.shape, *(1,) * (gathered.dim() - 2))
        return torch.where(keep, gathered, torch.zeros_like(gathered))

    def to(self, device: torch.device | str) -> MicroBatch:
        """Return the micro-batch on a device."""
        moved = {
            field.name: getattr(self, field.name).to(device) for field in dataclasses.fields(self)
        }
        return MicroBatch(**moved)


def micro_batches(
    batch: TokenRows,
    row_indices: Sequence[int],
    *,
    packed: bool,
    max_tokens: int | None = None,
    max_rows: int | None = None,
) -> tuple[MicroBatch, ...]:
    """Return the rows cut into micro-batches; each row is in exactly one.

    Args:
        batch: The batch.
        row_indices: The rows of this rank.
        packed: One line for all rows of a micro-batch, without padding.
        max_tokens: Tokens of a micro-batch at most, padding counted; one longer row stands alone.
        max_rows: Rows of a micro-batch at most.
    """
    lengths = {row: int(batch.lengths[row]) for row in row_indices}
    if max_tokens is None:
        size = max_rows or max(1, len(lengths))
        order = list(lengths)
        bins = [order[start : start + size] for start in range(0, len(order), size)]
    else:
        bins = _fill(lengths, max_tokens=max_tokens, max_rows=max_rows, packed=packed)
    build = _packed if packed else _padded
    return tuple(build(batch, torch.tensor(rows, dtype=torch.long)) for rows in bins)


def _fill(
    lengths: Mapping[int, int], *, max_tokens: int, max_rows: int | None, packed: bool
) -> list[list[int]]:
    """Return bins by first fit, longest row first; equal lengths keep their order."""
    bins: list[list[int]] = []
    for row in sorted(lengths, key=lambda item: -lengths[item]):
        for chosen in bins:
            used = sum(lengths[item] for item in chosen) + lengths[row]
            padded = lengths[chosen[0]] * (len(chosen) + 1)
            fits = (used if packed else padded) <= max_tokens
            if fits and (max_rows is None or len(chosen) < max_rows):
                chosen.append(row)
                break
        else:
            bins.append([row])
    return bins


def _padded(batch: TokenRows, rows: Tensor) -> MicroBatch:
    lengths = batch.lengths[rows]
    width = max(1, int(lengths.max()))
    position = torch.arange(width).expand(len(rows), width)
    valid = position < lengths[:, None]
    index = torch.arange(len(rows))[:, None] * width + position
    return MicroBatch(
        rows=rows,
        ids=batch.ids[rows, :width],
        position_ids=torch.where(valid, position, 0),
        segment_ids=torch.where(valid, torch.arange(len(rows))[:, None], -1),
        index=torch.where(valid, index, 0),
        valid=valid,
    )


def _packed(batch: TokenRows, rows: Tensor) -> MicroBatch:
    lengths = batch.lengths[rows]
    width = max(1, int(lengths.max()))
    position = torch.arange(width).expand(len(rows), width)
    valid = position < lengths[:, None]
    starts = lengths.cumsum(0) - lengths
    return MicroBatch(
        rows=rows,
        ids=batch.ids[rows, :width][valid][None],
        position_ids=position[valid][None],
        segment_ids=torch.arange(len(rows))[:, None].expand_as(valid)[valid][None],
        index=torch.where(valid, starts[:, None] + position, 0),
        valid=valid,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """How a batch is cut for the model; changes memory and speed, never the result."""

    micro_batch_tokens: int | None = None
    """Tokens of one forward and backward pass; None for no bound."""
    micro_batch_rows: int | None = None
    """Rows of one forward and backward pass; None for no bound."""
    packed: bool = False
    """Rows end to end in one line instead of padded."""


def rank_micro_batches(
    batch: TokenRows, rows: Sequence[int], world: World, options: UpdateOptions
) -> Iterator[tuple[MicroBatch, bool]]:
    """Yield this rank's micro-batches of some rows, then fillers up to the longest rank's number.

    A filler must go through the model, since ranks take part in the same number of collective
    calls, and must add nothing; it is the second of each pair that says so.
    """
    own_rows = list(rows)[world.rank :: world.size]
    pieces = micro_batches(
        batch,
        own_rows or list(rows)[:1],
        packed=options.packed,
        max_tokens=options.micro_batch_tokens,
        max_rows=options.micro_batch_rows,
    )
    own = len(pieces) if own_rows else 0
    for index in range(world.max(own)):
        piece = pieces[index] if index < own else pieces[0]
        yield piece.to(world.device), index >= own
