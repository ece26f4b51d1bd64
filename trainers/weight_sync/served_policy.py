"""Opens the policy of a run that samples on vLLM: `open_served`, and `served_base` for servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from agentgym.config import RunConfig
from agentgym.config.schema import WeightSync
from agentgym.errors import ConfigError
from agentgym.policies.transformers.weights import load_tensors
from agentgym.policies.vllm import EnginePolicy, Server, VllmOptions, connect, parse_address
from agentgym.policies.vllm.connect import model_folder_of
from agentgym.policies.vllm.handshake import describe
from agentgym.renderer.base import Renderer
from agentgym.renderer.fast_tokenizer import read_json
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.models.load import load_model
from agentgym.trainers.weight_sync.nccl import NcclTransfer
from agentgym.trainers.weight_sync.staging import UNTIED_FROM, is_fusable, untied_copy
from agentgym.trainers.weight_sync.synced_policy import SyncedPolicy, tolerance_of
from agentgym.trainers.weight_sync.transports import (
    AdapterTransfer,
    FolderTransfer,
    IpcTransfer,
    SharedTransfer,
    Transfer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Folders of a run."""

    run: Path
    """The run's folder."""
    base: Path
    """Model folder that the run began from."""


SCRATCH = "sync"
"""Folder in a run's folder: weights on their way to servers."""


def is_served(policy: str) -> bool:
    """Return whether a policy's name means vLLM servers."""
    return policy.startswith("vllm:")


async def served_base(policy: str) -> Path:
    """Return the model folder that a served policy begins from, on this machine.

    Raises:
        InfrastructureError: If the server cannot be reached.
        PolicyError: If its folder is not here and none is named.
    """
    folder = await served_folder(policy)
    origin = read_json(folder / "config.json").get(UNTIED_FROM)
    # A learner begins with what the copy was made of, whose head is tied.
    named = parse_address(policy).folder is not None
    return Path(origin) if isinstance(origin, str) and not named else folder


async def served_folder(policy: str) -> Path:
    """Return the model folder that servers began with, or the one named in its place."""
    address = parse_address(policy)
    server = Server(address.urls[0])
    try:
        facts = await describe(server)
    finally:
        await server.aclose()
    return model_folder_of(address, facts.folder)


async def open_served(
    config: RunConfig,
    learner: Learner,
    renderer: Renderer,
    place: Place,
    *,
    version: int,
    weights: Mapping[str, Tensor] | None,
) -> SyncedPolicy:
    """Return a policy on vLLM that has the learner's weights, proved.

    Args:
        config: Resolved settings.
        learner: Owner of the weights.
        renderer: The model's tokenizer and chat template.
        place: Folders of the run.
        version: Learner updates behind the weights.
        weights: The weights whole, where the learner's module has them in pieces.

    Raises:
        InfrastructureError: If a server cannot be reached.
        PolicyError: If a server does not fit, with the reason.
        MissingExtraError: If vLLM is to run in this process and is not installed.
    """
    scratch = place.run / SCRATCH
    policy: EnginePolicy
    transfer: Transfer
    if is_served(config.policy):
        # Batches depend on who asks first, so seeds would repeat nothing; on a GPU they cost a
        # kernel of their own for each id.
        options = VllmOptions(is_seeded=False)
        policy = await connect(config.policy, renderer=renderer, version=version, options=options)
        served = await served_folder(config.policy)
        transfer = transfer_of(config, learner.world.device, served, scratch)
    else:
        on_cpu = learner.world.device.type == "cpu"
        served = untied_copy(place.base, scratch / "model") if on_cpu else place.base
        policy = _in_process(config, served, renderer, version, on_cpu=on_cpu)
        transfer = _shared(learner, served, scratch, on_cpu=on_cpu)
    dtype = torch.float32 if learner.world.device.type == "cpu" else torch.bfloat16
    model = _whole(config, learner, served, weights)
    synced = SyncedPolicy(policy, model, transfer, tolerance=tolerance_of(dtype))
    try:
        # Whatever the engines have: an earlier run's weights, or the folder's before a warm start.
        await synced.update_weights(None, version)
    except BaseException:
        await synced.aclose()
        raise
    return synced


def _in_process(
    config: RunConfig, folder: Path, renderer: Renderer, version: int, *, on_cpu: bool
) -> EnginePolicy:
    # Imported here: it is a heavy module, and few runs use it.
    from agentgym.policies.vllm.inprocess import InprocessOptions, open_inprocess

    options = InprocessOptions(
        max_rows=config.rollout.max_concurrent,
        max_context_tokens=config.limits.max_context_tokens,
        is_seeded=False,
        is_eager=on_cpu,
        takes_tensors=not on_cpu,
        extra={"dtype": "float32"} if on_cpu else None,
    )
    return open_inprocess(
        folder, renderer, options=options, policy_id=config.policy, version=version
    )


def _shared(learner: Learner, served: Path, scratch: Path, *, on_cpu: bool) -> Transfer:
    """Return how weights get to the engine in this process."""
    if on_cpu:
        return FolderTransfer(served, scratch)
    kind = SharedTransfer if is_fusable(learner.model) else IpcTransfer
    return kind(served, scratch, dtype=torch.bfloat16)


def _whole(
    config: RunConfig, learner: Learner, folder: Path, weights: Mapping[str, Tensor] | None
) -> nn.Module:
    """Return the learner's module, or a whole copy where its weights are in pieces."""
    if weights is None:
        return learner.model
    model = load_model(folder, config.model, dtype=config.optim.dtype, device=learner.world.device)
    load_tensors(model, weights)
    return model


def transfer_of(config: RunConfig, device: torch.device, served: Path, scratch: Path) -> Transfer:
    """Return how weights get to the servers: as configured, or what suits the device.

    Raises:
        ConfigError: If the configured way needs what is not there.
    """
    way = config.rollout.weight_sync
    has_gpu = device.type == "cuda"
    if way is WeightSync.AUTO:
        # One GPU for both, or the learner on one of its own.
        on_gpu = WeightSync.IPC if torch.cuda.device_count() == 1 else WeightSync.NCCL
        way = on_gpu if has_gpu else WeightSync.FOLDER
    if way is WeightSync.ADAPTER:
        if not config.model.lora_rank:
            raise ConfigError("'rollout.weight_sync' adapter needs 'model.lora_rank' > 0 (got 0)")
        return AdapterTransfer(scratch)
    if way is WeightSync.FOLDER:
        return FolderTransfer(served, scratch)
    if not has_gpu:
        raise ConfigError(f"'rollout.weight_sync' {way} needs a GPU; take folder (got {way!r})")
    kind = IpcTransfer if way is WeightSync.IPC else NcclTransfer
    return kind(served, scratch, dtype=torch.bfloat16)


__all__ = [
    "SCRATCH",
    "Place",
    "is_served",
    "open_served",
    "served_base",
    "served_folder",
    "transfer_of",
]
