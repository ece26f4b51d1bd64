"""What weights of an engine change through: `EngineControl`, and `HttpControl` for a server.

These are vLLM's own endpoints, called as they are. Which of them a change uses, and in what order,
is the business of who changes weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from agentgym.errors import PolicyError
from agentgym.policies.vllm.server import Server
from agentgym.policies.vllm.wire import Answer, reading

_TIMEOUT_S = 300.0
"""Longest wait for one call; large models load from disk in between."""
_SHOWN_CHARACTERS = 200
_YES: Mapping[str, Mapping[str, object]] = {
    "/pause": {"status": "paused"},
    "/resume": {"status": "resumed"},
    "/reset_prefix_cache": {"success": True},
    "/init_weight_transfer_engine": {"message": "Weight transfer initialized"},
    "/start_weight_update": {"message": "Weight update started"},
    "/update_weights": {"message": "Weights updated"},
    "/finish_weight_update": {"message": "Weight update finished"},
}
"""path -> what vLLM says when it has done it. Any other answer, or none, means that it may not
have: weights or a cache that nobody knows are worse than a run that ends."""
_ADAPTER_YES = "Success"
"""Beginning of the text that answers a call about an adapter."""


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
        await self._post("/pause", {"mode": self._mode, "clear_cache": "false"})

    async def resume(self) -> None:
        """Go on sampling."""
        await self._post("/resume")

    async def reset_cache(self) -> None:
        """Forget every kept key and value."""
        await self._post("/reset_prefix_cache", {"reset_running_requests": "true"})

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
        path = "/collective_rpc"
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        reply = await self._sent_once(path, body)
        # One entry for each process that holds weights, None where it has read them.
        said = cast("dict[str, Any]", reply) if isinstance(reply, dict) else {}
        results = said.get("results")
        done = cast("list[object]", results) if isinstance(results, list) else []
        if not done or any(result is not None for result in done):
            raise self._unknown(path, reply)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a low-rank adapter under a name."""
        await self._tell_adapter("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter."""
        await self._tell_adapter("/v1/unload_lora_adapter", {"lora_name": name})

    async def world_size(self) -> int:
        """Return how many processes hold the server's weights."""
        path = "/get_world_size"
        reply: Any = await self.server.get(path, timeout_s=_TIMEOUT_S)
        with reading(f"{self.name}{path} names no number of processes"):
            size = reply["world_size"]
            if type(size) is not int or size < 1:
                raise ValueError(size)
        return size

    async def probe(self) -> tuple[float, ...]:
        """Return the log-probabilities that the server gives to the fixed text."""
        return await self._probe()

    async def continued(self) -> Answer:
        """Return what the server samples after the fixed text, with its log-probabilities."""
        return await self._continued()

    async def _post(self, path: str, params: Mapping[str, str] | None = None) -> None:
        reply = await self.server.post(
            path, params=params, timeout_s=_TIMEOUT_S, is_repeatable=True
        )
        self._expect_yes(path, reply)

    async def _post_once(self, path: str, body: Mapping[str, Any] | None) -> None:
        self._expect_yes(path, await self._sent_once(path, body))

    async def _tell_adapter(self, path: str, body: Mapping[str, Any]) -> None:
        reply = await self._sent_once(path, body)
        if not (isinstance(reply, str) and reply.startswith(_ADAPTER_YES)):
            raise self._unknown(path, reply)

    async def _sent_once(self, path: str, body: Mapping[str, Any] | None) -> Any:
        # A second copy of these would be another step of the protocol.
        return await self.server.post(path, body, timeout_s=_TIMEOUT_S, is_repeatable=False)

    def _expect_yes(self, path: str, reply: Any) -> None:
        wanted = _YES[path]
        said = cast("dict[str, object]", reply) if isinstance(reply, dict) else {}
        # Not ==: 1 is not true.
        if any(
            said.get(name) != word or type(said[name]) is not type(word)
            for name, word in wanted.items()
        ):
            raise self._unknown(path, reply)

    def _unknown(self, path: str, reply: Any) -> PolicyError:
        shown = f"{reply!r}"[:_SHOWN_CHARACTERS]
        wanted = _YES.get(path)
        need = f", wanted {dict(wanted)!r}" if wanted is not None else ""
        return PolicyError(
            f"{self.name}{path} does not say that it is done (got {shown}{need}); vLLM 0.26 and "
            "later say it"
        )


__all__ = ["EngineControl", "HttpControl"]
