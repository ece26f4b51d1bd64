"""`NcclTransfer`: new weights to engines on other GPUs, as one broadcast that all take part in."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from agentgym.concurrency.limiter import first_error
from agentgym.concurrency.threads import DaemonThreads
from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.control import EngineControl
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.weight_sync.transports import StagedTransfer

T = TypeVar("T")


class NcclTransfer(StagedTransfer):
    """Broadcasts the copy from this process to every process of every engine.

    A member that is gone leaves the others waiting, in calls that cannot be interrupted. So these
    run in threads that hold no process, and are given up at a deadline.

    Args:
        served: Model folder that the engines began with.
        scratch: Where weights are written for an engine that was started anew.
        dtype: Number format of the engines.
        address: This machine, as the engines reach it.
        deadline_s: Longest time until all have met, and until one broadcast has ended.
    """

    is_joint = True

    def __init__(
        self,
        served: Path,
        scratch: Path,
        *,
        dtype: torch.dtype | None = None,
        address: str = "127.0.0.1",
        deadline_s: float = 240.0,
    ) -> None:
        super().__init__(served, scratch, dtype=dtype)
        self.deadline_s = deadline_s
        """Seconds; below those that the client waits for one answer of a server."""
        self._address = address
        self._group: Any = None

    def forget(self) -> None:
        """Let all meet anew before the next broadcast."""
        self._group = None

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Broadcast to all engines at once.

        Raises:
            InfrastructureError: If an engine is lost, or does not take part in time.
        """
        staging = self._ready()
        with watch.time("start"):
            if self._group is None:
                self._group = await self._meet(controls)
            await asyncio.gather(*(control.start_update() for control in controls))
        info = staging.layout()
        with watch.time("transfer"):
            await self._together(
                partial(_broadcast, self._group, staging.views),
                [control.update(info) for control in controls],
            )
        with watch.time("finish"):
            await asyncio.gather(*(control.finish_update() for control in controls))

    async def restore(self, control: EngineControl) -> None:
        """Let one engine read from a folder; all meet again before the next broadcast."""
        self.forget()
        await super().restore(control)

    async def _meet(self, controls: Sequence[EngineControl]) -> Any:
        """Return the group of this process, rank 0, and all processes of the engines."""
        sizes = [await control.world_size() for control in controls]
        meeting = {
            "master_address": self._address,
            "master_port": _free_port(self._address),
            "world_size": 1 + sum(sizes),
        }
        offsets = [1 + sum(sizes[:index]) for index in range(len(sizes))]
        infos = [{**meeting, "rank_offset": offset} for offset in offsets]
        return await self._together(
            partial(_join, meeting),
            [control.init_transfer(info) for control, info in zip(controls, infos, strict=True)],
        )

    async def _together(
        self, mine: Callable[[], Any], theirs: Sequence[Coroutine[Any, Any, None]]
    ) -> Any:
        """Return what this process's part gives, once all have done theirs; forget who failed.

        What becomes of a server whose worker waits in a broadcast that was given up is not tested:
        it takes GPUs. It may have to be ended.
        """
        try:
            async with asyncio.timeout(self.deadline_s), asyncio.TaskGroup() as group:
                own = group.create_task(_in_daemon(mine))
                for their in theirs:
                    group.create_task(their)
        except TimeoutError as error:
            self.forget()
            raise InfrastructureError(
                f"learner and engines did not exchange weights within {self.deadline_s:g} s: one "
                "of them is gone or stuck. End the servers and look into their logs, start them "
                "again, and go on with --resume"
            ) from error
        except BaseExceptionGroup as failed:
            self.forget()
            raise first_error(failed) from None
        return own.result()


async def _in_daemon(call: Callable[[], T]) -> T:
    """Return what a blocking call gives; one that never returns does not hold the process."""
    threads = DaemonThreads(1, "agentgym-broadcast")
    try:
        return await asyncio.wrap_future(threads.submit(call))
    finally:
        threads.shutdown(wait=False)


def _free_port(address: str) -> int:
    with socket.socket() as opened:
        opened.bind((address, 0))
        return int(opened.getsockname()[1])


def _join(meeting: Mapping[str, Any]) -> Any:
    # Not tested without GPUs, and `_broadcast` neither.
    common = importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
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
