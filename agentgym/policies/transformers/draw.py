"""Sampling: logits to ids and to their log-probabilities under the distribution that was sampled.

Each row has its own uniform number from its own generator, and the id is where the cumulative
distribution passes it, so a row's draw does not depend on which rows stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.records import Sampling

_NUCLEUS_TOLERANCE = 1e-6
"""Float sums of probabilities that should reach `top_p` may stop this short of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """One id a row.

    Example:
        Draws(ids=(0,), logprobs=(-0.14293,))  # logits [2, 1, 0] at temperature 0.5
    """

    ids: tuple[int, ...]
    """[row] sampled id."""
    logprobs: tuple[float, ...]
    """[row] its log-probability under the sampling distribution, in nats, computed in float32."""


def draw(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Draws:
    """Return one draw a row.

    Temperature divides the logits once. Every bound is then taken on the tempered distribution
    and what passes all of them is renormalised. Temperature 0 takes the most likely id, whose
    probability under that choice is 1.

    Args:
        logits: [row, vocab] scores, of any float type.
        samplings: [row] how to draw.
        uniforms: [row] numbers in [0, 1).
    """
    logprobs = distribution(logits, samplings)
    # In float64: over a large vocabulary a float32 sum would leave the last ids without room.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    ids = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    ids = ids.clamp(max=logits.shape[-1] - 1)
    chosen = logprobs.gather(-1, ids)
    # One copy from the device: ids are exact in float64.
    table: Any = torch.cat((ids.double(), chosen.double()), dim=-1)
    pairs: list[tuple[float, float]] = table.tolist()
    return Draws(ids=tuple(int(i) for i, _ in pairs), logprobs=tuple(value for _, value in pairs))


def distribution(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return [row, vocab] float32 log-probabilities under which each row is sampled."""
    scores = logits.float()
    if any(s.temperature != 1 for s in samplings):
        heat = [s.temperature if s.temperature > 0 else 1.0 for s in samplings]
        scores = scores / torch.tensor(heat, device=scores.device)[:, None]
    logprobs = scores.log_softmax(dim=-1)
    bounded = [i for i, s in enumerate(samplings) if s.temperature > 0 and not s.keeps_full_support]
    if bounded:
        rows = torch.tensor(bounded, device=scores.device)
        logprobs[rows] = _bounded(logprobs[rows], [samplings[i] for i in bounded])
    greedy = [i for i, s in enumerate(samplings) if s.temperature == 0]
    if greedy:
        rows = torch.tensor(greedy, device=scores.device)
        best = logprobs[rows].argmax(dim=-1, keepdim=True)
        certain = torch.full_like(logprobs[rows], -torch.inf).scatter(-1, best, 0.0)
        logprobs[rows] = certain
    return logprobs


def _bounded(logprobs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return the log-probabilities with what is out of bounds left out, renormalised."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=logprobs.device)[:, None]

    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    rank = torch.arange(logprobs.shape[-1], device=logprobs.device)
    keeps_all = logprobs.shape[-1]
    kept = rank < column([s.top_k or keeps_all for s in samplings])
    kept &= before < column(
        [s.top_p - _NUCLEUS_TOLERANCE if s.top_p < 1 else 2.0 for s in samplings]
    )
    kept &= probabilities >= column([s.min_p for s in samplings]) * probabilities[:, :1]
    kept[:, 0] = True  # a bound below the tolerance still keeps the most likely id
    kept = torch.zeros_like(kept).scatter(-1, order, kept)
    return logprobs.masked_fill(~kept, -torch.inf).log_softmax(dim=-1)


__all__ = ["Draws", "distribution", "draw"]
