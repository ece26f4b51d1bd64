"""`Server`: one vLLM server over HTTP, with typed errors, deadlines and bounded retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.vllm.transport import SpreadTransport

_SHOWN_CHARACTERS = 300
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed later, on this server or another."""
_BROKEN = (
    httpx.ConnectError,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
)
"""What a connection that breaks raises. A deadline that passes is not among them."""


_HEADERS = {"Content-Type": "application/json"}


class ServerLostError(InfrastructureError):
    """A connection broke before the answer was whole: the server may be gone, or the network."""


class ServerFaultError(InfrastructureError):
    """The server answered that it cannot answer now, such as with status 500."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How a request whose connection broke is sent again."""

    attempts: int = 4
    """Tries of one request, the first included."""
    first_wait_s: float = 0.1
    """Pause after the first broken connection; doubled with each further one."""
    longest_wait_s: float = 2.0
    """Pause at most."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One HTTP request."""

    method: str
    path: str
    content: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float


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
        client: HTTP client to use in place of one of its own; it is not closed.

    Raises:
        PolicyError: If `url` is no http or https address.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 512,
        retries: Retries | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise PolicyError(f"a server's address begins with http:// or https:// (got {url!r})")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.broken_connections = 0
        """Requests whose connection broke, those counted that were repeated in time."""
        self.on_break: Callable[[], None] | None = None
        self._retries = retries if retries is not None else Retries()
        self._connections = connections
        self._given = client
        self._own: httpx.AsyncClient | None = None

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        is_repeatable: bool,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON value that a POST gives, None for an empty reply.

        Raises:
            ServerLostError: If the connection breaks, each time it is tried.
            ServerFaultError: If the server says that it cannot answer now.
            InfrastructureError: If there is no answer in time.
            PolicyError: If the server refuses the request.
        """
        call = _Call(
            method="POST",
            path=path,
            content=json.dumps(body).encode() if body is not None else b"",
            params=params or {},
            timeout_s=timeout_s,
        )
        return await self._send(call, self._retries.attempts if is_repeatable else 1)

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """Return the JSON value, or the text, that a GET gives. Raises as `post` does."""
        call = _Call(method="GET", path=path, timeout_s=timeout_s)
        return await self._send(call, self._retries.attempts)

    async def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Return whether the server answers that it is well, now."""
        try:
            await self._send(_Call(method="GET", path="/health", timeout_s=timeout_s), 1)
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
        """Close the connections, unless the client was passed in. A later request opens new ones,
        in whichever loop it runs.
        """
        own, self._own = self._own, None
        if own is not None:
            await own.aclose()

    def _client(self) -> httpx.AsyncClient:
        if self._given is not None:
            return self._given
        if self._own is None:
            transport = SpreadTransport(connections=self._connections)
            self._own = httpx.AsyncClient(transport=transport, timeout=None, trust_env=False)
        return self._own

    async def _send(self, call: _Call, attempts: int) -> Any:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_BROKEN),
            stop=stop_after_attempt(attempts),
            wait=wait_exponential(
                multiplier=self._retries.first_wait_s, max=self._retries.longest_wait_s
            )
            + wait_random(0, self._retries.first_wait_s),
            reraise=True,
        )
        async with self._typed(call):
            async for attempt in retrying:
                with attempt:
                    return _value(await self._once(call), self.url + call.path)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: _Call) -> httpx.Response:
        try:
            return await self._client().request(
                call.method,
                self.url + call.path,
                content=call.content or None,
                params=call.params,
                headers=_HEADERS,
            )
        except _BROKEN:
            self.broken_connections += 1
            if self.on_break is not None:
                self.on_break()
            raise

    @asynccontextmanager
    async def _typed(self, call: _Call) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(call.timeout_s):
                yield
        except TimeoutError as error:
            raise InfrastructureError(
                f"{self.url}{call.path} gave no answer within {call.timeout_s:g} s"
            ) from error
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ServerLostError(f"{self.url} cannot be reached: {reason}") from error


def _value(response: httpx.Response, address: str) -> Any:
    if response.is_error:
        text = " ".join(response.text[:_SHOWN_CHARACTERS].split())
        kind = ServerFaultError if response.status_code in _TRANSIENT else PolicyError
        raise kind(f"{address} answered {response.status_code}: {text}")
    if not response.content:
        return None
    if "json" not in response.headers.get("content-type", ""):
        return response.text
    try:
        return response.json()
    except ValueError as error:
        raise InfrastructureError(f"{address} answered with broken JSON") from error


def _metric(text: str, name: str) -> float:
    """Return the sum of a metric over all of its label sets; 0 if the server does not have it."""
    values = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " "))
    ]
    return sum(values)


__all__ = ["Load", "Retries", "Server", "ServerFaultError", "ServerLostError"]
