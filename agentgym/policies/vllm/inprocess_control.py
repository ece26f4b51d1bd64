"""`InprocessControl`: pauses an engine in this process and changes its weights."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from agentgym.errors import MissingExtraError, PolicyError
from agentgym.policies.vllm.engine_policy import CONTINUED
from agentgym.policies.vllm.wire import Answer
from agentgym.records import Sampling

if TYPE_CHECKING:
    from agentgym.policies.vllm.inprocess import InprocessVllmPolicy


class InprocessControl:
    """Pauses the engine of an `InprocessVllmPolicy` and changes its weights.

    Args:
        policy: Whose engine.
        is_frozen: Requests under way stay in the engine over a change; else it gives them back.
    """

    def __init__(self, policy: InprocessVllmPolicy, *, is_frozen: bool = False) -> None:
        self._policy = policy
        self._engine: Any = policy.engine
        self._mode = "keep" if is_frozen else "abort"

    @property
    def name(self) -> str:
        """Which engine, for messages."""
        return "the in-process engine"

    async def pause(self) -> None:
        """Stop sampling and return when nothing runs."""
        await self._engine.pause_generation(mode=self._mode, clear_cache=False)

    async def resume(self) -> None:
        """Go on sampling."""
        await self._engine.resume_generation()

    async def reset_cache(self) -> None:
        """Forget every kept key and value.

        Raises:
            PolicyError: If the engine could not.
        """
        if await self._engine.reset_prefix_cache(reset_running_requests=True) is not True:
            raise PolicyError("the engine could not reset its prefix cache")

    async def init_transfer(self, info: Mapping[str, Any]) -> None:
        """Meet the learner, before the first transfer."""
        base = vllm_module("vllm.distributed.weight_transfer.base")
        await self._engine.init_weight_transfer_engine(
            base.WeightTransferInitRequest(init_info=dict(info))
        )

    async def start_update(self) -> None:
        """Be ready for new tensors."""
        await self._engine.start_weight_update()

    async def update(self, info: Mapping[str, Any]) -> None:
        """Take new tensors."""
        base = vllm_module("vllm.distributed.weight_transfer.base")
        await self._engine.update_weights(base.WeightTransferUpdateRequest(update_info=dict(info)))

    async def finish_update(self) -> None:
        """Put the new tensors in use."""
        await self._engine.finish_weight_update()

    async def reload(self, folder: str) -> None:
        """Read all weights anew from a folder."""
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    async def copy_in(self, pickled: bytes) -> None:
        """Copy shared tensors over the engine's own, which have the same names and shapes.

        Args:
            pickled: Pairs of name and tensor, pickled so that they open as shared memory.
        """
        await self._engine.collective_rpc(copy_over, args=(pickled,))

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a low-rank adapter under a name.

        Raises:
            PolicyError: Always: merged weights are sent to an engine in this process.
        """
        raise PolicyError(f"adapters of an in-process engine are merged, not loaded (got {name!r})")

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter: there are none."""

    async def world_size(self) -> int:
        """Return how many processes hold the engine's weights."""
        return int(self._engine.vllm_config.parallel_config.world_size)

    async def probe(self) -> tuple[float, ...]:
        """Return the log-probabilities that the engine gives to the fixed text."""
        return await self._policy.probe()

    async def continued(self) -> Answer:
        """Return what the engine samples after the fixed text, with its log-probabilities."""
        sampling = Sampling(max_new_tokens=CONTINUED)
        return await self._policy.answer("", self._policy.probe_ids, sampling)


def copy_over(worker: Any, pickled: bytes) -> None:
    """Copy tensors over those of a worker's model. Runs in the engine's process.

    vLLM's own `reload_weights` copies with gradients on, which torch refuses (seen in 0.32).

    Args:
        worker: vLLM's worker.
        pickled: Pairs of name and tensor, as handles to shared memory.

    Raises:
        KeyError: If the model has no parameter of that name.
    """
    parameters: dict[str, torch.Tensor] = dict(worker.get_model().named_parameters())
    with torch.no_grad():
        for name, tensor in pickle.loads(pickled):
            parameters[name].copy_(tensor)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the memory is the learner's again when this returns


def vllm_module(module: str) -> Any:
    """Return a module of vLLM: by name, since it is installed where there is a GPU, if at all."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError("an engine in this process", extra="vllm") from error


__all__ = ["InprocessControl", "copy_over", "vllm_module"]
