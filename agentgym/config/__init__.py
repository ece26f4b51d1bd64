"""The configuration of a run: `schema` says what there is, `loading` reads it, `preflight` checks
it against what is installed.
"""

from __future__ import annotations

from agentgym.config.loading import load_config
from agentgym.config.schema import (
    MICRO_BATCH_TOKENS,
    BudgetConfig,
    CheckpointConfig,
    Device,
    EnvSource,
    EvalConfig,
    LearningRateSchedule,
    LimitsConfig,
    ModelConfig,
    OptimConfig,
    Precision,
    RolloutConfig,
    RunConfig,
    WarmstartConfig,
)
from agentgym.config.validation import InvalidInputError, Problem

__all__ = [
    "MICRO_BATCH_TOKENS",
    "BudgetConfig",
    "CheckpointConfig",
    "Device",
    "EnvSource",
    "EvalConfig",
    "InvalidInputError",
    "LearningRateSchedule",
    "LimitsConfig",
    "ModelConfig",
    "OptimConfig",
    "Precision",
    "Problem",
    "RolloutConfig",
    "RunConfig",
    "WarmstartConfig",
    "load_config",
]
