"""A small HTTP server on loopback for the pages of environments, in the browser's own event loop.

The browser resolves every name under `.test` to it and nothing else to anywhere. A request without
the token of a live session is refused, so that nobody else on the machine can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

TOKEN_HEADER = "x-agentgym-session"
_MAX_BODY_BYTES = 1_000_000
_MAX_HEADER_BYTES = 65_536
_REASONS = {
    200: "OK",
    303: "See Other",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Example:
        Request(method="GET", host="shop.test", path="/search", query={"q": "lamp"}, session=shop)
    """

    method: str
    """`GET` or `POST`."""
    host: str
    """Name of the site."""
    path: str
    """Decoded path, from the slash on."""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters of the address; the last one of a name."""
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields of the body."""
    session: Any = None
    """State that the environment gave for this context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a site answers."""

    status: int = 200
    """HTTP status."""
    body: bytes = b""
    """Content."""
    content_type: str = "text/html; charset=utf-8"
    """MIME type."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further headers."""


Site = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request; runs in the event loop."""


def redirect(target: str) -> Response:
    """Return the answer to a form: go to `target`."""
    return Response(status=303, headers={"Location": target})


class SiteServer:
    """Serves sites by name to browser contexts by token."""

    def __init__(self) -> None:
        self.port = 0
        self._sites: dict[str, Site] = {}
        self._sessions: dict[str, Any] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=_MAX_HEADER_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for writer in tuple(self._connections):
            writer.transport.abort()
        # One turn of the loop, in which the connections' tasks see their end.
        await asyncio.sleep(0)
        self._server = None

    def mount(self, host: str, site: Site) -> None:
        """Serve `site` under a name; the same one again is no mistake."""
        self._sites[host] = site

    def open_session(self, state: Any) -> str:
        """Return the token of a new session, whose requests are handed `state`."""
        token = secrets.token_urlsafe(16)
        self._sessions[token] = state
        return token

    def bind(self, token: str, state: Any) -> None:
        """Hand `state` to the requests of a session from now on."""
        self._sessions[token] = state

    def close_session(self, token: str) -> None:
        """Refuse further requests with this token."""
        self._sessions.pop(token, None)

    @property
    def live_sessions(self) -> int:
        """Sessions that are open."""
        return len(self._sessions)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the browser went away, as it does when a context closes
        finally:
            self._connections.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readexactly(1)
        if not first.isalpha():
            return False  # no HTTP: a browser that was sent to https asks for a secret channel
        head = first + await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in lines[1:])
            if colon
        }
        length = headers.get("content-length", "0")
        size = int(length) if length.isdigit() else 0
        if size > _MAX_BODY_BYTES:
            writer.write(_written(Response(status=400)))
            return False
        body = await reader.readexactly(size)
        response = await self._answer(lines[0], headers, body)
        writer.write(_written(response))
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def _answer(self, line: str, headers: Mapping[str, str], body: bytes) -> Response:
        token = headers.get(TOKEN_HEADER, "")
        if token not in self._sessions:
            return Response(status=403, body=b"this server serves one browser only")
        site = self._sites.get(headers.get("host", "").partition(":")[0])
        parts = line.split(" ")
        if site is None or len(parts) != 3:
            return Response(status=404, body=b"no such page")
        method, target, _ = parts
        if method not in {"GET", "POST"}:
            return Response(status=405)
        url = urlsplit(target)
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        answer = site(
            Request(
                method=method,
                host=headers["host"].partition(":")[0],
                path=unquote(url.path),
                query=dict(parse_qsl(url.query, keep_blank_values=True)),
                form=form,
                session=self._sessions[token],
            )
        )
        return await answer if inspect.isawaitable(answer) else answer


def _written(response: Response) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        **response.headers,
    }
    reason = _REASONS.get(response.status, "Other")
    head = [f"HTTP/1.1 {response.status} {reason}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + response.body
