"""HTTP to servers that are not trusted: `HttpClient`, its typed errors, and `SpreadTransport`."""

from agentgym.http.body import MIB, room_for
from agentgym.http.client import (
    AnswerError,
    Call,
    HttpClient,
    Reply,
    Retries,
    ServerFaultError,
    ServerLostError,
    excerpt,
)
from agentgym.http.spread import SpreadTransport

__all__ = [
    "MIB",
    "AnswerError",
    "Call",
    "HttpClient",
    "Reply",
    "Retries",
    "ServerFaultError",
    "ServerLostError",
    "SpreadTransport",
    "excerpt",
    "room_for",
]
