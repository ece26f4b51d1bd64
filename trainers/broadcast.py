"""`NcclTransfer`: new weights to engines on other GPUs, as one broadcast that all take part in."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.policies.vllm.control import EngineControl
from agentgym.trainers.transfers import StagedTransfer, Stopwatch


class NcclTransfer(StagedTransfer):
    """Broadcasts the copy from this process to every process of every engine.

    Args:
        served: Model folder that the engines began with.
        scratch: Where weights are written for an engine that was started anew.
        dtype: Number format of the engines.
        address: This machine, as the engines reach it.
    """

    is_joint = True

    def __init__(
        self,
        served: Path,
        scratch: Path,
        *,
        dtype: torch.dtype | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        super().__init__(served, scratch, dtype=dtype)
        self._address = address
        self._group: Any = None

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Broadcast to all engines at once."""
        staging = self._ready()
        async with watch.time("start"):
            if self._group is None:
                self._group = await self._meet(controls)
            await asyncio.gather(*(control.start_update() for control in controls))
        info = staging.layout()
        async with watch.time("transfer"):
            await asyncio.gather(
                *(control.update(info) for control in controls),
                asyncio.to_thread(_broadcast, self._group, staging.views),
            )
        async with watch.time("finish"):
            await asyncio.gather(*(control.finish_update() for control in controls))

    async def restore(self, control: EngineControl) -> None:
        """Let one engine read from a folder; all meet again before the next broadcast."""
        self._group = None
        await super().restore(control)

    async def _meet(self, controls: Sequence[EngineControl]) -> Any:
        """Return the group of this process, rank 0, and all processes of the engines."""
        common = importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
        sizes = [await control.world_size() for control in controls]
        meeting = {
            "master_address": self._address,
            "master_port": _free_port(self._address),
            "world_size": 1 + sum(sizes),
        }
        offsets = [1 + sum(sizes[:index]) for index in range(len(sizes))]
        infos = [{**meeting, "rank_offset": offset} for offset in offsets]
        group, *_ = await asyncio.gather(
            asyncio.to_thread(_join, common, meeting),
            *(control.init_transfer(info) for control, info in zip(controls, infos, strict=True)),
        )
        return group


def _free_port(address: str) -> int:
    with socket.socket() as opened:
        opened.bind((address, 0))
        return int(opened.getsockname()[1])


def _join(common: Any, meeting: Mapping[str, Any]) -> Any:
    return common.stateless_init_process_group(
        meeting["master_address"],
        meeting["master_port"],
        0,
        meeting["world_size"],
        torch.cuda.current_device(),
    )


def _broadcast(group: Any, views: Mapping[str, Tensor]) -> None:
    stream = torch.cuda.current_stream()
    for view in views.values():
        group.broadcast(view, src=0, stream=stream)
    stream.synchronize()


__all__ = ["NcclTransfer"]
