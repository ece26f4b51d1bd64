"""The learning-rate schedule, first updates included."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from agentgym.config import LearningRateSchedule, OptimConfig
from agentgym.errors import ConfigError
from agentgym.trainers.learner.optimizer import learning_rate_factor, make_optimizer

CONSTANT, LINEAR, COSINE = (
    LearningRateSchedule.CONSTANT,
    LearningRateSchedule.LINEAR,
    LearningRateSchedule.COSINE,
)


@pytest.mark.parametrize(
    ("update", "schedule", "factor"),
    [
        (0, CONSTANT, 0.1),  # the first of 10 runs at 1/10, never at 0
        (4, CONSTANT, 0.5),
        (5, CONSTANT, 0.6),
        (9, CONSTANT, 1.0),
        (25, CONSTANT, 1.0),
        (10, LINEAR, 1.0),  # (10 - 10) / (30 - 10) of the way down
        (15, LINEAR, 0.75),
        (30, LINEAR, 0.0),
        (15, COSINE, 0.5 * (1 + math.cos(math.pi / 4))),
        (20, COSINE, 0.5),
    ],
)
def test_learning_rate_factor_matches_hand_value_i7(
    update: int, schedule: LearningRateSchedule, factor: float
) -> None:
    got = learning_rate_factor(update, warmup=10, total=30, schedule=schedule)
    assert got == pytest.approx(factor, abs=1e-12)


def test_learning_rate_factor_without_warmup_begins_at_the_peak() -> None:
    assert learning_rate_factor(0, warmup=0, total=7, schedule=LINEAR) == 1.0


@pytest.mark.parametrize(("update", "total"), [(-1, 5), (0, 0)])
def test_learning_rate_factor_refuses_impossible_positions(update: int, total: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        learning_rate_factor(update, warmup=2, total=total, schedule=CONSTANT)


def test_make_optimizer_takes_only_what_is_trained() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = make_optimizer(model.parameters(), OptimConfig(beta1=0.8, beta2=0.95))
    assert [list(p.shape) for p in optimizer.param_groups[0]["params"]] == [[2, 3]]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)


def test_make_optimizer_refuses_a_frozen_model() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter to train"):
        make_optimizer(model.parameters(), OptimConfig())
    assert torch.is_grad_enabled()
