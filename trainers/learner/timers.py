"""`Stopwatch`: where wall time goes, by name."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds of named stretches.

    Stretches may follow one another in any thread; those of one name must not overlap.

    Example:
        watch = Stopwatch()
        with watch.time("update_s"):
            learner.update(batch, is_single=True)
        watch.take()  # {"update_s": 0.21}
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Generator[None]:
        """Add what the body takes to a stretch, also where it fails."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def take(self) -> dict[str, float]:
        """Return the seconds of each stretch since the last call, and begin anew."""
        seconds, self.seconds = self.seconds, {}
        return seconds


__all__ = ["Stopwatch"]
