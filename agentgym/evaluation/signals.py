"""Warnings that a reader of a mean must see: everything cut off, nothing to learn from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

# Above this share of cut-off episodes their limit, not the agent, decides the mean.
_MOST_CUT_OFF = 0.5
_MOST_FAILED = 0.05


def length_warning(cut_off: Sequence[bool], outcomes: Sequence[float]) -> str | None:
    """Return a warning where the length limit decides the outcome, None otherwise.

    Args:
        cut_off: [episode] whether a completion of it was cut off at its length limit.
        outcomes: [episode] its outcome.
    """
    if not cut_off or not outcomes:
        return None
    rate = sum(cut_off) / len(cut_off)
    deviation = statistics.pstdev(outcomes)
    if rate < _MOST_CUT_OFF:
        return None
    text = f"{rate:.0%} of the episodes were cut off at the length limit"
    if deviation > 0:
        return f"{text}; raise 'max_new_tokens'"
    return (
        f"{text} and the outcomes do not vary (standard deviation 0): there is nothing to learn. "
        "Look at some (`agentgym view`): 'max_new_tokens' is too small where they make sense and "
        "are cut. A policy that never ends a turn has to learn that first, from a warm start, or "
        "is played under another prompt than it was trained on"
    )


def failure_warning(failed: int, attempts: int) -> str | None:
    """Return a warning where failures that are not the agent's change the mean, or None."""
    if attempts == 0 or failed / attempts <= _MOST_FAILED:
        return None
    return (
        f"{failed} of {attempts} attempts failed for a reason that is not the agent's; they count "
        "as 0 in the headline"
    )
