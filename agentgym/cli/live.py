"""The progress of long work on this terminal, or as lines in a log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Generator

from agentgym.cli.output import error_console
from agentgym.runs.progress import Lines, Live, ProgressSink, Silent


@contextlib.contextmanager
def progress_sink(
    *, is_quiet: bool = False, budget_s: float | None = None
) -> Generator[ProgressSink]:
    """Give a sink that fits standard error: a live line on a terminal, lines now and then else.

    Warnings that the work logs are shown too. Of several processes only the first one speaks.
    """
    with contextlib.ExitStack() as stack:
        sink: ProgressSink
        if is_quiet or int(os.environ.get("RANK", "0")) > 0:
            sink = Silent()
        elif error_console().is_terminal:
            sink = stack.enter_context(Live(error_console(), budget_s=budget_s))
        else:
            sink = Lines(sys.stderr, budget_s=budget_s)
        stack.enter_context(_warnings_to(sink))
        stack.enter_context(warnings.catch_warnings())
        # A checkpoint of one process is what is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield sink


class _ToSink(logging.Handler):
    """Shows warnings of the work above the progress line."""

    def __init__(self, sink: ProgressSink) -> None:
        super().__init__(logging.WARNING)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._sink.on_note(f"{record.levelname.lower()}: {record.getMessage()}")


@contextlib.contextmanager
def _warnings_to(sink: ProgressSink) -> Generator[None]:
    handler, logger = _ToSink(sink), logging.getLogger("agentgym")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
