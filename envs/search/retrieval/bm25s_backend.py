"""bm25s behind the `Retriever` protocol: scores of all documents as one numpy array.

Words are matched whole, without stemming. The vocabulary belongs to the index, never to a tokenizer
that outlives it, and has no word that stands for "none".
"""

from __future__ import annotations

import array
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentgym.envs.search.retrieval.documents import Document
from agentgym.envs.search.retrieval.retriever import Hit, query_words, words
from agentgym.errors import InfrastructureError, MissingExtraError

_VOCABULARY = "words.json"
_DAMAGE = (ValueError, OSError, EOFError, TypeError, LookupError, AttributeError)
"""What bm25s and numpy raise on files that are not what was written: they check nothing."""
_METHOD = "lucene"
"""Its inverse document frequency is positive for every word, so a match has a positive score."""


class Bm25sRetriever:
    """Searches a bm25s index."""

    def __init__(self, model: Any, vocabulary: dict[str, int]) -> None:
        self._model: Any = model
        self._vocabulary = vocabulary

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits; see `agentgym.envs.search.retrieval.retriever`."""
        known = [self._vocabulary[w] for w in query_words(query) if w in self._vocabulary]
        if not known or k < 1:
            return ()
        try:
            scores = self._model.get_scores_from_ids(known)
        except _DAMAGE as error:
            raise InfrastructureError(f"bm25s cannot search: {error}") from error
        return tuple(
            Hit(position=int(position), score=float(scores[position]))
            for position in best_positions(scores, k)
        )

    def close(self) -> None:
        """Let go of the arrays."""
        self._vocabulary = {}
        self._model = None


def best_positions(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the `k` greatest positive scores: descending, then by position.

    Example:
        best_positions([1.0, 3.0, 0.0, 3.0, 1.0], 3) is [1, 3, 0].
    """
    positive = np.flatnonzero(scores > 0)
    values = scores[positive]
    if len(positive) > k:
        bound = np.partition(values, len(values) - k)[len(values) - k]
        above = positive[values > bound]
        equal = positive[values == bound][: k - len(above)]
        positive = np.concatenate([above, equal])
        values = scores[positive]
    return positive[np.lexsort((positive, -values))]


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index of documents into an empty folder."""
    bm25s = _import()
    vocabulary: dict[str, int] = {}
    ids = [
        array.array(
            "i",
            (vocabulary.setdefault(w, len(vocabulary)) for w in words(document.indexed_text)),
        )
        for document in documents
    ]
    (folder / _VOCABULARY).write_text(json.dumps(vocabulary), encoding="utf-8")
    if not vocabulary:
        return  # nothing can be found, and bm25s cannot save an index without words
    model = bm25s.BM25(method=_METHOD)
    model.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    model.save(str(folder), show_progress=False)


def open(folder: Path) -> Bm25sRetriever:
    """Return the retriever of an index.

    Raises:
        InfrastructureError: If it cannot be opened.
    """
    bm25s = _import()
    try:
        vocabulary = _vocabulary(folder / _VOCABULARY)
        model = (
            bm25s.BM25.load(str(folder), load_vocab=False, mmap=True, show_progress=False)
            if vocabulary
            else None
        )
    except _DAMAGE as error:
        raise InfrastructureError(f"bm25s cannot open {folder}: {error}") from error
    return Bm25sRetriever(model, vocabulary)


def _vocabulary(path: Path) -> dict[str, int]:
    found: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"{path.name} holds no vocabulary")
    return cast("dict[str, int]", found)


def _import() -> Any:
    try:
        import bm25s
    except ModuleNotFoundError as error:
        raise MissingExtraError("the retriever 'bm25s'", extra="search") from error
    return bm25s
