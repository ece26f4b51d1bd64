"""What a renderer is: messages to ids and back, with the meaning of each stretch of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from agentgym.records import Span
from agentgym.records.messages import Message


class History(StrEnum):
    """How earlier turns enter the next prompt."""

    VERBATIM = "verbatim"
    """Ids are carried as sampled, whatever the template would drop: prompts only grow."""
    TEMPLATE = "template"
    """The template rewrites the conversation; where it changes a prefix, a new segment starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt relative to the previous turn: keep `prefix_length` of its full ids, then `ids`."""

    prefix_length: int
    """Ids of the previous turn (prompt and completion) that stay; 0 for the first turn."""
    ids: tuple[int, ...]
    """[time] ids after the prefix."""
    spans: tuple[Span, ...]
    """What each stretch of `ids` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTurn:
    """What the renderer must know of an earlier turn: its whole ids and its text."""

    prompt_ids: tuple[int, ...]
    """[time] the whole prompt of that turn, as sent."""
    sampled_ids: tuple[int, ...]
    """[time] ids that were sampled for it, the end token included where it was sampled."""
    completion: str
    """Text of the completion, without the end token."""
    observation: Message
    """What the environment answered."""


@runtime_checkable
class Renderer(Protocol):
    """Turns a conversation into ids through the model's own chat template."""

    @property
    def id(self) -> str:
        """Name which changes when tokenizer, template or history mode change."""
        ...

    @property
    def history(self) -> History:
        """How earlier turns enter the next prompt."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a completion."""
        ...

    @property
    def pad_id(self) -> int:
        """Id for padding; it may equal an end id, so masks never come from its value."""
        ...

    def first_prompt(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Return the first prompt: system message if any, observation, generation prompt."""
        ...

    def next_prompt(
        self, messages: Sequence[Message], turns: Sequence[RenderedTurn]
    ) -> RenderedPrompt:
        """Return the prompt after the last of `turns`, relative to that turn's full ids.

        Args:
            messages: The opening messages, as given to `first_prompt`.
            turns: Every turn so far, at least one.
        """
        ...

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Return ids of a completion known as text only (expert, API), with the end token."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Return ids of plain text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without end tokens."""
        ...

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return [time] character stretch of each id in `decode(ids)`."""
        ...


__all__ = ["History", "RenderedPrompt", "RenderedTurn", "Renderer"]
