"""What a renderer needs of a tokenizer: `Encoding` and the `ChatTokenizer` protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgym.errors import RenderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Ids of a text, with where each begins.

    Example:
        Encoding(ids=(3, 4), starts=(0, 5))  # "hello", then a line break
    """

    ids: tuple[int, ...]
    """[time] token ids."""
    starts: tuple[int, ...]
    """[time] character of the text at which each id begins; never decreasing."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.starts):
            raise RenderError(
                f"'starts' must have one entry an id ({len(self.ids)}) (got {len(self.starts)})"
            )


@runtime_checkable
class ChatTokenizer(Protocol):
    """A tokenizer as renderers see it. Nothing here adds a token that the text does not hold."""

    @property
    def id(self) -> str:
        """Name which changes when the vocabulary changes."""
        ...

    @property
    def template_names(self) -> Mapping[str, str]:
        """Text of `bos_token`, `eos_token` and the like, as chat templates name them."""
        ...

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Text to id of every token that is matched as a whole, special or not."""
        ...

    @property
    def special_tokens(self) -> frozenset[str]:
        """Text of those that steer: they must never come out of untrusted text."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a completion, as the model's own files say."""
        ...

    @property
    def pad_id(self) -> int:
        """Id for padding; it may equal an end id."""
        ...

    def encode(self, text: str, *, allow_special: bool) -> Encoding:
        """Return the ids of `text`; without `allow_special` special tokens are ordinary text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        ...

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return [time] character stretch of each id in `decode(ids)`."""
        ...


__all__ = ["ChatTokenizer", "Encoding"]
