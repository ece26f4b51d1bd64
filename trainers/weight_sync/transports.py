"""Ways of new weights into engines, each through what vLLM offers itself.

`FolderTransfer` (engines read a saved folder; CPU), `IpcTransfer` (learner and servers on one GPU),
`SharedTransfer` (engine in this process, on one GPU) and `AdapterTransfer` (files of a low-rank
adapter); across GPUs it is `NcclTransfer`, in `agentgym.trainers.weight_sync.nccl`. `prepare` does
all that can be done while engines still sample; `send` is what they have to stop for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.vllm.control import EngineControl
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.weight_sync.staging import (
    Staging,
    checkpoint_names,
    checkpoint_weights,
    save_weights,
)

_IS_THERE = "already been loaded"
"""What a server says of an adapter's name that it has."""
_RELEASE_S = 10.0
"""Longest wait for servers at the end of a run."""


@runtime_checkable
class Transfer(Protocol):
    """One way of weights into engines."""

    needs_pause: bool
    """Whether engines must not sample meanwhile."""
    is_joint: bool
    """Whether all engines take part at once, or each by itself."""

    async def prepare(self, model: nn.Module, version: int) -> None:
        """Make ready what is to be sent."""
        ...

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Give it to the engines."""
        ...

    async def restore(self, control: EngineControl) -> None:
        """Give what was sent last to an engine that was started anew."""
        ...

    def forget(self) -> None:
        """Take it that no engine has met the learner: one of them is another process now."""
        ...

    async def release(self, controls: Sequence[EngineControl]) -> None:
        """Leave nothing in the engines that only this run needs, where they still answer."""
        ...


class SeparateTransfer:
    """What transfers share that speak to engines one by one, and leave nothing in them."""

    def forget(self) -> None:
        """Do nothing: no engine knows of another."""

    async def release(self, controls: Sequence[EngineControl]) -> None:
        """Do nothing: the next run sends weights of its own."""


class FolderTransfer(SeparateTransfer):
    """Writes the weights as a file, which engines on this machine read.

    Args:
        served: Model folder that the engines began with.
        scratch: Where files are written; two of them, by turns.
    """

    needs_pause = True
    is_joint = False

    def __init__(self, served: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._stored = checkpoint_names(served)
        self._folder: Path | None = None

    async def prepare(self, model: nn.Module, version: int) -> None:
        """Write the file."""
        weights = checkpoint_weights(model, self._stored)
        # The other one may be read by an engine that is being restored.
        folder = self._scratch / f"weights-{version % 2}"
        self._folder = await asyncio.to_thread(save_weights, weights, folder)

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Let every engine read it."""
        with watch.time("transfer"):
            await asyncio.gather(*(control.reload(str(self._folder)) for control in controls))

    async def restore(self, control: EngineControl) -> None:
        """Let one engine read what was written last."""
        if self._folder is not None:
            await control.reload(str(self._folder))


class StagedTransfer(SeparateTransfer):
    """What transfers of tensors share: a copy in one stretch of memory.

    Args:
        served: Model folder that the engines began with.
        scratch: Where weights are written for an engine that was started anew.
        dtype: Number format of the engines.
    """

    needs_pause = True
    is_joint = False

    def __init__(self, served: Path, scratch: Path, *, dtype: torch.dtype | None = None) -> None:
        self._stored = checkpoint_names(served)
        self._scratch = scratch
        self._dtype = dtype
        self.staging: Staging | None = None

    async def prepare(self, model: nn.Module, version: int) -> None:
        """Copy the weights out of the learner's way."""
        weights = checkpoint_weights(model, self._stored)
        if self.staging is None:
            self.staging = Staging(weights, dtype=self._dtype)
            self.on_staging(self.staging)
        self.staging.fill(weights)

    def on_staging(self, staging: Staging) -> None:
        """Prepare what stays the same for all changes of weights."""

    async def restore(self, control: EngineControl) -> None:
        """Let one engine read from a folder what was sent last."""
        if self.staging is not None:
            folder = self._scratch / "restored"
            await asyncio.to_thread(save_weights, self.staging.views, folder)
            await control.reload(str(folder))

    def _ready(self) -> Staging:
        if self.staging is None:
            raise PolicyError("weights are sent after they were prepared: call prepare first")
        return self.staging


