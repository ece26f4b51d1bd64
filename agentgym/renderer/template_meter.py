"""The work and memory that one rendering of a chat template may have.

In order: the bounds and their error, what a value weighs, the meter. A step is one turn of a loop,
one call, filter or operator, or 256 characters that one of them is given or makes: the work is
counted, not timed, so a template passes or fails on every machine alike.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, MappingView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import jinja2
from jinja2.utils import Namespace

MOST_STEPS = 1_000_000
"""Of one rendering, about two seconds; a conversation of 500 turns that a template looks through
once for each message takes 500,000."""
MOST_CHARS = 16_000_000
"""Of one text, and of all texts and entries of one list or mapping."""
_CHARS_PER_STEP = 256
_ENTRY_CHARS = 64
"""What an entry weighs beside its text."""


class TemplateBoundError(jinja2.TemplateError):
    """A template asks for more work or memory than a rendering may have."""


def weight(value: Any) -> int:
    """Return about how many characters a value has, all that it holds included.

    What two of its parts share is counted twice, as comparing and printing would meet it twice.
    Stops a little above `MOST_CHARS`.
    """
    total = 0
    waiting: list[Any] = [value]
    while waiting and total <= MOST_CHARS:
        one = waiting.pop()
        total += _ENTRY_CHARS
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, int):
            total += one.bit_length() // 4
        elif isinstance(one, dict):
            waiting += [*cast("dict[Any, Any]", one), *cast("dict[Any, Any]", one).values()]
        elif isinstance(one, list | tuple | set | frozenset | MappingView):
            waiting += cast("Iterable[Any]", one)
        elif isinstance(one, Namespace):
            waiting.append(object.__getattribute__(one, "_Namespace__attrs"))
    return total


class Meter:
    """What one rendering has left."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def spend(self, steps: int) -> None:
        """Pay for work."""
        self._left -= steps
        if self._left < 0:
            raise TemplateBoundError(f"it takes more than {MOST_STEPS:,} steps")

    def take(self, value: Any) -> None:
        """Pay for looking at a value."""
        chars = len(value) if type(value) is str else weight(value)
        if chars >= _CHARS_PER_STEP:
            self.fit(chars)
            self.spend(chars // _CHARS_PER_STEP)
        self._left -= 1

    def fit(self, chars: int) -> None:
        """Refuse a value of more characters than one may have."""
        if chars > MOST_CHARS:
            raise TemplateBoundError(f"it makes a value of more than {MOST_CHARS:,} characters")

    def made(self, value: Any) -> Any:
        """Pay for a result; of what is made bit by bit each part is paid for when it is made."""
        if type(value) is not str and isinstance(value, Iterator):
            return self._each(cast("Iterator[Any]", value))
        self.take(value)
        return value

    def _each(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.spend(1)
            yield value


METER: ContextVar[Meter] = ContextVar("meter of a template's rendering")
"""That of the rendering which is under way."""


@contextmanager
def metered() -> Generator[None]:
    """Count the work of a block of code from nothing."""
    token = METER.set(Meter())
    try:
        yield
    finally:
        METER.reset(token)


__all__ = ["METER", "MOST_CHARS", "MOST_STEPS", "Meter", "TemplateBoundError", "metered", "weight"]
