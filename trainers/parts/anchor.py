"""Anchor: the log-probabilities from which the ratio of a step is measured.

In order: `proximal`, `behavior`.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from agentgym.trainers.parts.registry import Need, part


@part("anchor", needs=(Need.PROXIMAL,))
def proximal(logprobs: Mapping[str, Float[Tensor, "batch time"]]) -> Float[Tensor, "batch time"]:
    """Return the trainer's own log-probabilities at the start of the step.

    Args:
        logprobs: Log-probabilities by policy name.
    """
    return logprobs["proximal"]


@part("anchor")
def behavior(logprobs: Mapping[str, Float[Tensor, "batch time"]]) -> Float[Tensor, "batch time"]:
    """Return the sampler's log-probabilities: mismatch and staleness are clipped together.

    Args:
        logprobs: Log-probabilities by policy name.
    """
    return logprobs["behavior"]
