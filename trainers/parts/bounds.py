"""Bounds: clip widths of each token, from the gate's own widths.

In order: `ClipWidths`, then the parts `constant` and `turn_adaptive`. The gate of a preset holds
`clip_low` and `clip_high`; a bounds part widens or narrows them token by token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from agentgym.trainers.parts.registry import Need, part
from agentgym.trainers.parts.tables import RowTable, TurnValues, to_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWidths:
    """Distances of the two clips from ratio 1, for each token."""

    low: Float[Tensor, "batch time"]
    high: Float[Tensor, "batch time"]


@part("bounds")
def constant(
    low: float, high: float, rows: RowTable, terms: Mapping[str, TurnValues]
) -> ClipWidths | None:
    """Return no widths of tokens: the gate's own numbers hold everywhere.

    Args:
        low: The gate's lower width.
        high: The gate's upper width.
        rows: The rows (not read).
        terms: The finished terms (not read).
    """
    return None


def sigmoid_scale(z: Float[Tensor, "*shape"], *, width: float) -> Float[Tensor, "*shape"]:
    """Return 1 + width * (2 sigmoid(z) - 1), in (1 - width, 1 + width)."""
    return 1 + width * (2 * torch.sigmoid(z) - 1)


@part("bounds", needs=(Need.CLIP_WIDTHS,))
def turn_adaptive(
    low: float,
    high: float,
    rows: RowTable,
    terms: Mapping[str, TurnValues],
    *,
    term: str,
    width: Annotated[float, pydantic.Field(ge=0, lt=1)],
) -> ClipWidths:
    """Return widths that grow with the turn's normalised term, by 1 + width (2 sigmoid(z) - 1).

    A turn without a value (the last one of an information gain) keeps the gate's widths.

    Args:
        low: The gate's lower width.
        high: The gate's upper width.
        rows: The rows.
        terms: The finished terms by name, without their weights.
        term: Name of the term that sets the widths.
        width: Largest relative change of a width, in [0, 1).

    Raises:
        LookupError: If no term has that name.
        ValueError: If `width` is not in [0, 1).

    Source: A2TGPO 2026, arXiv:2605.06200.
    """
    if term not in terms:
        raise LookupError(f"no term named {term!r} (known: {', '.join(terms)})")
    if not 0 <= width < 1:
        raise ValueError(f"'width' must be in [0, 1) (got {width!r})")
    z = terms[term]
    # Places without a value have 0 there, and sigmoid_scale(0) is exactly 1.
    scale = sigmoid_scale(to_tokens(z.zeroed(), rows.trajectory, rows.turn_ids), width=width)
    return ClipWidths(low=low * scale, high=high * scale)
