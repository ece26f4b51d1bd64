"""Tantivy behind the `Retriever` protocol: the default, and the one for large corpora."""

from __future__ import annotations

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
"""Memory of the writer: a corpus that fits gives one segment, in which equal scores come in the
order of the documents without further work."""


class TantivyRetriever:
    """Searches a tantivy index."""

    def __init__(self, index: Any) -> None:
        self._index: Any = index
        self._searcher: Any = index.searcher()
        self._count = self._searcher.num_docs
        # In one segment the documents have the order in which they were added.
        self._has_order = self._searcher.num_segments <= 1

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
        limit = k if self._has_order else min(2 * k, self._count)
        while True:
            found = self._searcher.search(parsed, limit, count=False).hits
            is_tied = len(found) == limit and found[-1][0] == found[k - 1][0]
            if self._has_order or limit == self._count or not is_tied:
                break
            # The tie at the end may go on: more segments, more of equal score.
            limit = min(4 * limit, self._count)
        positions = self._searcher.fast_field_values(_POSITION, [address for _, address in found])
        hits = [
            Hit(position=int(position), score=score)
            for (score, _), position in zip(found, positions, strict=True)
            if score > 0
        ]
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.position))[:k])


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
    # One thread: several would write one segment each, in an order that differs from run to run.
    writer = index.writer(_WRITER_BYTES, 1)
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