class IpcTransfer(StagedTransfer):
    """Hands out handles to the copy; servers on the same GPU read it there."""

    def __init__(self, served: Path, scratch: Path, *, dtype: torch.dtype | None = None) -> None:
        super().__init__(served, scratch, dtype=dtype)
        self._info: Mapping[str, Any] = {}
        self._met: set[str] = set()

    def on_staging(self, staging: Staging) -> None:
        """Make the handles once: they hold as long as the copy does."""
        self._info = {**staging.layout(), "ipc_handles_pickled": staging.handles()}

    def forget(self) -> None:
        """Meet every engine anew before the next transfer."""
        self._met.clear()

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Let every engine read the copy."""
        self._ready()
        with watch.time("start"):
            for control in controls:
                if control.name not in self._met:
                    await control.init_transfer({})
                    self._met.add(control.name)
            await asyncio.gather(*(control.start_update() for control in controls))
        with watch.time("transfer"):
            await asyncio.gather(*(control.update(self._info) for control in controls))
        with watch.time("finish"):
            await asyncio.gather(*(control.finish_update() for control in controls))

    async def restore(self, control: EngineControl) -> None:
        """Let one engine read what was sent last."""
        await control.init_transfer({})
        await control.start_update()
        await control.update(self._info)
        await control.finish_update()


class SharedTransfer(StagedTransfer):
    """Lets the engine in this process copy tensors in its own layout over its own.

    vLLM's loading of a checkpoint into a live model takes longer, in Python, than the copies.
    """

    def __init__(self, served: Path, scratch: Path, *, dtype: torch.dtype | None = None) -> None:
        super().__init__(served, scratch, dtype=dtype)
        self._pairs = b""

    def on_staging(self, staging: Staging) -> None:
        """Make the handles once: they hold as long as the copy does."""
        self._pairs = staging.shared_pairs()

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Let the engine copy."""
        self._ready()
        with watch.time("transfer"):
            for control in controls:
                await _in_process(control).copy_in(self._pairs)


class AdapterTransfer(SeparateTransfer):
    """Writes the files of a low-rank adapter, which servers load beside the base weights.

    Each load has a name of its own, so requests under way end on the adapter that they began with,
    and nothing pauses. No other run has that name: a server refuses one that it has already, and
    keeps cached prefixes under it.

    Args:
        scratch: Where adapters are written.
    """

    needs_pause = False
    is_joint = False

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._token = secrets.token_hex(4)
        self._loads = itertools.count()
        self._loaded: dict[str, list[str]] = {}
        self._folder: Path | None = None
        self.model = ""
        """Name of the adapter that was sent last."""

    async def prepare(self, model: nn.Module, version: int) -> None:
        """Write the adapter.

        Raises:
            PolicyError: If the model has none.
        """
        plain: Any = model
        if not hasattr(plain, "peft_config"):
            raise PolicyError("adapters are sent of a model that has one; set 'model.lora_rank'")
        self.model = f"policy-{self._token}-{next(self._loads)}-v{version}"
        self._folder = self._scratch / self.model
        await asyncio.to_thread(plain.save_pretrained, str(self._folder))

    async def send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Load it in every server; of the earlier ones the last stays, for what is under way."""
        with watch.time("transfer"):
            for control in controls:
                await control.load_adapter(self.model, str(self._folder))
                await self._unload_old(control)

    async def _unload_old(self, control: EngineControl) -> None:
        names = self._loaded.setdefault(control.name, [])
        names.append(self.model)
        while len(names) > 2:
            with contextlib.suppress(PolicyError):  # a restarted server never had it
                await control.unload_adapter(names.pop(0))

    async def restore(self, control: EngineControl) -> None:
        """Load what was sent last in one server."""
        if self._folder is None:
            return
        try:
            await control.load_adapter(self.model, str(self._folder))
        except PolicyError as error:
            # It is the same process after all, and only this adapter has that name.
            if _IS_THERE not in str(error):
                raise
        names = self._loaded.setdefault(control.name, [])
        if self.model not in names:
            names.append(self.model)

    async def release(self, controls: Sequence[EngineControl]) -> None:
        """Unload what was loaded, from servers that still answer."""
        loaded, self._loaded = self._loaded, {}
        # A server that is gone, or hangs, has nothing to be unloaded that matters.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_S):
                await asyncio.gather(
                    *(_unload(control, loaded.get(control.name, ())) for control in controls)
                )


async def _unload(control: EngineControl, names: Sequence[str]) -> None:
    with contextlib.suppress(InfrastructureError):
        for name in names:
            with contextlib.suppress(PolicyError):  # a restarted server never had it
                await control.unload_adapter(name)


def _in_process(control: EngineControl) -> Any:
    if not hasattr(control, "copy_in"):
        raise PolicyError(f"{control.name} is another process: shared tensors cannot reach it")
    return control


__all__ = [
    "AdapterTransfer",
    "FolderTransfer",
    "IpcTransfer",
    "SharedTransfer",
    "StagedTransfer",
    "Transfer",
]
