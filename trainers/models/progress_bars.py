"""Keeps transformers' own progress bars and reports away from ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_progress_bars() -> Generator[None]:
    """Hide transformers' progress bars; what the caller had is put back."""
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


@contextmanager
def no_reports() -> Generator[None]:
    """Hide what transformers warns of; errors are shown, and what the caller had is put back."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
