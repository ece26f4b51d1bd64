"""One group's numbers as text, from rewards to token coefficients, turn by turn: `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from agentgym.trainers.batch import Batch
from agentgym.trainers.objective.prepare import prepare
from agentgym.trainers.objective.preset_schema import Preset
from agentgym.trainers.objective.records import Prepared
from agentgym.trainers.objective.stages import finish_term
from agentgym.trainers.parts.tables import TurnValues

_NONE = "-"
"""Shown where there is no number, which differs from 0."""


def explain(preset: Preset, batch: Batch, group_id: str) -> tuple[str, ...]:
    """Return lines that walk through the numbers of one group.

    The columns follow the order of a step: the named rewards, each term after each of its
    operations, the advantage, the clip widths where they differ from turn to turn, the trained
    tokens, the coefficient of one of them, and what the turn weighs in the loss at ratio 1
    (the sum of coefficient times A over its tokens).

    Args:
        preset: The objective.
        batch: The whole batch: statistics may reach beyond the group.
        group_id: Which group.

    Raises:
        LookupError: If the batch has no such group, or lacks what the preset needs.
    """
    if group_id not in batch.group_ids:
        raise LookupError(
            f"no group {group_id!r} in the batch (known: {', '.join(batch.group_ids)})"
        )
    prepared = prepare(preset, batch)
    columns = _turn_columns(preset, batch, prepared)
    members = (batch.table.group == batch.group_ids.index(group_id)).nonzero().reshape(-1).tolist()
    total = len(batch.trajectory_ids)
    lines = [f"group {group_id}, preset {preset.name}: {len(members)} of {total} trajectories"]
    lines.extend(_refill_line(batch, prepared, group_id))
    for member in members:
        lines.append("")
        lines.append(_headline(batch, prepared, member))
        turns = int(batch.table.turn_valid[member].sum())
        lines.extend(_table(columns, member, turns))
    return tuple(lines)


def _refill_line(batch: Batch, prepared: Prepared, group_id: str) -> list[str]:
    is_refilled = batch.group_ids.index(group_id) in prepared.refill
    return ["the filters ask for another group in its place"] if is_refilled else []


def _headline(batch: Batch, prepared: Prepared, member: int) -> str:
    """Return what is said of a whole trajectory."""
    table = batch.table
    own = batch.rows.trajectory == member
    facts = [
        f"outcome {float(table.outcome[member]):.4g}"
        if bool(table.scored[member])
        else "no outcome",
        f"{int(prepared.mask[own].sum())} of {int(table.length[member])} sampled tokens trained",
        f"{int(own.sum())} rows",
    ]
    if bool(table.truncated[member]):
        facts.append("truncated")
    if not bool(table.on_policy[member]):
        facts.append("not by the policy alone")
    return f"trajectory {batch.trajectory_ids[member]}: {', '.join(facts)}"


def _turn_columns(
    preset: Preset, batch: Batch, prepared: Prepared
) -> list[tuple[str, list[list[str]]]]:
    """Return (title, [trajectory][turn] text) for each step from reward to weight."""
    columns = [(name, _cells(batch, values)) for name, values in prepared.rewards.items()]
    for term in preset.terms:
        chain = finish_term(term, prepared.rewards, batch.table)
        titles = [f"{term.name}.{op.part}" for op in term.ops]
        columns += [
            (title, _cells(batch, values)) for title, values in zip(titles, chain[1:], strict=True)
        ]
    return columns + _token_columns(batch, prepared)


def _cells(batch: Batch, values: TurnValues) -> list[list[str]]:
    """Return the text of each place; a number of the whole trajectory stands on each turn."""
    shape = batch.table.turn_valid.shape
    numbers = values.values.expand(shape).tolist()
    valid = values.valid.expand(shape).tolist()
    return [
        [f"{number:.4g}" if is_valid else _NONE for number, is_valid in zip(*row, strict=True)]
        for row in zip(numbers, valid, strict=True)
    ]


def _token_columns(batch: Batch, prepared: Prepared) -> list[tuple[str, list[list[str]]]]:
    """Return what is known of each turn's tokens: means, a count and a sum."""
    ones = prepared.mask.double()
    count = _turn_sums(batch, prepared.mask, ones)
    per_token: dict[str, Tensor] = {"A": prepared.advantages}
    if prepared.widths is not None:
        per_token |= {"clip low": prepared.widths.low, "clip high": prepared.widths.high}
    means = {
        title: _turn_sums(batch, prepared.mask, values) / count.clamp(min=1)
        for title, values in per_token.items()
    }
    coefficient = _turn_sums(batch, prepared.mask, prepared.coefficients) / count.clamp(min=1)
    weight = _turn_sums(batch, prepared.mask, prepared.coefficients * prepared.advantages)
    shown: Mapping[str, Tensor] = {
        **means,
        "tokens": count,
        "coefficient": coefficient,
        "weight": weight,
    }
    return [
        (
            title,
            [
                [
                    f"{number:.4g}" if trained or title == "tokens" else _NONE
                    for number, trained in zip(*row, strict=True)
                ]
                for row in zip(values.tolist(), count.tolist(), strict=True)
            ],
        )
        for title, values in shown.items()
    ]


def _turn_sums(batch: Batch, mask: Tensor, values: Tensor) -> Tensor:
    """Return [trajectory, turn] sums of values over the trained tokens of each turn."""
    count, width = batch.table.turn_valid.shape
    cell = batch.rows.trajectory[:, None] * width + batch.rows.turn_ids.clamp(min=0)
    sums = values.new_zeros(count * width).double()
    return sums.index_add(0, cell[mask], values[mask].double()).reshape(count, width)


def _table(columns: Sequence[tuple[str, list[list[str]]]], member: int, turns: int) -> list[str]:
    """Return the lines of one trajectory: a turn a line, columns aligned on the right."""
    titles = ["turn", *(title for title, _ in columns)]
    body = [[str(turn), *(cells[member][turn] for _, cells in columns)] for turn in range(turns)]
    widths = [max(len(row[at]) for row in [titles, *body]) for at in range(len(titles))]
    return [
        "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in [titles, *body]
    ]
