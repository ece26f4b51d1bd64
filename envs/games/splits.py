"""Which content of the games is held out."""

from __future__ import annotations

from agentgym import seeding

HELD_OUT_SHARE = 4
"""One content in so many is held out."""


def is_held_out(game: str, *content: str | int) -> bool:
    """Return whether a task with this content belongs to the held-out split."""
    return seeding.derive("held out", game, *content) % HELD_OUT_SHARE == 0
