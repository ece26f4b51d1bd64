"""`Server`: one vLLM server over HTTP, with typed errors, deadlines and bounded retries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import MIB, Call, HttpClient, Retries
from agentgym.policies.vllm.keys import key_for
from agentgym.policies.vllm.wire import reading

_MOST_BYTES = 4 * MIB
"""Of answers that are not about tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server says of itself at one moment."""

    running: float
    """Requests that are being sampled."""
    waiting: float
    """Requests in its queue."""
    cache_usage: float
    """Share of the memory for keys and values that is taken, in [0, 1]."""
    prefix_queries: float
    """Prompt ids looked up in the prefix cache since it started."""
    prefix_hits: float
    """Of these, ids found there."""


_BIRTH = "process_start_time_seconds"
_METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_usage": "vllm:kv_cache_usage_perc",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
}


class Server:
    """Speaks to one server. What may be repeated is repeated where the connection broke.

    Args:
        url: Address without a path, such as `http://127.0.0.1:8000`.
        connections: Requests under way at once; further ones wait here.
        retries: For requests that may be repeated.
        key: What it asks for; None looks for the key that `agentgym serve` left for the address.

    Raises:
        PolicyError: If `url` is no http or https address.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 512,
        retries: Retries | None = None,
        key: str | None = None,
    ) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        self._http = HttpClient(
            base,
            connections=connections,
            key=key if key is not None else key_for(base),
            retries=retries,
        )
        self.url = self._http.url

    @property
    def broken_connections(self) -> int:
        """Requests whose connection broke, those counted that were repeated in time."""
        return self._http.broken_connections

    def on_break(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever a connection breaks."""
        self._http.on_break = call

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        is_repeatable: bool,
        params: Mapping[str, str] | None = None,
        most_bytes: int = _MOST_BYTES,
    ) -> Any:
        """Return the JSON value that a POST gives, its text where that is none, None for nothing.

        Raises:
            ServerLostError: If the connection breaks, each time it is tried.
            ServerFaultError: If the server says that it cannot answer now.
            InfrastructureError: If there is no answer in time.
            PolicyError: If the server refuses the request, or its answer is none.
        """
        call = Call(
            method="POST",
            path=path,
            content=json.dumps(body).encode() if body is not None else b"",
            params=params or {},
            timeout_s=timeout_s,
            most_bytes=most_bytes,
        )
        return await self._value(call, is_repeatable=is_repeatable)

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """Return the JSON value, or the text, that a GET gives. Raises as `post` does."""
        call = Call(method="GET", path=path, timeout_s=timeout_s, most_bytes=_MOST_BYTES)
        return await self._value(call, is_repeatable=True)

    async def _value(self, call: Call, *, is_repeatable: bool) -> Any:
        reply = await self._http.send(call, is_repeatable=is_repeatable)
        if not reply.body:
            return None
        return reply.json() if "json" in reply.content_type else reply.text()

    async def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Return whether the server answers that it is well, now."""
        try:
            call = Call(method="GET", path="/health", timeout_s=timeout_s, most_bytes=MIB)
            await self._http.send(call, is_repeatable=False)
        except (InfrastructureError, PolicyError):
            return False
        return True

    async def load(self, *, timeout_s: float = 5.0) -> Load:
        """Return the server's own account of its load. Raises as `post` does."""
        text = str(await self.get("/metrics", timeout_s=timeout_s))
        return Load(**{name: _metric(text, metric) for name, metric in _METRICS.items()})

    async def birth(self, *, timeout_s: float = 5.0) -> float | None:
        """Return when the server's process began; None if it does not say."""
        try:
            text = str(await self.get("/metrics", timeout_s=timeout_s))
        except PolicyError:
            return None
        return _metric(text, _BIRTH) or None

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones, in whichever loop it runs."""
        await self._http.aclose()


def _metric(text: str, name: str) -> float:
    """Return the sum of a metric over all of its label sets; 0 if the server does not have it.

    Raises:
        PolicyError: If one of its values is no finite number.
    """
    with reading(f"the server's metric {name!r} is no number"):
        values = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((name + "{", name + " "))
        ]
        total = sum(values)
        if not math.isfinite(total):
            raise ValueError(total)
    return total


__all__ = ["Load", "Server"]
