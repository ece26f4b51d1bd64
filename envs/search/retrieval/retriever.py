"""What a retriever is, and what all of them share: hits, the tie rule, and words of a query.

Rules that hold for every one of them, and are tested on every one of them:

- a query is plain words; no sign in it has a meaning, so nothing that an agent writes is an error;
- only documents with a positive score are hits; a query without a known word has none, nor has one
  of articles, prepositions and the like alone;
- text of a script without spaces between words is found by any part of it;
- hits are ordered by score, descending, then by position, ascending; the first 3 of 5 are the
  first 3;
- a back end that fails raises `InfrastructureError`, which is never an empty list of hits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from agentgym.envs.search.retrieval.documents import Document
from agentgym.records.text import normalized

MAX_QUERY_WORDS = 64
"""Different words of one query that are searched for. A question has fewer; a flood costs time."""

_STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "for",
        "from",
        "in",
        "into",
        "is",
        "of",
        "on",
        "or",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "were",
        "with",
    ]
)
"""Words that nearly every English document holds. Not those that are also names: it, will, who."""

_WORD = re.compile(r"[^\W_]+")
# Thai to Myanmar, Hangul, Khmer, kana, Han: written without spaces, or with endings glued on.
_UNSPACED = (
    r"\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff"
    r"\u3400-\u9fff\uac00-\ud7ff\U00020000-\U000323af"
)
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_RUN = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_FEW_MARKS = 16
"""Marks that are removed one by one, which is faster; a flood of them is not."""
_NON_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One document that a query found.

    Example:
        Hit(position=3, score=2.5)
    """

    position: int
    """Position of the document in its corpus, from 0."""
    score: float
    """Relevance, greater than 0; comparable within one query only."""


@runtime_checkable
class Retriever(Protocol):
    """Finds documents by words. Read-only; one object serves any number of threads."""

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits in the order of the rules above.

        Raises:
            InfrastructureError: If the back end fails.
        """
        ...

    def close(self) -> None:
        """Free what is open. May be called more than once."""
        ...


class RetrieverBackend(Protocol):
    """How a kind of index is made and opened."""

    def build(self, folder: Path, documents: Iterable[Document]) -> None:
        """Write the index of documents into an empty folder."""
        ...

    def open(self, folder: Path) -> Retriever:
        """Return the retriever of an index.

        Raises:
            InfrastructureError: If the index cannot be opened.
        """
        ...


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents; all other signs part words.

    Of a script without spaces each sign is a word, and each two that follow each other.

    Example:
        words("Don't café C++ 20.04") is ["don", "t", "cafe", "c", "20", "04"],
        words("在上海") is ["在", "上", "海", "在上", "上海"].
    """
    return _words(_folded(text), in_query=False)


def plain_text(text: str) -> str:
    """Return what a back end with a tokenizer of its own indexes: the words that a query of the
    same text has. No two of them agree on case, marks and word breaks outside ASCII.

    Example:
        plain_text("Don't!") is "Don't!", and plain_text("Толстой, café") is "толстои cafe".
    """
    # ASCII text as it is: every tokenizer finds the same words there, and faster.
    if text.isascii():
        return text
    folded = _folded(text)
    return folded if folded.isascii() else " ".join(_words(folded, in_query=False))


def query_words(query: str) -> list[str]:
    """Return the different words of a query in order, at most `MAX_QUERY_WORDS`; none of a query
    that says nothing.

    Example:
        query_words("the cat") is ["the", "cat"], query_words("of the") is [],
        query_words("在上海") is ["在上", "上海"].
    """
    found = list(dict.fromkeys(_words(_folded(query), in_query=True)))[:MAX_QUERY_WORDS]
    return [] if _STOP_WORDS.issuperset(found) else found


def _words(folded: str, *, in_query: bool) -> list[str]:
    found = _WORD.findall(folded)
    if _HAS_UNSPACED.search(folded) is None:
        return found
    runs = (run for word in found for run in _RUN.findall(word))
    return [part for run in runs for part in _parts(run, in_query=in_query)]


def _parts(run: str, *, in_query: bool) -> list[str]:
    """Return the words of letters that stand together: a run of an unspaced script has one for each
    two of its signs, and in an index each sign too, so that one sign finds what holds it.
    """
    if _HAS_UNSPACED.match(run) is None:
        return [run]
    pairs = [run[start : start + 2] for start in range(len(run) - 1)]
    return pairs or [run] if in_query else [*run, *pairs]


def _folded(text: str) -> str:
    """Return a text in lower case without accents."""
    if not text.isascii():
        text = normalized(text, "NFKD")
        # Each different sign is looked at once: a text has few, and corpora are indexed by this.
        marks = list(filter(unicodedata.combining, set(_NON_ASCII.findall(text))))
        if len(marks) > _FEW_MARKS:
            text = text.translate(dict.fromkeys(map(ord, marks)))
        else:
            for mark in marks:
                text = text.replace(mark, "")
        # Put together again: a Korean syllable would else count as two or three letters.
        text = normalized(text, "NFC")
    return text.casefold()


class NoRetriever:
    """Finds nothing: what an agent reaches without the corpus."""

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return no hit."""
        return ()

    def close(self) -> None:
        """Do nothing."""
