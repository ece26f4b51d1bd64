"""Combine: from named, weighted terms to one turn-level advantage.

In order: `Term`, then the parts `weighted_sum` (name: sum) and `cumsum_sqrt`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from agentgym.trainers.parts.registry import Share, part
from agentgym.trainers.parts.tables import TurnTable, TurnValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One finished term."""

    name: str
    weight: float
    result: TurnValues


def _on_turns(term: Term, table: TurnTable) -> Float[Tensor, "trajectory turn"]:
    """Return the term on every turn of the trajectory, without its weight; 0 where it has none."""
    values = term.result.zeroed().expand_as(table.turn_valid)
    return torch.where(table.turn_valid, values, torch.zeros_like(values))


@part("combine", name="sum")
def weighted_sum(terms: tuple[Term, ...], table: TurnTable) -> Float[Tensor, "trajectory turn"]:
    """Return A[k] = sum of weight * term[k] over the terms.

    Args:
        terms: The finished terms.
        table: The trajectories.
    """
    total = torch.zeros_like(table.turn_valid, dtype=table.outcome.dtype)
    for term in terms:
        total = total + term.weight * _on_turns(term, table)
    return total


@part("combine")
def cumsum_sqrt(
    terms: tuple[Term, ...], table: TurnTable, *, accumulate: str, discount: Share
) -> Float[Tensor, "trajectory turn"]:
    """Return A[k] = weight * D[k] / sqrt(n[k]) + the other terms, D[k] = z[k] + discount * D[k+1].

    n[k] is the number of values of the accumulated term at turn k or later, so that a sum of many
    turns has the variance of one. Turns with none (the last one) get the other terms alone.

    Args:
        terms: The finished terms.
        table: The trajectories.
        accumulate: Name of the term that is summed forward.
        discount: Weight of the next turn's sum, in [0, 1].

    Raises:
        LookupError: If no term has the name `accumulate`.

    Source: A2TGPO 2026, arXiv:2605.06200.
    """
    chosen = next((term for term in terms if term.name == accumulate), None)
    if chosen is None:
        raise LookupError(f"no term named {accumulate!r} (known: {[term.name for term in terms]})")
    values = _on_turns(chosen, table)
    counts = chosen.result.valid.to(values.dtype)
    carried, remaining = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    columns: list[Tensor] = []
    for turn in reversed(range(values.shape[1])):
        carried = values[:, turn] + discount * carried
        remaining = counts[:, turn] + remaining
        columns.append(torch.where(counts[:, turn] > 0, carried / remaining.clamp(min=1).sqrt(), 0))
    others = weighted_sum(tuple(term for term in terms if term is not chosen), table)
    return chosen.weight * torch.stack(columns[::-1], dim=1) + others
