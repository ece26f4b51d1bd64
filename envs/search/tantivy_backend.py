"""Tantivy behind the `Retriever` protocol: the default, and the one for large corpora."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym.envs.search.documents import Document
from agentgym.envs.search.retriever import Hit, query_words
from agentgym.errors import InfrastructureError, MissingExtraError

_BODY, _POSITION = "body", "position"
_TOKENIZER = "agentgym_en"
_LONGEST_WORD = 40
_WRITER_BYTES = 512_000_000
"""Memory that the writer's threads may take together before they write a segment."""
_MOST_THREADS = 8
"""The writer takes no more threads than this: Tantivy's own bound."""
_SPARE = 8
"""Hits asked for beyond those wanted, to see whether the last one is tied."""
_GROWTH = 8
_DIGITS = 5
"""Significant digits of a score. The order in which a sum of single-precision numbers is taken
differs between segments, and with it the last digit: equal documents would not be equal."""


class TantivyRetriever:
    """Searches a tantivy index."""

    def __init__(self, index: Any) -> None:
        self._index: Any = index
        self._searcher: Any = index.searcher()
        self._count = self._searcher.num_docs

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits; see `agentgym.envs.search.retriever`."""
        found = query_words(query)
        k = min(k, self._count)
        if not found or k < 1:
            return ()
        try:
            # Lower-case words have no meaning for the query parser, and it stems as the index did.
            parsed = self._index.parse_query(" ".join(found), [_BODY])
            return self._hits(parsed, k)
        except (ValueError, OSError, RuntimeError) as error:
            raise InfrastructureError(f"tantivy cannot search: {error}") from error

    def close(self) -> None:
        """Let go of the index; its files are closed with it."""
        self._index = self._searcher = None

    def _hits(self, parsed: Any, k: int) -> tuple[Hit, ...]:
        limit = min(k + _SPARE, self._count)
        while True:
            found = self._searcher.search(parsed, limit, count=False).hits
            is_all = len(found) < limit or limit == self._count
            if is_all or _rounded(found[-1][0]) < _rounded(found[k - 1][0]):
                break
            # The tie at the end goes on. Half a million tied documents take 0.2 seconds.
            limit = min(_GROWTH * limit, self._count)
        positions = self._searcher.fast_field_values(_POSITION, [address for _, address in found])
        ranked = (
            (-_rounded(score), int(position))
            for (score, _), position in zip(found, positions, strict=True)
            if score > 0
        )
        best = heapq.nsmallest(k, ranked)
        return tuple(Hit(position=position, score=-score) for score, position in best)


def _rounded(score: float) -> float:
    return float(f"{score:.{_DIGITS}g}")


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index of documents into an empty folder."""
    tantivy = _import()
    try:
        _write(tantivy, folder, documents)
    except (ValueError, RuntimeError) as error:
        raise InfrastructureError(f"tantivy cannot build {folder}: {error}") from error


def _write(tantivy: Any, folder: Path, documents: Iterable[Document]) -> None:
    index = tantivy.Index(_schema(tantivy), path=str(folder), reuse=False)
    _register(tantivy, index)
    writer = index.writer(_WRITER_BYTES, min(os.cpu_count() or 1, _MOST_THREADS))
    for position, document in enumerate(documents):
        writer.add_document(
            tantivy.Document(**{_BODY: _clean(document.indexed_text), _POSITION: position})
        )
    writer.commit()
    writer.wait_merging_threads()


def open(folder: Path) -> TantivyRetriever:
    """Return the retriever of an index.

    Raises:
        InfrastructureError: If it cannot be opened.
    """
    tantivy = _import()
    try:
        index = tantivy.Index.open(str(folder))
        # Without a thread that looks twice a second whether the index was changed: it never is.
        index.config_reader("manual", 0)
        _register(tantivy, index)
        return TantivyRetriever(index)
    except (ValueError, OSError) as error:
        raise InfrastructureError(f"tantivy cannot open {folder}: {error}") from error


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(_BODY, stored=False, tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_integer_field(_POSITION, stored=False, fast=True)
    return builder.build()


def _register(tantivy: Any, index: Any) -> None:
    filters = (
        tantivy.Filter.remove_long(_LONGEST_WORD),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    )
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for one in filters:
        builder = builder.filter(one)
    index.register_tokenizer(_TOKENIZER, builder.build())


def _clean(text: str) -> str:
    # Rust's strings hold no lone surrogates.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _import() -> Any:
    try:
        import tantivy
    except ModuleNotFoundError as error:
        raise MissingExtraError("the retriever 'tantivy'", extra="search") from error
    return tantivy
