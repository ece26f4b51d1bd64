"""What the games' task generators share: levels, splits, and which content is held out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentgym import seeding
from agentgym.errors import EnvError

SPLITS = ("train", "held_out")
HELD_OUT_SHARE = 4
"""One content in so many is held out."""


def is_held_out(game: str, *content: str | int) -> bool:
    """Return whether a task with this content belongs to the held-out split."""
    return seeding.derive("held out", game, *content) % HELD_OUT_SHARE == 0


def check_request(index: int, split: str) -> None:
    """Check a generator's arguments.

    Raises:
        EnvError: If the split is unknown or the index negative.
    """
    if split not in SPLITS:
        raise EnvError(f"'split' must be one of {SPLITS} (got {split!r})")
    if index < 0:
        raise EnvError(f"'index' must be >= 0 (got {index!r})")


def check_levels(levels: Sequence[int], known: Collection[int]) -> tuple[int, ...]:
    """Return the levels in order, each once.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    if not levels or set(levels) - set(known):
        raise EnvError(f"'levels' must be some of {tuple(known)} (got {tuple(levels)!r})")
    return tuple(sorted(set(levels)))
