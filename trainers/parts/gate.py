"""Gates: from the log-ratio and the advantage to the loss of each token.

Two kinds, kept apart by a trait. A *surrogate* returns f(r, A), its gradient flows through the
ratio, and the loss is -f. A *weighted* gate (trait "weighted") returns a weight w, which is
detached, and the loss is -w A log pi; its value says nothing, only its gradient does.

In order: `score`, `importance`, `clip`, `dual_clip`, `two_sided_clip`, `capped_weight`.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from agentgym.trainers.parts.registry import AboveZero, HighWidth, LowWidth, Width, part


def _check_width(name: str, width: Width) -> None:
    """Raise where a scalar width is no positive number."""
    if not isinstance(width, Tensor) and width <= 0:
        raise ValueError(f"'{name}' must be > 0 (got {width!r})")


def clipped_ratio(
    ratio: Float[Tensor, "batch time"], *, clip_low: Width, clip_high: Width
) -> Float[Tensor, "batch time"]:
    """Return the ratio cut to [1 - clip_low, 1 + clip_high].

    Raises:
        ValueError: If a scalar width is not above 0, or `clip_low` is above 1.
    """
    _check_width("clip_low", clip_low)
    _check_width("clip_high", clip_high)
    if not isinstance(clip_low, Tensor) and clip_low > 1:
        raise ValueError(f"'clip_low' must be in (0, 1] (got {clip_low!r})")
    low = torch.as_tensor(1 - clip_low, dtype=ratio.dtype, device=ratio.device)
    high = torch.as_tensor(1 + clip_high, dtype=ratio.dtype, device=ratio.device)
    return torch.minimum(torch.maximum(ratio, low), high)


@part("gate", traits=("weighted",))
def score(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return the weight 1: plain REINFORCE, loss -A log pi.

    Args:
        log_ratio: Detached log-ratio (its shape is read).
        advantages: Advantage of each token (not read).
        policy_logprobs: Detached log-probabilities (not read).

    Source: Williams 1992.
    """
    return torch.ones_like(log_ratio)


@part("gate")
def importance(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return r A, without any clip.

    Args:
        log_ratio: Bounded log-ratio.
        advantages: Advantage of each token.
        policy_logprobs: Detached log-probabilities (not read).
    """
    return log_ratio.exp() * advantages


@part("gate")
def clip(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
    *,
    clip_low: LowWidth,
    clip_high: HighWidth,
) -> Float[Tensor, "batch time"]:
    """Return the smaller of r A and r A with r cut to [1 - clip_low, 1 + clip_high].

    Args:
        log_ratio: Bounded log-ratio.
        advantages: Advantage of each token.
        policy_logprobs: Detached log-probabilities (not read).
        clip_low: Distance of the lower clip from 1.
        clip_high: Distance of the upper clip from 1.

    Source: Schulman et al. 2017 (PPO), arXiv:1707.06347, eq. 7; two widths from Yu et al. 2025
    (DAPO), arXiv:2503.14476.
    """
    ratio = log_ratio.exp()
    clipped = clipped_ratio(ratio, clip_low=clip_low, clip_high=clip_high)
    return torch.minimum(ratio * advantages, clipped * advantages)


@part("gate")
def dual_clip(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
    *,
    clip_low: LowWidth,
    clip_high: HighWidth,
    cap: Annotated[float, pydantic.Field(gt=1)],
) -> Float[Tensor, "batch time"]:
    """Return the clipped surrogate, for A < 0 never below cap * A.

    Args:
        log_ratio: Bounded log-ratio.
        advantages: Advantage of each token.
        policy_logprobs: Detached log-probabilities (not read).
        clip_low: Distance of the lower clip from 1.
        clip_high: Distance of the upper clip from 1.
        cap: Largest ratio that counts for a negative advantage, above 1.

    Raises:
        ValueError: If `cap` is not above 1.

    Source: Ye et al. 2019, arXiv:1912.09729.
    """
    if cap <= 1:
        raise ValueError(f"'cap' must be > 1 (got {cap!r})")
    surrogate = clip(log_ratio, advantages, policy_logprobs, clip_low=clip_low, clip_high=clip_high)
    bounded = torch.maximum(surrogate, cap * advantages)
    return torch.where(advantages < 0, bounded, surrogate)


@part("gate")
def two_sided_clip(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
    *,
    clip_low: LowWidth,
    clip_high: HighWidth,
    cap: Annotated[float, pydantic.Field(gt=1)],
) -> Float[Tensor, "batch time"]:
    """Return the clipped surrogate with min(r, cap) in its unclipped branch.

    Args:
        log_ratio: Bounded log-ratio.
        advantages: Advantage of each token.
        policy_logprobs: Detached log-probabilities (not read).
        clip_low: Distance of the lower clip from 1.
        clip_high: Distance of the upper clip from 1.
        cap: Largest ratio of the unclipped branch.

    Source: INTELLECT-2 2025, arXiv:2505.07291.
    """
    ratio = log_ratio.exp()
    clipped = clipped_ratio(ratio, clip_low=clip_low, clip_high=clip_high)
    return torch.minimum(ratio.clamp(max=cap) * advantages, clipped * advantages)


@part("gate", traits=("weighted",))
def capped_weight(
    log_ratio: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    policy_logprobs: Float[Tensor, "batch time"],
    *,
    ratio_cap: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the weight min(r, ratio_cap): no token loses its gradient.

    Args:
        log_ratio: Detached log-ratio.
        advantages: Advantage of each token (not read).
        policy_logprobs: Detached log-probabilities (not read).
        ratio_cap: The absolute cap (not a distance from 1), above 0.

    Raises:
        ValueError: If `ratio_cap` is not above 0.

    Source: MiniMax 2025 (CISPO), arXiv:2506.13585.
    """
    if ratio_cap <= 0:
        raise ValueError(f"'ratio_cap' must be > 0 (got {ratio_cap!r})")
    return log_ratio.exp().clamp(max=ratio_cap)
