"""A small HTTP server on asyncio, with faults on demand: `FaultyServer`. For tests."""

from __future__ import annotations

import abc
import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit


class FaultKind(StrEnum):
    """What goes wrong."""

    RESET = "reset"
    """The connection breaks before the answer."""
    CUT_SHORT = "cut_short"
    """The connection breaks after the work is done, in the middle of the answer."""
    HANG = "hang"
    """No answer, ever."""
    ERROR = "error"
    """Status 500."""
    DIE = "die"
    """The server ends, with all its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the next requests for a path."""

    kind: FaultKind
    path: str = "/v1/completions"
    """Path that it befalls."""
    skip: int = 0
    """Requests that pass before it."""
    count: int = 1
    """Requests that it befalls."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    """Faults that are left."""

    fault: Fault
    skip: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Mapping[str, Any]
    authorization: str


class _BrokenError(Exception):
    """Break the connection now."""


Handler = Callable[[Request], Awaitable[tuple[int, object]]]


class FaultyServer(abc.ABC):
    """A server on the loopback interface.

    Args:
        port: 0 takes a free one.
        key: What every path but /health asks for; None asks for nothing.
    """

    def __init__(self, port: int, *, key: str | None = None) -> None:
        self.port = port
        self._key = key
        self.calls: list[str] = []
        """Paths asked for, in order."""
        self.ended = asyncio.Event()
        """Set once a fault has ended the server."""
        self._faults: list[_Pending] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @abc.abstractmethod
    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        """Return what answers each method and path."""

    @abc.abstractmethod
    def reborn(self) -> None:
        """Be as a new process would be."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after `stop`, as a new process would."""
        self.reborn()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """End, with all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    def inject(self, fault: Fault) -> None:
        """Let something go wrong from now on."""
        self._faults.append(_Pending(fault=fault, skip=fault.skip, count=fault.count))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                try:
                    status, content = await self._answer(request)
                    is_cut = self._fault(request.path, {FaultKind.CUT_SHORT}) is not None
                    writer.write(_response(status, content)[: 40 if is_cut else None])
                    await writer.drain()
                    if is_cut:
                        raise _BrokenError
                except _BrokenError:
                    writer.transport.abort()
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Request) -> tuple[int, object]:
        self.calls.append(request.path)
        is_known = self._key is None or request.authorization == f"Bearer {self._key}"
        if not is_known and request.path != "/health":
            return 401, {"error": "Unauthorized"}
        kinds = {FaultKind.RESET, FaultKind.HANG, FaultKind.ERROR, FaultKind.DIE}
        fault = self._fault(request.path, kinds)
        if fault is FaultKind.RESET:
            raise _BrokenError
        if fault is FaultKind.HANG:
            await asyncio.Event().wait()
        if fault is FaultKind.ERROR:
            return 500, {"error": "EngineDeadError: injected"}
        if fault is FaultKind.DIE:
            await self.stop()
            self.ended.set()
            raise _BrokenError
        handler = self.handlers().get((request.method, request.path))
        if handler is None:
            return 404, {"detail": "Not Found"}
        return await handler(request)

    def _fault(self, path: str, kinds: set[FaultKind]) -> FaultKind | None:
        for pending in list(self._faults):
            if pending.fault.path != path or pending.fault.kind not in kinds:
                continue
            if pending.skip:
                pending.skip -= 1
                continue
            pending.count -= 1
            if pending.count <= 0:
                self._faults.remove(pending)
            return pending.fault.kind
        return None


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request of a connection, None at its end."""
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode().split(" ", 2)
    length, authorization = 0, ""
    while (header := (await reader.readline()).strip()) != b"":
        name, _, value = header.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        if name.lower() == b"authorization":
            authorization = value.strip().decode()
    content = await reader.readexactly(length) if length else b""
    parts = urlsplit(target)
    return Request(
        method=method,
        path=parts.path,
        params=dict(parse_qsl(parts.query)),
        body=json.loads(content) if content else {},
        authorization=authorization,
    )


def _response(status: int, content: object) -> bytes:
    is_text = isinstance(content, str)
    data = content.encode() if is_text else json.dumps(content).encode()
    data = b"" if content is None else data
    kind = "text/plain" if is_text else "application/json"
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


__all__ = ["Fault", "FaultKind", "FaultyServer", "Handler", "Request"]
