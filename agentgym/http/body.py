"""Reads the body of an answer within a bound, compressed or not: `read_body`, `room_for`."""

from __future__ import annotations

import zlib
from typing import Any

import httpx

from agentgym.errors import PolicyError

MIB = 1 << 20
_BYTES_PER_TOKEN = 512
"""More than an id with its text and log-probabilities takes in JSON: about 100 bytes, seen."""
_GZIP = 31
"""zlib's `wbits` for a gzip header and no other."""
ACCEPTED = "gzip"
"""What a server may compress with."""


class AnswerError(PolicyError):
    """A server answered with what no answer is: too much, or in no form that can be read."""


def room_for(tokens: int) -> int:
    """Return how many bytes an answer about so many tokens may have."""
    return MIB + tokens * _BYTES_PER_TOKEN


async def read_body(response: httpx.Response, most_bytes: int) -> bytes:
    """Return the body, decompressed; neither form of it is longer than the bound.

    Raises:
        AnswerError: If it is longer, or compressed in a way that was not asked for.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", ACCEPTED):
        raise AnswerError(f"compressed as {encoding[:40]!r}, and only {ACCEPTED!r} was asked for")
    inflate = zlib.decompressobj(_GZIP) if encoding == ACCEPTED else None
    parts: list[bytes] = []
    read = size = 0
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)  # what async transports give
    async for part in stream:
        read += len(part)
        if inflate is not None and read <= most_bytes:
            part = _inflated(inflate, part, most_bytes - size + 1)
        size += len(part)
        if max(read, size) > most_bytes:
            raise AnswerError(f"more than the {most_bytes} bytes that an answer may have")
        parts.append(part)
    if inflate is not None and read and not inflate.eof:
        raise AnswerError("compressed, and cut short")
    return b"".join(parts)


def _inflated(inflate: Any, part: bytes, most_bytes: int) -> bytes:
    try:
        return inflate.decompress(part, most_bytes)
    except zlib.error as error:
        raise AnswerError(f"compressed, and damaged ({error})") from error


__all__ = ["ACCEPTED", "MIB", "AnswerError", "read_body", "room_for"]
