"""A tokenizer small enough to work out by hand, for tests of renderers and environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.renderer.tokenizer import Encoding

_FIRST_CHARACTER_ID = 256
"""Characters without an id of their own have this plus their code point."""

_VOCABULARY = {"<B>": 0, "he": 1, "llo": 2, "hello": 3, "\n": 4, "<S>": 8, "<E>": 9, "<R>": 10}
_SPECIAL = frozenset({"<B>", "<S>", "<E>", "<R>"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyTokenizer:
    """Greedy longest match over a few pieces, and single characters for all else.

    Example:
        ToyTokenizer().encode("hello", allow_special=True).ids == (3,)
        ToyTokenizer().decode((1, 2)) == "hello"  # encoding is not the inverse of decoding
    """

    vocabulary: Mapping[str, int] = field(default_factory=lambda: dict(_VOCABULARY))
    """Piece to id."""
    special_tokens: frozenset[str] = _SPECIAL
    """Pieces that steer."""
    whole_tokens: frozenset[str] = frozenset()
    """Further pieces that are matched as a whole, and do not steer."""
    end_ids: frozenset[int] = frozenset({9})
    """Ids that end a completion."""
    pad_id: int = 9
    """Padding; equal to the end id on purpose, as in many models."""
    template_names: Mapping[str, str] = field(
        default_factory=lambda: {"bos_token": "<B>", "eos_token": "<E>", "pad_token": "<E>"}
    )
    """What templates call these pieces."""
    id: str = "toy"
    """Name."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Text to id of the whole pieces."""
        whole = self.special_tokens | self.whole_tokens
        return {text: token for text, token in self.vocabulary.items() if text in whole}

    def encode(self, text: str, *, allow_special: bool) -> Encoding:
        """Return ids by greedy longest match, special pieces first."""
        pieces = sorted(self.vocabulary, key=len, reverse=True)
        if not allow_special:
            pieces = [piece for piece in pieces if piece not in self.special_tokens]
        ids: list[int] = []
        starts: list[int] = []
        position = 0
        while position < len(text):
            piece = next((p for p in pieces if text.startswith(p, position)), text[position])
            ids.append(self.vocabulary.get(piece, _FIRST_CHARACTER_ID + ord(piece[0])))
            starts.append(position)
            position += len(piece)
        return Encoding(ids=tuple(ids), starts=tuple(starts))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return "".join(self._pieces(ids))

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return [time] character stretch of each id."""
        stretches: list[tuple[int, int]] = []
        position = 0
        for piece in self._pieces(ids):
            stretches.append((position, position + len(piece)))
            position += len(piece)
        return tuple(stretches)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        texts = {token: piece for piece, token in self.vocabulary.items()}
        return [texts[i] if i in texts else chr(i - _FIRST_CHARACTER_ID) for i in ids]


__all__ = ["ToyTokenizer"]
