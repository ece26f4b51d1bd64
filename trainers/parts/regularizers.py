"""Regularizers: a further loss of each token, with its own coefficient and aggregation.

In order: `kl_estimate` (the maths of the estimators), then the parts `kl` and `entropy_bonus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from agentgym.trainers.parts.registry import AboveZero, Need, part

LARGEST_K3 = 10.0
"""exp(-d) grows without bound where the policy left the anchor: a few tokens would be the loss."""

Estimator = Literal["k1", "k2", "k3", "k1_ratio", "k3_ratio"]


def kl_estimate(
    log_ratio: Float[Tensor, "*shape"], *, estimator: Estimator, log_bound: float
) -> Float[Tensor, "*shape"]:
    """Return a sample's estimate of KL(policy | anchor), from d = log policy - log anchor.

    k1 = d, k2 = d^2 / 2, k3 = min(exp(-d) - 1 + d, 10). As a loss, in expectation over the
    policy's own samples: k1 has no gradient; k2 has the gradient of the KL; k3 has that of the
    reverse KL, up to its bound; k1_ratio and k3_ratio, multiplied with policy / detached policy,
    have the gradient of the KL and the value of k1 and k3, the latter without its bound.

    Args:
        log_ratio: d, with the policy's gradient.
        estimator: Which of the five.
        log_bound: Largest absolute d, held before any exponential.

    Source: Schulman 2020, "Approximating KL Divergence"; the ratio forms as in DeepSeek-V3.2 2025.
    """
    d = log_ratio.clamp(-log_bound, log_bound)
    # policy / detached policy: 1 in value, the score in gradient. The anchor carries no gradient.
    ratio = (log_ratio - log_ratio.detach()).exp()
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    if estimator == "k1_ratio":
        return ratio * d
    k3 = (-d).exp() - 1 + d
    # Not in the ratio's form: cut, its gradient (d times the score) would change its sign.
    return k3.clamp(max=LARGEST_K3) if estimator == "k3" else ratio * k3


def _kl_needs(parameters: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the need of the anchor that is named; the sampler's is always there."""
    known = {need.value: need for need in (Need.REFERENCE, Need.PROXIMAL, Need.TEACHER)}
    return (known[parameters["anchor"]],) if parameters["anchor"] in known else ()


@part("regularizer", needs_of=_kl_needs)
def kl(
    policy_logprobs: Float[Tensor, "batch time"],
    logprobs: Mapping[str, Float[Tensor, "batch time"]],
    entropy: Float[Tensor, "batch time"] | None,
    mask: Bool[Tensor, "batch time"],
    *,
    anchor: Literal["reference", "proximal", "behavior", "teacher"],
    estimator: Estimator,
    log_bound: AboveZero,
) -> Float[Tensor, "batch time"]:
    """Return the estimated KL of the policy to an anchor, token by token.

    Args:
        policy_logprobs: Log-probabilities under the policy, with gradient; 0 outside the mask.
        logprobs: Log-probabilities by policy name.
        entropy: Entropy of the policy (not read).
        mask: True on trained tokens.
        anchor: Name of the other policy.
        estimator: How a token's KL is estimated; k1 has no gradient in expectation.
        log_bound: Largest absolute log-ratio.
    """
    gap = torch.where(mask, policy_logprobs - logprobs[anchor], torch.zeros_like(policy_logprobs))
    return kl_estimate(gap, estimator=estimator, log_bound=log_bound)


@part("regularizer", needs=(Need.ENTROPY,))
def entropy_bonus(
    policy_logprobs: Float[Tensor, "batch time"],
    logprobs: Mapping[str, Float[Tensor, "batch time"]],
    entropy: Float[Tensor, "batch time"] | None,
    mask: Bool[Tensor, "batch time"],
) -> Float[Tensor, "batch time"]:
    """Return minus the entropy of the policy over the whole vocabulary, token by token.

    Args:
        policy_logprobs: Log-probabilities under the policy (not read).
        logprobs: Log-probabilities by policy name (not read).
        entropy: Entropy of the policy in nats, with gradient.
        mask: True on trained tokens.

    Raises:
        LookupError: If no entropy was given.
    """
    if entropy is None:
        raise LookupError("'entropy_bonus' needs the policy's entropy (got none)")
    return -torch.where(mask, entropy, torch.zeros_like(entropy))
