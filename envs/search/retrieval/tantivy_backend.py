"""Tantivy behind the `Retriever` protocol: the default, and the one for large corpora."""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentgym.envs.search.retrieval.documents import Document
from agentgym.envs.search.retrieval.retriever import Hit, plain_text, query_words
from agentgym.errors import AgentGymError, InfrastructureError, MissingExtraError

_BODY, _POSITION = "body", "position"
_TOKENIZER = "agentgym_en"
_LONGEST_WORD = 1000
"""Bytes of a word that is indexed. The longest names of chemistry have some hundred."""
_PANIC = "PanicException"
"""Type of a failed assertion in Rust. It is no `Exception`, and no module exports it."""
_NO_LOCK = "Failed to acquire Lockfile"
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
    """Searches a tantivy index.

    Args:
        index: What to search.
        links: A folder that the index was opened through, to be removed with it.
    """

    def __init__(self, index: Any, links: tempfile.TemporaryDirectory[str] | None = None) -> None:
        self._index: Any = index
        self._links = links
        self._searcher: Any = index.searcher()
        self._count = self._searcher.num_docs

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits; see `agentgym.envs.search.retrieval.retriever`."""
        found = query_words(query)
        k = min(k, self._count)
        if not found or k < 1:
            return ()
        with _infrastructure("search"):
            # Lower-case words have no meaning for the query parser, and it stems as the index did.
            parsed = self._index.parse_query(" ".join(found), [_BODY])
            return self._hits(parsed, k)

    def close(self) -> None:
        """Let go of the index; its files are closed with it."""
        self._index = self._searcher = None
        if self._links is not None:
            self._links.cleanup()

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
        if not all(
            isinstance(position, int) and 0 <= position < self._count for position in positions
        ):
            raise InfrastructureError("tantivy cannot search: the index is damaged")
        ranked = (
            (-_rounded(score), position)
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
    with _infrastructure(f"build {folder}"):
        _write(tantivy, folder, documents)
    # Some are written for their owner alone, and a cache is there for everybody who may read it.
    for file in folder.iterdir():
        file.chmod(folder.stat().st_mode & 0o666)


def _write(tantivy: Any, folder: Path, documents: Iterable[Document]) -> None:
    index = tantivy.Index(_schema(tantivy), path=str(folder), reuse=False)
    _register(tantivy, index)
    writer = index.writer(_WRITER_BYTES, min(os.cpu_count() or 1, _MOST_THREADS))
    for position, document in enumerate(documents):
        writer.add_document(
            tantivy.Document(**{_BODY: plain_text(document.indexed_text), _POSITION: position})
        )
    writer.commit()
    writer.wait_merging_threads()


def open(folder: Path) -> TantivyRetriever:
    """Return the retriever of an index, which may lie in a folder that cannot be written.

    Raises:
        InfrastructureError: If it cannot be opened.
    """
    tantivy = _import()
    with _infrastructure(f"open {folder}"):
        try:
            return TantivyRetriever(_opened(tantivy, folder))
        except ValueError as error:
            if _NO_LOCK not in str(error):
                raise
        return _open_by_links(tantivy, folder)


def _open_by_links(tantivy: Any, folder: Path) -> TantivyRetriever:
    """Open an index through links to it, beside which tantivy can make its lock file."""
    links = tempfile.TemporaryDirectory(prefix="agentgym-tantivy-")
    with contextlib.ExitStack() as undo:
        undo.callback(links.cleanup)
        for file in folder.iterdir():
            if file.suffix != ".lock":
                (Path(links.name) / file.name).symlink_to(file.resolve())
        retriever = TantivyRetriever(_opened(tantivy, Path(links.name)), links)
        undo.pop_all()  # from here on the retriever removes them
    return retriever


def _opened(tantivy: Any, folder: Path) -> Any:
    index = tantivy.Index.open(str(folder))
    # Without a thread that looks twice a second whether the index was changed: it never is.
    index.config_reader("manual", 0)
    _register(tantivy, index)
    return index


@contextlib.contextmanager
def _infrastructure(doing: str) -> Iterator[None]:
    """Raise what tantivy raises, a panic too, as the one error that callers know."""
    try:
        yield
    except AgentGymError:
        raise
    except BaseException as error:
        # A panic is no `Exception`. Everything else, such as a key of the user's, passes.
        is_tantivys = isinstance(error, ValueError | OSError | RuntimeError)
        if not is_tantivys and type(error).__name__ != _PANIC:
            raise
        raise InfrastructureError(f"tantivy cannot {doing}: {error}") from error


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


def _import() -> Any:
    try:
        import tantivy
    except ModuleNotFoundError as error:
        raise MissingExtraError("the retriever 'tantivy'", extra="search") from error
    return tantivy
