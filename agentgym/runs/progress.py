"""What long work tells whoever waits: the protocol `ProgressSink`, and a sink for each terminal.

The work calls `on_phase` when a phase begins, `on_step` after each step of it, `on_note` for what
a person should see, and `on_done` once. It knows nothing of screens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from agentgym.records.escape import plain

if TYPE_CHECKING:
    from agentgym.evaluation.result import EvaluationResult

SHOWN = (
    *("outcome", "success", "loss", "turns_per_episode", "tool_calls_per_episode"),
    *("truncated_share", "grad_norm", "learning_rate"),
)
"""Metrics that the line shows, in this order, as far as there is room."""
_MAX_SHOWN = 4
_BAR, _NARROW_BAR = 24, 10
_WIDE = 100
"""Columns of a terminal from which there is room for the long bar."""
_TIMES = 24
"""Columns of the two times, and of the gaps between all parts of the line."""
_SECONDS_BETWEEN_LINES = 10.0


@runtime_checkable
class ProgressSink(Protocol):
    """Takes news of long work. Implementations never raise and never wait."""

    def on_phase(self, name: str, total: int | None) -> None:
        """Take note that a phase begins.

        Args:
            name: Such as `warm start`, `train`, `evaluate`.
            total: Steps of it; None if not known.
        """
        ...

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Take note that a step of the phase is done."""
        ...

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Take note of an evaluation."""
        ...

    def on_note(self, text: str) -> None:
        """Take note of something that a person should see, such as a warning."""
        ...

    def on_done(self, summary: Mapping[str, str]) -> None:
        """Take note that all work is done, well or not."""
        ...


class Silent:
    """Says nothing."""

    def on_phase(self, name: str, total: int | None) -> None:
        """Say nothing."""

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Say nothing."""

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Say nothing."""

    def on_note(self, text: str) -> None:
        """Say nothing."""

    def on_done(self, summary: Mapping[str, str]) -> None:
        """Say nothing."""


class Lines:
    """Writes a line now and then: for logs and pipes.

    Args:
        stream: Where to.
        clock: Seconds; for tests.
        budget_s: What ends a phase before its last step, in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        budget_s: float | None = None,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._budget_s = budget_s
        self._warned: set[str] = set()
        self._name, self._total, self._done = "", None, 0
        self._began = self._last = clock()

    def on_phase(self, name: str, total: int | None) -> None:
        """Write the phase's name and length."""
        self._name, self._total, self._done = name, total, 0
        self._began = self._last = self._clock()
        self._write(f"{name}: {total} steps" if total is not None else name)

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Write a line if the last one is some time ago or the phase is done."""
        self._done += 1
        now = self._clock()
        if self._done != self._total and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        left = seconds_left(self._done, self._total, now - self._began, self._budget_s)
        of = f"/{self._total}" if self._total is not None else ""
        ends = f", {duration(left)} left" if left is not None else ""
        shown = shown_metrics(metrics)
        self._write(f"{self._name} {self._done}{of}{ends}" + (f": {shown}" if shown else ""))

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Write the headline and the warnings."""
        for line in evaluation_lines(result, self._warned):
            self._write(line)

    def on_note(self, text: str) -> None:
        """Write the note."""
        self._write(text)

    def on_done(self, summary: Mapping[str, str]) -> None:
        """Write the summary, a line each."""
        for key, value in summary.items():
            self._write(f"{key}: {value}")

    def _write(self, text: str) -> None:
        self._stream.write(plain(text) + "\n")
        self._stream.flush()


class Live:
    """A live line with a bar and the time left, for a terminal.

    Example:
        with Live(Console()) as progress:
            progress.on_phase("train", 100)
    """

    def __init__(self, console: Console, *, budget_s: float | None = None) -> None:
        self._console = console
        self._budget_s = budget_s
        self._began = time.monotonic()
        self._task: TaskID | None = None
        self._room = 0
        self._warned: set[str] = set()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR if console.width >= _WIDE else _NARROW_BAR),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            transient=False,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def on_phase(self, name: str, total: int | None) -> None:
        """Begin a new line; the last one stays."""
        if self._task is not None:
            self._bar.stop_task(self._task)
        self._began = time.monotonic()
        self._task = self._bar.add_task(plain(name), total=total, shown="")
        bar = _BAR if self._console.width >= _WIDE else _NARROW_BAR
        self._room = self._console.width - len(name) - bar - 2 * len(str(total)) - _TIMES

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Move the line on."""
        if self._task is None:
            return
        budget = ""
        if self._budget_s is not None:
            left = self._budget_s - (time.monotonic() - self._began)
            budget = f"budget {duration(max(left, 0.0))} "
        shown = budget + shown_metrics(metrics, room=self._room - len(budget))
        self._bar.update(self._task, advance=1, shown=shown)

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Print the headline and the warnings above the line."""
        for line in evaluation_lines(result, self._warned):
            self.on_note(line)

    def on_note(self, text: str) -> None:
        """Print the note above the line."""
        self._console.print(plain(text), markup=False, highlight=False)

    def on_done(self, summary: Mapping[str, str]) -> None:
        """End the line and print the summary."""
        self._bar.stop()
        for key, value in summary.items():
            self._console.print(plain(f"{key}: {value}"), markup=False, highlight=False)


def evaluation_lines(result: EvaluationResult, warned: set[str]) -> list[str]:
    """Return the headline of an evaluation and its warnings, those not said before, a line each.

    Args:
        result: What was found.
        warned: What was said before; what is said now is added.
    """
    failed = result.counts["failed"]
    line = (
        f"{result.name}: outcome {result.outcome}, solved {result.success} "
        f"on {result.counts['tasks']} tasks of {', '.join(result.suites)}"
    )
    new = [text for text in result.warnings if text not in warned]
    warned.update(new)
    headline = line + (f", {failed} attempts failed" if failed else "")
    return [headline, *(f"warning: {text}" for text in new)]


def seconds_left(
    done: int, total: int | None, elapsed: float, budget_s: float | None = None
) -> float | None:
    """Return the seconds that a phase still takes at its pace so far, None if nothing is known.

    Args:
        done: Steps taken.
        total: All steps; None if not known.
        elapsed: Seconds since the phase began.
        budget_s: Seconds after which it ends in any case.
    """
    found: list[float] = []
    if total is not None and done > 0:
        found.append(elapsed / done * max(total - done, 0))
    if budget_s is not None:
        found.append(max(budget_s - elapsed, 0.0))
    return min(found, default=None)


def duration(seconds: float) -> str:
    """Return a duration for a person, such as `45 s`, `3:05 min`, `2:10 h`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"


def shown_metrics(metrics: Mapping[str, float], *, room: int | None = None) -> str:
    """Return the metrics that matter most, as `name value` pairs, as many as `room` holds whole."""
    names = [name for name in SHOWN if name in metrics] or list(metrics)
    shown = ""
    for name in names[:_MAX_SHOWN]:
        longer = f"{shown}{'  ' if shown else ''}{name} {metrics[name]:.4g}"
        if room is not None and len(longer) > room:
            break
        shown = longer
    return shown
