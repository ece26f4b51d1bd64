"""Schedule: the phases of a step, each with the tokens that it trains. In order: `joint`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from agentgym.trainers.parts.registry import part
from agentgym.trainers.parts.tables import RowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One pass from the rows on."""

    name: str
    tokens: Bool[Tensor, "batch time"]
    """[batch, time] True on the tokens that this phase trains."""


@part("schedule")
def joint(rows: RowTable) -> tuple[Phase, ...]:
    """Return one phase for all trained tokens.

    Args:
        rows: The rows.
    """
    return (Phase(name="joint", tokens=torch.ones_like(rows.mask)),)
