"""Opens who samples in a run: the learner's own model, a copy of it, or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from agentgym.config import RunConfig
from agentgym.policies.base import TrainablePolicy
from agentgym.policies.transformers import TransformersPolicy
from agentgym.policies.transformers.weights import load_tensors
from agentgym.renderer.base import Renderer
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.distributed import full_state
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.models.load import load_model
from agentgym.trainers.weight_sync.served_policy import Place, open_served


def samples_from_copy(config: RunConfig, learner: Learner) -> bool:
    """Return whether the policy samples with weights of its own instead of the learner's.

    It must where the learner's are in pieces, on several ranks, wider than what is computed, or
    change while it samples.
    """
    is_wider = learner.scorer.compute is not None and not config.model.lora_rank
    if config.is_sampled_by_vllm:  # engines have their own, and narrow what they are sent
        return learner.world.size > 1
    # Sampling goes on while the learner writes to its weights.
    return learner.world.size > 1 or is_wider or config.rollout.max_staleness > 0


async def open_policy(
    config: RunConfig, learner: Learner, renderer: Renderer, place: Place, state: LoopState
) -> TrainablePolicy:
    """Return who samples in this process; off rank 0 nobody asks it.

    Raises:
        InfrastructureError: If a server cannot be reached.
        PolicyError: If an engine does not fit, with the reason.
    """
    has_copy = samples_from_copy(config, learner)
    weights = full_state(learner.model, learner.world) if has_copy else None
    with learner.world.together():
        if config.is_sampled_by_vllm and learner.world.is_main:
            version = state.policy_version
            return await open_served(
                config, learner, renderer, place, version=version, weights=weights
            )
        return _policy(config, learner, renderer, place.base, state=state, weights=weights)


def _policy(
    config: RunConfig,
    learner: Learner,
    renderer: Renderer,
    base: Path,
    *,
    state: LoopState,
    weights: Mapping[str, Tensor] | None,
) -> TransformersPolicy:
    model = learner.model
    if weights is not None:
        model = load_model(
            base, config.model, dtype=config.optim.dtype, device=learner.world.device
        )
        load_tensors(model, weights)
    return TransformersPolicy(
        model,
        renderer,
        policy_id=config.policy,
        version=state.policy_version,
        max_rows=config.rollout.max_concurrent,
        deterministic=config.deterministic,
    )


__all__ = ["Place", "open_policy", "samples_from_copy"]
