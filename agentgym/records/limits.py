"""Bounds of an episode. Zero is never "for ever": a bound is positive, or None for no bound."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may end an episode from outside, and what bounds one step of it.

    Example:
        Limits(max_turns=6, max_tokens=512, step_timeout_s=20.0)
    """

    max_turns: int | None = 16
    """Calls of the policy in one episode."""
    max_tokens: int | None = None
    """Sampled tokens in one episode, over all turns."""
    max_context_tokens: int | None = None
    """Prompt plus completion of one call; the model's own window where the policy knows it."""
    max_observation_chars: int | None = 16_384
    """Longer observations are shortened in the middle, with a notice, for the policy to read."""
    max_tool_calls: int | None = None
    """Executed tool calls in one episode."""
    max_seconds: float | None = None
    """Wall time of one episode, in seconds. A call of the policy or the environment that it cuts
    off is a failure of kind `timeout`: how fast those answer is not the agent's doing, so such an
    episode is never scored. One whose calls all came in time ends truncated."""
    step_timeout_s: float | None = 120.0
    """Wall time of one reset or step of the environment, in seconds."""
    generate_timeout_s: float | None = 600.0
    """Wall time of one call of the policy, in seconds."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"'{field.name}' must be > 0 or None for no bound (got {value!r})")

    def merged(self, other: Limits) -> Limits:
        """Return the tighter of the two bounds in every field."""
        pairs = {
            field.name: (getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
        }
        return Limits(
            **{
                name: min((v for v in pair if v is not None), default=None)
                for name, pair in pairs.items()
            }
        )


def shorten_middle(text: str, max_chars: int | None) -> str:
    """Return `text` within `max_chars`, head and tail kept, the cut named in between."""
    if max_chars is None or len(text) <= max_chars:
        return text
    notice = f"\n[... {len(text) - max_chars} characters left out ...]\n"
    keep = max(max_chars - len(notice), 0)
    head = keep // 2
    tail = keep - head
    return (text[:head] + notice + (text[-tail:] if tail else ""))[:max_chars]
