"""What a retriever is, and what all of them share: hits, the tie rule, and words of a query.

Rules that hold for every one of them, and are tested on every one of them:

- a query is plain words; no sign in it has a meaning, so nothing that an agent writes is an error;
- only documents with a positive score are hits; a query without a known word has none;
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

from agentgym.envs.search.documents import Document

MAX_QUERY_WORDS = 64
"""Different words of one query that are searched for. A question has fewer; a flood costs time."""

_WORD = re.compile(r"[^\W_]+")
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

    Example:
        words("Don't café C++ 20.04") is ["don", "t", "cafe", "c", "20", "04"].
    """
    return _WORD.findall(_folded(text))


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
    return folded if folded.isascii() else " ".join(_WORD.findall(folded))


def _folded(text: str) -> str:
    """Return a text in lower case without accents."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        # Each different sign is looked at once: a text has few, and corpora are indexed by this.
        for mark in filter(unicodedata.combining, set(_NON_ASCII.findall(text))):
            text = text.replace(mark, "")
        # Put together again: a Korean syllable would else count as two or three letters.
        text = unicodedata.normalize("NFC", text)
    return text.casefold()


def query_words(query: str) -> list[str]:
    """Return the different words of a query in order, at most `MAX_QUERY_WORDS`."""
    return list(dict.fromkeys(words(query)))[:MAX_QUERY_WORDS]


class NoRetriever:
    """Finds nothing: what an agent reaches without the corpus."""

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return no hit."""
        return ()

    def close(self) -> None:
        """Do nothing."""
