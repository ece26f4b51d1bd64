"""`SpreadTransport`: many connections to one server, each in a pool of its own.

One pool of httpx looks at all of its connections and waiting requests whenever one of them changes,
which costs more than the requests themselves from some hundred on.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import AsyncIterator
from functools import cache

import httpx

KEEP_ALIVE_S = 3.0
"""Idle connections are closed after this long. Servers do it after 5 s, and a request that meets
such an end on its way is lost."""


class SpreadTransport(httpx.AsyncBaseTransport):
    """Sends each request on a free connection; when all are taken, requests wait their turn.

    Args:
        connections: Connections at most.
        proxy_for: Address for which the proxy that the environment names is used; None uses none.
    """

    def __init__(self, *, connections: int, proxy_for: str | None = None) -> None:
        self._proxy = _proxy(proxy_for) if proxy_for is not None else None
        self._slots = asyncio.Semaphore(connections)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response; the connection is free again when its body has been read."""
        await self._slots.acquire()
        # The one used last: its connection is the least likely to have been closed meanwhile.
        transport = self._idle.pop() if self._idle else self._make()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self.free(transport)
            raise
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # what async transports give
        body = _Body(self, transport, stream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=body,
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._all:
            await transport.aclose()

    def _make(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEP_ALIVE_S
        )
        transport = httpx.AsyncHTTPTransport(
            verify=_certificates(), limits=limits, proxy=self._proxy
        )
        self._all.append(transport)
        return transport

    def free(self, transport: httpx.AsyncHTTPTransport) -> None:
        """Take back a connection whose response has been read."""
        self._idle.append(transport)
        self._slots.release()


class _Body(httpx.AsyncByteStream):
    """A response's body that frees its connection once, when it is closed."""

    def __init__(
        self,
        owner: SpreadTransport,
        transport: httpx.AsyncHTTPTransport,
        stream: httpx.AsyncByteStream,
    ) -> None:
        self._owner = owner
        self._transport: httpx.AsyncHTTPTransport | None = transport
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            transport, self._transport = self._transport, None
            if transport is not None:
                self._owner.free(transport)


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for an address: HTTPS_PROXY, NO_PROXY, …"""
    address = httpx.URL(url)
    if urllib.request.proxy_bypass(address.host):
        return None
    proxies = urllib.request.getproxies()
    found = proxies.get(address.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


@cache
def _certificates() -> ssl.SSLContext:
    """Return one context for all: making one takes longer than a request."""
    return httpx.create_ssl_context()


__all__ = ["KEEP_ALIVE_S", "SpreadTransport"]
