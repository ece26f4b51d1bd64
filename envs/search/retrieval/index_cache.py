"""Libraries: the documents of a corpus with an index, made once and opened by many episodes.

A corpus and each index of it lie in the cache, in a folder named by the hash of the content. They
are built beside it and moved there when complete, so that a folder which is there is whole; two
processes that need the same one at the same time build it once. What is open is shared by every
environment of the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentgym.envs.search.retrieval.documents import Corpus, DocumentFile, Documents
from agentgym.envs.search.retrieval.retriever import NoRetriever, Retriever
from agentgym.errors import EnvError, InfrastructureError, nearest

BACKENDS = {
    "tantivy": "agentgym.envs.search.retrieval.tantivy_backend",
    "bm25s": "agentgym.envs.search.retrieval.bm25s_backend",
    "fts5": "agentgym.envs.search.retrieval.fts5_backend",
}
"""Name -> module with `build` and `open`."""
NONE = "none"
"""Name of the back end that finds nothing."""
FORMAT = 3
"""Counted up when documents or indexes are written differently."""

_MANIFEST = "manifest.json"


class Library:
    """Documents with a retriever."""

    def __init__(self, documents: Documents, retriever: Retriever) -> None:
        self.documents = documents
        self.retriever = retriever


def check_backend(backend: str) -> str:
    """Return the name of a back end.

    Raises:
        EnvError: If it is unknown.
    """
    if backend not in BACKENDS and backend != NONE:
        known = (*BACKENDS, NONE)
        raise EnvError(
            f"'backend' must be one of {known} (got {backend!r}){nearest(backend, known)}"
        )
    return backend


def cache_folder() -> Path:
    """Return where indexes are kept: `$AGENTGYM_CACHE`, or `agentgym` in the user's cache."""
    own = os.environ.get("AGENTGYM_CACHE")
    if own:
        return Path(own) / "search"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentgym" / "search"


_open_libraries: weakref.WeakValueDictionary[tuple[Path, str], Library] = (
    weakref.WeakValueDictionary()
)
_lock = threading.Lock()


def open_library(corpus: Corpus, *, backend: str, cache: Path | None = None) -> Library:
    """Return the library of a corpus, building what the cache lacks.

    Args:
        corpus: What to index.
        backend: `tantivy`, `bm25s`, `fts5`, or `none`, which finds nothing.
        cache: Where indexes are kept; by default `cache_folder()`.

    Raises:
        EnvError: If the back end is unknown.
        InfrastructureError: If an index cannot be written, or one that is there cannot be read.
        MissingExtraError: If the back end's package is missing.
    """
    check_backend(backend)
    folder = (cache if cache is not None else cache_folder()) / f"{corpus.key[:32]}-{FORMAT}"
    with _lock:
        library = _open_libraries.get((folder, backend))
        if library is None:
            documents = DocumentFile(_built(folder / "documents", _documents_builder(corpus)))
            library = Library(documents, _open_retriever(folder, backend, documents))
            # When the last environment has let go of it.
            weakref.finalize(library, library.retriever.close)
            _open_libraries[(folder, backend)] = library
        return library


def _documents_builder(corpus: Corpus) -> Callable[[Path], dict[str, Any]]:
    def build(folder: Path) -> dict[str, Any]:
        return {"content_hash": DocumentFile.write(folder, corpus.documents())}

    return build


def _open_retriever(folder: Path, backend: str, documents: DocumentFile) -> Retriever:
    if backend == NONE:
        return NoRetriever()
    # By name, so that only the chosen one's package is needed.
    module: Any = importlib.import_module(BACKENDS[backend])

    def build(target: Path) -> dict[str, Any]:
        module.build(target, documents)
        return {"documents": len(documents)}

    return module.open(_built(folder / backend, build))


def _built(folder: Path, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder, filled by `build` if it was not there."""
    if (folder / _MANIFEST).is_file():
        return folder
    try:
        return _build(folder, build)
    except OSError as error:
        raise InfrastructureError(f"cannot build the index {folder}: {error}") from error


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.with_suffix(".lock")):
        if (folder / _MANIFEST).is_file():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as work:
            target = Path(work) / "index"
            target.mkdir()
            manifest = build(target)
            (target / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            # What is there without a manifest is not ours, or is half of something.
            shutil.rmtree(folder, ignore_errors=True)
            target.rename(folder)
    return folder


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process that held it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
