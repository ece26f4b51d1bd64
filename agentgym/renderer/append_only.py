"""`check_append_only`: does a chat template leave earlier messages alone when a chat grows?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.records.messages import Message
from agentgym.renderer.chat import ChatRenderer, common_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOnly:
    """What the check found.

    Example:
        AppendOnly(holds=False, messages=2, first_difference=5)
    """

    holds: bool
    """True if every shorter conversation is a beginning of the whole one, id by id."""
    messages: int | None = None
    """Length of the first shorter conversation that is not; None if all are."""
    first_difference: int | None = None
    """Position of the first id that differs there; None if none does."""


def check_append_only(renderer: ChatRenderer, messages: Sequence[Message]) -> AppendOnly:
    """Return whether the template only appends, on one conversation.

    Args:
        renderer: The renderer of the template.
        messages: A conversation with two assistant messages or more; rendered without a
            generation prompt after each assistant message.
    """
    whole = _ids(renderer, messages)
    for count in range(1, len(messages)):
        if messages[count - 1].role != "assistant":
            continue
        shorter = _ids(renderer, messages[:count])
        shared = common_prefix(shorter, whole)
        if shared < len(shorter):
            return AppendOnly(holds=False, messages=count, first_difference=shared)
    return AppendOnly(holds=True)


def _ids(renderer: ChatRenderer, messages: Sequence[Message]) -> tuple[int, ...]:
    text = renderer.template.render(messages, add_generation_prompt=False)
    return renderer.tokenizer.encode(text, allow_special=True).ids


__all__ = ["AppendOnly", "check_append_only"]
