"""`HttpClient`: one server, spoken to by all clients of this package, and trusted by none.

A call has one time limit from the first try to the last byte, and its answer a bound on its bytes.
Whatever goes wrong is one of four types: `ServerLostError` (the connection), `ServerFaultError` (it
cannot answer now), `InfrastructureError` (no answer in time), `PolicyError` (it refuses, or what it
says is no answer). The key that is sent is taken out of all that comes back.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http.body import ACCEPTED, MIB, AnswerError, read_body
from agentgym.http.spread import SpreadTransport
from agentgym.records.escape import plain
from agentgym.redaction import REDACTED, redact, remember

_SHOWN_CHARACTERS = 300
_READ_CHARACTERS = 4_096
"""Characters of an answer that are looked at for a message."""
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed later, on this server or another."""
_BROKEN = (
    httpx.ConnectError,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
)
"""What a connection that breaks raises. A deadline that passes is not among them."""


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
class Call:
    """One HTTP request."""

    method: str
    """GET or POST."""
    path: str
    """What follows the server's address."""
    content: bytes = b""
    """The body."""
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    """What follows the path."""
    timeout_s: float
    """Longest time until the last byte of the answer, further tries included."""
    most_bytes: int = 4 * MIB
    """Most bytes that the answer's body may have, as sent and decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that says yes: its status is one of 200 to 299."""

    address: str
    """Whose it is, for messages."""
    content_type: str
    """As the server says."""
    body: bytes
    """Decompressed."""

    def json(self) -> Any:
        """Return the value in the body, which may be any.

        Raises:
            AnswerError: If it is no JSON. NaN and infinities are none.
        """
        try:
            return json.loads(self.body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            shown = excerpt(self.text())
            raise AnswerError(f"{self.address} answered without JSON: {shown}") from error

    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8", "replace")


class HttpClient:
    """Speaks to one server.

    Args:
        url: Address, without the paths of calls.
        connections: Requests under way at once; further ones wait here.
        key: Sent as a bearer token; None sends none.
        retries: For requests that may be repeated.
        transport: What carries requests in place of connections of its own; it is not closed.
        uses_proxy: Go through the proxy that the environment names.

    Raises:
        PolicyError: If `url` is no http or https address, or the key cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 512,
        key: str | None = None,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        uses_proxy: bool = False,
    ) -> None:
        self.url = _checked_address(url)
        remember({"base_url": url, "api_key": key})
        self.retries = retries if retries is not None else Retries()
        self.broken_connections = 0
        """Requests whose connection broke, those counted that were repeated in time."""
        self.on_break: Callable[[], None] | None = None
        self._key = _checked_key(key)
        self._connections = connections
        self._uses_proxy = uses_proxy
        self._given = transport
        self._own: SpreadTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._urls: dict[str, httpx.URL] = {}
        self._headers = {
            "Accept": "*/*",
            "Accept-Encoding": ACCEPTED,
            "Content-Type": "application/json",
            "User-Agent": "agentgym",
        }
        if self._key:
            self._headers["Authorization"] = f"Bearer {self._key}"

    async def send(self, call: Call, *, is_repeatable: bool) -> Reply:
        """Return a server's answer to a call.

        Raises:
            ServerLostError: If the connection breaks, each time it is tried.
            ServerFaultError: If the server says that it cannot answer now.
            InfrastructureError: If there is no whole answer in time.
            PolicyError: If it refuses, or its answer is none.
        """
        address = self.url + call.path
        try:
            async with asyncio.timeout(call.timeout_s):
                return await self._tried(call, self.retries.attempts if is_repeatable else 1)
        except TimeoutError as error:
            raise InfrastructureError(
                f"{address} gave no answer within {call.timeout_s:g} s"
            ) from error
        except AnswerError as error:
            raise AnswerError(f"{address} answered with a body that is {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = self.hide(plain(str(error) or type(error).__name__))
            raise ServerLostError(f"{self.url} cannot be reached: {reason}") from error

    async def aclose(self) -> None:
        """Close the connections, unless they were passed in. A later request opens new ones, in
        whichever loop it runs.
        """
        own, self._own = self._own, None
        if own is not None:
            await own.aclose()

    def hide(self, text: str) -> str:
        """Return `text` without the key."""
        return text.replace(self._key, REDACTED) if self._key else text

    async def _tried(self, call: Call, attempts: int) -> Reply:
        wait = self.retries.first_wait_s
        for left in reversed(range(attempts)):
            try:
                return await self._once(call)
            except _BROKEN:
                self.broken_connections += 1
                if self.on_break is not None:
                    self.on_break()
                if not left:
                    raise
            # A random part: those that broke together do not come back together.
            await asyncio.sleep(wait * random.uniform(1, 2))
            wait = min(2 * wait, self.retries.longest_wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: Call) -> Reply:
        request = httpx.Request(
            call.method,
            self._url(call.path),
            content=call.content or None,
            params=dict(call.params) or None,
            headers=self._headers,
        )
        # Not through a client of httpx: cookies and redirects are nothing that a server may ask for
        # here, and cost more than the request.
        response = await self._transport().handle_async_request(request)
        try:
            body = await read_body(response, call.most_bytes)
        finally:
            await response.aclose()
        if self._key:
            body = body.replace(self._key.encode(), REDACTED.encode())
        reply = Reply(
            address=self.url + call.path,
            content_type=response.headers.get("content-type", ""),
            body=body,
        )
        if not response.is_success:
            kind = ServerFaultError if response.status_code in _TRANSIENT else PolicyError
            shown = excerpt(reply.text())
            raise kind(f"{reply.address} answered {response.status_code}: {shown}")
        return reply

    def _transport(self) -> httpx.AsyncBaseTransport:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        # Connections belong to the loop that opened them.
        if self._own is None or self._loop is not loop:
            self._own = SpreadTransport(
                connections=self._connections, proxy_for=self.url if self._uses_proxy else None
            )
            self._loop = loop
        return self._own

    def _url(self, path: str) -> httpx.URL:
        if path not in self._urls:
            self._urls[path] = httpx.URL(self.url + path)
        return self._urls[path]


def _checked_address(url: str) -> str:
    """Return a server's address, without a slash at its end.

    Raises:
        PolicyError: If it is no http or https address with a host.
    """
    shown = redact(url)
    if not url.startswith(("http://", "https://")):
        raise PolicyError(f"a server's address must begin with http:// or https:// (got {shown!r})")
    try:
        host = httpx.URL(url).host and urlsplit(url).hostname
    except (httpx.InvalidURL, ValueError) as error:
        raise PolicyError(f"this is no address of a server: {shown!r} ({error})") from error
    if not host or not url.isprintable() or " " in url:
        raise PolicyError(f"a server's address must name a host (got {shown!r})")
    return url.rstrip("/")


def excerpt(text: str) -> str:
    """Return the beginning of what a server said on one line, harmless for a terminal."""
    return plain(" ".join(text[:_READ_CHARACTERS].split()))[:_SHOWN_CHARACTERS]


def _checked_key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise PolicyError(
            f"a server's key must be printable ASCII without spaces (got {len(key)} characters, "
            "which are not shown)"
        )
    return key or None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


__all__ = [
    "AnswerError",
    "Call",
    "HttpClient",
    "Reply",
    "Retries",
    "ServerFaultError",
    "ServerLostError",
    "excerpt",
]
