"""`open_learner`: the learner that a config describes, on the weights of a model folder."""

from __future__ import annotations

from pathlib import Path

from agentgym.config import MICRO_BATCH_TOKENS, Device, RunConfig
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.models.load import load_learner
from agentgym.trainers.objective.preset import Preset


def open_learner(config: RunConfig, preset: Preset, folder: Path, world: World) -> Learner:
    """Return a run's learner.

    Args:
        config: Resolved settings.
        preset: Its objective.
        folder: The model that it begins as.
        world: This process's place among the ranks.

    Raises:
        ConfigError: If the model cannot be loaded.
    """
    model, compute = load_learner(
        folder, config.model, dtype=config.optim.dtype, device=world.device
    )
    bound = config.optim.micro_batch_tokens
    if bound is None:
        bound = MICRO_BATCH_TOKENS[Device(world.device.type)]
    return Learner(
        model,
        preset=preset,
        optim=config.optim,
        total_updates=config.steps * config.optim.updates_per_step,
        temperature=config.rollout.temperature,
        world=world,
        options=UpdateOptions(micro_batch_tokens=bound),
        compute=compute,
    )


__all__ = ["open_learner"]
