"""What the task generators of all families share: their splits, and the checks of what is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentgym.errors import EnvError

SPLITS = ("train", "held_out")


def check_request(index: int, split: str) -> None:
    """Check a generator's arguments.

    Raises:
        EnvError: If the split is unknown or the index negative.
    """
    if split not in SPLITS:
        raise EnvError(f"'split' must be one of {SPLITS} (got {split!r})")
    if index < 0:
        raise EnvError(f"'index' must be >= 0 (got {index!r})")


def check_levels(levels: Sequence[int] | int, known: Collection[int]) -> tuple[int, ...]:
    """Return the levels in order, each once. One level may stand without a list around it.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    given = (levels,) if isinstance(levels, int) else levels
    if isinstance(given, str) or not given or set(given) - set(known):
        got = given if isinstance(given, str) else tuple(given)
        raise EnvError(f"'levels' must be some of {tuple(known)} (got {got!r})")
    return tuple(sorted(set(given)))
