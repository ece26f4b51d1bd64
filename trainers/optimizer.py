"""The optimiser of a run and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from agentgym.config import LearningRateSchedule, OptimConfig
from agentgym.errors import ConfigError


def learning_rate_factor(
    update: int, *, warmup: int, total: int, schedule: LearningRateSchedule
) -> float:
    """Return the share of the peak learning rate for an update, from 0.

    The k-th of `warmup` updates runs at k / warmup (the first at 1 / warmup, never at 0); `linear`
    and `cosine` fall from 1 after the warm-up towards 0 at `total`.

    Example:
        warmup=10: updates 0, 4, 5 run at 0.1, 0.5, 0.6.
    """
    if update < 0 or total < 1:
        raise ConfigError(f"'update' must be >= 0 and 'total' >= 1 (got {update!r}, {total!r})")
    if update < warmup:
        return (update + 1) / warmup
    progress = min((update - warmup) / max(total - warmup, 1), 1.0)
    if schedule is LearningRateSchedule.LINEAR:
        return 1.0 - progress
    if schedule is LearningRateSchedule.COSINE:
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    optim: OptimConfig,
    *,
    critic: Iterable[nn.Parameter] = (),
) -> torch.optim.AdamW:
    """Return AdamW over the parameters that are trained.

    Args:
        parameters: Those of the policy: the first group.
        optim: Its settings.
        critic: Those of a critic, a second group; none without one.

    Raises:
        ConfigError: If none of the policy's is trained.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise ConfigError("the model has no parameter to train")
    own = [parameter for parameter in critic if parameter.requires_grad]
    return torch.optim.AdamW(
        [{"params": trained}, *([{"params": own}] if own else [])],
        lr=optim.learning_rate,
        betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
        # One fused kernel a step where the device has it; the same numbers in every run of it.
        fused=all(parameter.is_cuda for parameter in [*trained, *own]) or None,
    )


def set_learning_rate(
    optimizer: torch.optim.Optimizer, rate: float, *, policy_stands_still: bool = False
) -> None:
    """Let the next update run at `rate`.

    Args:
        optimizer: From `make_optimizer`.
        rate: Learning rate of its groups.
        policy_stands_still: Run the policy's group at 0: a gradient of 0 alone would leave the
            weight decay.
    """
    for place, group in enumerate(optimizer.param_groups):
        group["lr"] = 0.0 if policy_stands_still and place == 0 else rate
