"""From stretches of text to ids: what the template wrote, what the world said, what was sampled.

Text of the world is not trusted: a token that steers never comes out of it. Everything else gets
exactly the ids that the tokenizer gives the whole text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from agentgym.errors import RenderError
from agentgym.records import Span, SpanKind
from agentgym.renderer.tokenizer import ChatTokenizer, Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a prompt: text that is yet to be encoded, or ids that are carried.

    Example:
        Piece(kind=SpanKind.OBSERVATION, text="1776")
        Piece(kind=SpanKind.TEXT, text="hello", ids=(1, 2))
    """

    kind: SpanKind
    """What the stretch is; `template` is the only kind whose text may give tokens that steer."""
    text: str
    """Its text."""
    ids: tuple[int, ...] | None = None
    """[time] ids that were sampled for it; None where the text is to be encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPieces:
    """Ids of a row of pieces, and what each of them is."""

    ids: tuple[int, ...]
    """[time] token ids."""
    spans: tuple[Span, ...]
    """[time] stretches of `ids`, in order and without gaps."""


class PieceEncoder:
    """Encodes pieces with one tokenizer.

    Args:
        tokenizer: Text to ids.
        control: Texts that must not become their token when the world says them.
    """

    def __init__(self, tokenizer: ChatTokenizer, *, control: frozenset[str]) -> None:
        self._tokenizer = tokenizer
        self._control_ids = {tokenizer.added_tokens[text] for text in control}
        longest_first = sorted(control, key=lambda text: (-len(text), text))
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode(self, pieces: Iterable[Piece]) -> EncodedPieces:
        """Return the ids of `pieces`; neighbouring texts are encoded together."""
        ids: list[int] = []
        kinds: list[SpanKind] = []
        for is_carried, run in groupby(pieces, key=lambda piece: piece.ids is not None):
            if is_carried:
                for piece in run:
                    ids += piece.ids or ()
                    kinds += [piece.kind] * len(piece.ids or ())
            else:
                texts = [piece for piece in run if piece.text]
                encoding = self._encode_texts(texts)
                ids += encoding.ids
                kinds += _kinds(texts, encoding.starts)
        return EncodedPieces(ids=tuple(ids), spans=spans_of(kinds))

    def encode_untrusted(self, text: str) -> Encoding:
        """Return the ids of `text`, none of which steers.

        Raises:
            RenderError: If the tokenizer cannot spell a control text in ordinary tokens.
        """
        encoding = self._tokenizer.encode(text, allow_special=False)
        if self._control_ids.isdisjoint(encoding.ids):
            return encoding
        # Tokens that are matched as a whole although they are not "special": cut each in two.
        cuts = [match.start() + 1 for match in self._control.finditer(text)]
        bounds = [0, *cuts, len(text)]
        encoding = _joined(
            (self._tokenizer.encode(text[start:stop], allow_special=False), start)
            for start, stop in pairwise(bounds)
        )
        steering = self._control_ids.intersection(encoding.ids)
        if steering:
            raise RenderError(f"text of the environment gives the control ids {sorted(steering)!r}")
        return encoding

    def _encode_texts(self, texts: Sequence[Piece]) -> Encoding:
        whole = "".join(piece.text for piece in texts)
        trusted: list[tuple[int, int]] = []
        position = 0
        for piece in texts:
            if piece.kind is SpanKind.TEMPLATE:
                trusted += [
                    (match.start() + position, match.end() + position)
                    for match in self._control.finditer(piece.text)
                ]
            position += len(piece.text)
        if {match.span() for match in self._control.finditer(whole)} == set(trusted):
            return self._tokenizer.encode(whole, allow_special=True)
        return self._encode_hostile(whole, trusted)

    def _encode_hostile(self, whole: str, trusted: Sequence[tuple[int, int]]) -> Encoding:
        """Encode each stretch between the template's own control tokens as plain text."""
        parts: list[tuple[Encoding, int]] = []
        position = 0
        for start, stop in (*trusted, (len(whole), len(whole))):
            parts.append((self.encode_untrusted(whole[position:start]), position))
            parts.append((self._tokenizer.encode(whole[start:stop], allow_special=True), start))
            position = stop
        return _joined(parts)


def spans_of(kinds: Sequence[SpanKind]) -> tuple[Span, ...]:
    """Return one span for each run of equal kinds."""
    spans: list[Span] = []
    position = 0
    for kind, run in groupby(kinds):
        length = len(list(run))
        spans.append(Span(kind=kind, start=position, stop=position + length))
        position += length
    return tuple(spans)


def cut_spans(spans: Sequence[Span], start: int) -> tuple[Span, ...]:
    """Return the spans from `start` on, counted from there."""
    return tuple(
        Span(kind=s.kind, start=max(s.start - start, 0), stop=s.stop - start, ref=s.ref)
        for s in spans
        if s.stop > start
    )


def _joined(parts: Iterable[tuple[Encoding, int]]) -> Encoding:
    ids: list[int] = []
    starts: list[int] = []
    for encoding, shift in parts:
        ids += encoding.ids
        starts += [start + shift for start in encoding.starts]
    return Encoding(ids=tuple(ids), starts=tuple(starts))


def _kinds(texts: Sequence[Piece], starts: Sequence[int]) -> list[SpanKind]:
    """Return the kind of each id: that of the piece in which its first character lies."""
    begins: list[int] = []
    position = 0
    for piece in texts:
        begins.append(position)
        position += len(piece.text)
    return [texts[bisect_right(begins, start) - 1].kind for start in starts]


__all__ = ["EncodedPieces", "Piece", "PieceEncoder", "cut_spans", "spans_of"]
