"""One message of a conversation, as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, as text.

    Example:
        Message(role="user", content="37*48")
    """

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    """Its text, verbatim."""
