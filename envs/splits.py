"""What the task generators of all families share: their splits, and the checks of what is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

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
    given = _several(levels)
    # By type too: True is 1 to a set, and would become part of a task's id.
    are_known = all(type(level) is int and level in known for level in given)
    if not given or not are_known:
        raise EnvError(f"'levels' must be some of {tuple(known)} (got {levels!r})")
    return tuple(sorted({cast("int", level) for level in given}))


def check_int(name: str, value: object, *, low: int, high: int) -> int:
    """Return an argument of a constructor that is a whole number.

    Args:
        name: Its name, for the message.
        value: What was given.
        low: Least value accepted.
        high: Greatest value accepted.

    Raises:
        EnvError: If it is not an integer in [low, high]; True and False are none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise EnvError(f"{name!r} must be an integer in [{low}, {high}] (got {value!r})")
    return value


def _several(levels: object) -> tuple[object, ...]:
    """Return what stands in a list, a tuple or a set; anything else is one thing."""
    if isinstance(levels, Iterable) and not isinstance(levels, str | bytes | Mapping):
        return tuple(cast("Iterable[object]", levels))
    return (levels,)
