"""`StepClock`: where the wall time of a training step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Adds up the seconds of named stretches until they are taken.

    Stretches of a step follow one another, in whatever thread they run.

    Example:
        clock = StepClock()
        with clock.time("update_s"):
            learner.update(batch, is_single=True)
        clock.take()  # {"update_s": 0.21}
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a stretch, also where the block fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def take(self) -> dict[str, float]:
        """Return the seconds of each stretch since the last call, and begin anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds
