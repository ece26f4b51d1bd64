"""What weights of an engine change through: `EngineControl`, and `HttpControl` for a server.

These are vLLM's own endpoints, called as they are. Which of them a change uses, and in what order,
is the business of who changes weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from agentgym.errors import PolicyError
from agentgym.policies.vllm.server import Server
from agentgym.policies.vllm.wire import Answer

_TIMEOUT_S = 300.0
"""Longest wait for one call; large models load from disk in between."""


@runtime_checkable
class EngineControl(Protocol):
    """Pauses one engine and changes its weights."""

    @property
    def name(self) -> str:
        """Which engine, for messages."""
        ...

    async def pause(self) -> None:
        """Stop sampling and return when nothing runs; what waits or comes is kept."""
        ...

    async def resume(self) -> None:
        """Go on sampling."""
        ...

    async def reset_cache(self) -> None:
        """Forget every kept key and value, those of requests under way too."""
        ...

    async def init_transfer(self, info: Mapping[str, Any]) -> None:
        """Meet the learner, before the first transfer."""
        ...

    async def start_update(self) -> None:
        """Be ready for new tensors."""
        ...

    async def update(self, info: Mapping[str, Any]) -> None:
        """Take new tensors."""
        ...

    async def finish_update(self) -> None:
        """Put the new tensors in use."""
        ...

    async def reload(self, folder: str) -> None:
        """Read all weights anew from a folder on the engine's machine."""
        ...

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a low-rank adapter under a name."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter."""
        ...

    async def world_size(self) -> int:
        """Return how many processes hold the engine's weights."""
        ...

    async def probe(self) -> tuple[float, ...]:
        """Return the log-probabilities that the engine gives to the fixed text."""
        ...

    async def continued(self) -> Answer:
        """Return what the engine samples after the fixed text, with its log-probabilities."""
        ...


class HttpControl:
    """The endpoints of a server started with `VLLM_SERVER_DEV_MODE=1`.

    Args:
        server: The server.
        probe: Scores the fixed text on it.
        continued: Lets it go on after the fixed text.
        is_frozen: Requests under way stay in the server over a change; else it gives them back.
    """

    def __init__(
        self,
        server: Server,
        *,
        probe: Callable[[], Awaitable[tuple[float, ...]]],
        continued: Callable[[], Awaitable[Answer]],
        is_frozen: bool = False,
    ) -> None:
        self.server = server
        self._probe = probe
        self._continued = continued
        self._mode = "keep" if is_frozen else "abort"

    @property
    def name(self) -> str:
        """Which engine, for messages."""
        return self.server.url

    async def pause(self) -> None:
        """Stop sampling and return when nothing runs."""
        # The cache is reset once, after the last tensor: until then it is not used.
        await self._post("/pause", params={"mode": self._mode, "clear_cache": "false"})

    async def resume(self) -> None:
        """Go on sampling."""
        await self._post("/resume")

    async def reset_cache(self) -> None:
        """Forget every kept key and value.

        Raises:
            PolicyError: If the server could not.
        """
        reply = await self._post("/reset_prefix_cache", params={"reset_running_requests": "true"})
        # Servers before 0.26 answer with nothing.
        if reply is not None and not reply.get("success", True):
            raise PolicyError(f"{self.name} could not reset its prefix cache (got {reply!r})")

    async def init_transfer(self, info: Mapping[str, Any]) -> None:
        """Meet the learner, before the first transfer."""
        await self._post_once("/init_weight_transfer_engine", {"init_info": dict(info)})

    async def start_update(self) -> None:
        """Be ready for new tensors."""
        await self._post_once("/start_weight_update", None)

    async def update(self, info: Mapping[str, Any]) -> None:
        """Take new tensors."""
        await self._post_once("/update_weights", {"update_info": dict(info)})

    async def finish_update(self) -> None:
        """Put the new tensors in use."""
        await self._post_once("/finish_weight_update", {})

    async def reload(self, folder: str) -> None:
        """Read all weights anew from a folder on the server's machine."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._post_once("/collective_rpc", body)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a low-rank adapter under a name."""
        body = {"lora_name": name, "lora_path": folder}
        await self._post_once("/v1/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter."""
        await self._post_once("/v1/unload_lora_adapter", {"lora_name": name})

    async def world_size(self) -> int:
        """Return how many processes hold the server's weights."""
        reply: Any = await self.server.get("/get_world_size", timeout_s=_TIMEOUT_S)
        return int(reply["world_size"])

    async def probe(self) -> tuple[float, ...]:
        """Return the log-probabilities that the server gives to the fixed text."""
        return await self._probe()

    async def continued(self) -> Answer:
        """Return what the server samples after the fixed text, with its log-probabilities."""
        return await self._continued()

    async def _post(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return await self.server.post(path, params=params, timeout_s=_TIMEOUT_S, is_repeatable=True)

    async def _post_once(self, path: str, body: Mapping[str, Any] | None) -> Any:
        # A second copy of these would be another step of the protocol.
        return await self.server.post(path, body, timeout_s=_TIMEOUT_S, is_repeatable=False)


__all__ = ["EngineControl", "HttpControl"]
