"""SQLite's FTS5 behind the `Retriever` protocol: in Python's standard library, and in memory for
the small worlds of single tasks.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentgym.envs.search.retrieval.documents import Document
from agentgym.envs.search.retrieval.retriever import Hit, plain_text, query_words
from agentgym.errors import InfrastructureError

_FILE = "index.sqlite"
_MOST_HITS = 2**63 - 1
"""SQLite's greatest integer."""
# Contentless: the documents themselves are kept apart.
_CREATE = (
    "CREATE VIRTUAL TABLE documents USING fts5("
    "body, content='', tokenize='porter unicode61 remove_diacritics 2')"
)
# `rank` is the negative BM25 score; the row id is the position, so this is the tie rule.
_SEARCH = "SELECT rowid, -rank FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT ?"


class Fts5Retriever:
    """Searches an FTS5 table; one connection for each thread that asks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._connection()

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits; see `agentgym.envs.search.retrieval.retriever`."""
        # A word in quotation marks is a string to FTS5, whatever it spells.
        expression = " OR ".join(f'"{word}"' for word in query_words(query))
        if not expression or k < 1:
            return ()
        try:
            rows = self._connection().execute(_SEARCH, (expression, min(k, _MOST_HITS))).fetchall()
        except sqlite3.Error as error:
            raise InfrastructureError(f"SQLite cannot search {self._path}: {error}") from error
        return tuple(Hit(position=position, score=score) for position, score in rows if score > 0)

    def close(self) -> None:
        """Close every thread's connection."""
        with self._lock:
            while self._connections:
                self._connections.pop().close()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = self._connect()
            except sqlite3.Error as error:
                raise InfrastructureError(f"SQLite cannot open {self._path}: {error}") from error
            self._local.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self._path.resolve().as_uri()}?mode=ro&immutable=1"
        # Closed from the thread that closes the environment.
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        connection.execute("SELECT rowid FROM documents WHERE rowid = 0").fetchone()
        return connection


class MemoryRetriever(Fts5Retriever):
    """Searches documents in memory: for worlds of some hundred documents, made for one episode."""

    def __init__(self, documents: Iterable[Document]) -> None:
        # An environment may be closed, and stepped, from other threads than the one that made it.
        self._only = sqlite3.connect(":memory:", check_same_thread=False)
        self._path = Path(":memory:")
        self._lock = threading.Lock()
        self._connections = [self._only]
        _fill(self._only, documents)

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return at most `k` hits, one thread at a time."""
        with self._lock:
            return super().search(query, k)

    def _connection(self) -> sqlite3.Connection:
        return self._only


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index of documents into an empty folder."""
    with contextlib.closing(sqlite3.connect(folder / _FILE)) as connection:
        # Nobody reads a folder that is being built: no journal is needed.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        _fill(connection, documents)


def open(folder: Path) -> Fts5Retriever:
    """Return the retriever of an index.

    Raises:
        InfrastructureError: If it cannot be opened.
    """
    return Fts5Retriever(folder / _FILE)


def _fill(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    connection.execute(_CREATE)
    connection.executemany("INSERT INTO documents(rowid, body) VALUES (?, ?)", _rows(documents))
    connection.execute("INSERT INTO documents(documents) VALUES ('optimize')")
    connection.commit()


def _rows(documents: Iterable[Document]) -> Iterator[tuple[int, str]]:
    for position, document in enumerate(documents):
        yield position, plain_text(document.indexed_text)
