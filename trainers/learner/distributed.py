"""The processes of a run: one code path for one process and for many under torchrun.

The learner is sharded with FSDP2 where there is more than one process. Gradients are summed over
ranks, not averaged: the loss is already divided by global counts.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentgym.errors import AgentGymError, ConfigError, InfrastructureError


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who this process is among the learner's processes."""

    rank: int = 0
    """Index of this process."""
    size: int = 1
    """Number of processes."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this process computes."""

    @property
    def is_main(self) -> bool:
        """True in the process that runs the episodes and writes the run folder."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def max(self, number: int) -> int:
        """Return the largest of a number over all ranks."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number], device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor.item())

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value in every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    @contextmanager
    def together(self) -> Generator[None]:
        """Let all ranks leave a block well, or none: where one fails in it, every one raises.

        For work of one rank, or of each by itself, before the next collective call: the others
        would wait there for the one that failed. No collective call may stand in the block.

        Raises:
            InfrastructureError: If that is what another rank failed with.
            AgentGymError: If another rank failed otherwise.
        """
        failure: AgentGymError | None = None
        try:
            yield
        except AgentGymError as error:
            failure = error
        kinds = (None, AgentGymError, InfrastructureError)
        own = 0 if failure is None else 2 if isinstance(failure, InfrastructureError) else 1
        kind = kinds[self.max(own)]
        if failure is not None:
            raise failure
        if kind is not None:
            raise kind("another process of this run failed; its own message says why")

    def peak_memory(self) -> dict[str, float]:
        """Return the most memory of this process's GPU since the last call; nothing on a CPU."""
        if self.device.type != "cuda":
            return {}
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return {"peak_memory_gib": peak / 2**30}

    def close(self) -> None:
        """Leave the process group, if this process joined one."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join_world(device: str = "auto") -> World:
    """Return this process's place, joining the group that torchrun's environment names.

    Args:
        device: `auto`, `cpu` or `cuda`.

    Raises:
        ConfigError: If `cuda` is asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError("'optim.device' is 'cuda' but no GPU is visible; use cpu or auto")
    use_cuda = has_cuda and device != "cpu"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(place)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(device=place)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if use_cuda else "gloo")
    return World(rank=dist.get_rank(), size=size, device=place)


def shard(root: nn.Module, blocks: Iterable[nn.Module], world: World) -> None:
    """Shard a module over the ranks in place, block by block; nothing happens for one process.

    Args:
        root: The module whose forward is called.
        blocks: Parts of it that are gathered one at a time.
        world: This process's place.
    """
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(root, mesh=mesh)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # The default averages over ranks; our losses are shares of one global sum.
            module.set_gradient_divide_factor(1.0)
            # gloo knows no scaled sum; a plain one is right for a factor of 1 everywhere.
            module.set_force_sum_reduction_for_comms(enable=True)


def full_state(model: nn.Module, world: World) -> dict[str, Tensor]:
    """Return every weight whole, by name, in every rank."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    if world.size == 1:
        return dict(model.state_dict())
    options = StateDictOptions(full_state_dict=True, cpu_offload=False)
    return cast("dict[str, Tensor]", get_model_state_dict(model, options=options))
