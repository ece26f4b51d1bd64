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


def set_learning_rates(
    optimizer: torch.optim.Optimizer, *, policy: float, critic: float = 0.0
) -> None:
    """Let the next update of an optimizer from `make_optimizer` run at these learning rates."""
    for group, rate in zip(optimizer.param_groups, (policy, critic), strict=False):
        group["lr"] = rate


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the state of one that was never updated, as far as it has none.

    A policy that stood still while its critic warmed up has none, and a checkpoint holds all. Where
    there is none at all, torch would take a step of its own to get it, and count it.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                place = parameter.device if group["fused"] else torch.device("cpu")
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=place),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
