from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym.envs.search.retrieval import index_cache
from agentgym.envs.search.retrieval.documents import (
    Document,
    DocumentFile,
    ListCorpus,
    content_hash,
)
from agentgym.envs.search.retrieval.index_cache import open_library
from agentgym.errors import EnvError, InfrastructureError

DOCUMENTS = [
    Document(title="Cat", text="A cat sleeps."),
    Document(title="Ömer", text="line one\nline two"),
    Document(title="\ud800", text=""),
]


class CountingCorpus(ListCorpus):
    """Counts how often its documents are read."""

    reads = 0

    def documents(self) -> Iterator[Document]:
        type(self).reads += 1
        return super().documents()


def test_documents_survive_the_file(tmp_path: Path) -> None:
    written = DocumentFile.write(tmp_path, DOCUMENTS)
    file = DocumentFile(tmp_path)
    assert list(file) == DOCUMENTS
    assert len(file) == 3
    assert written == content_hash(DOCUMENTS)
    with pytest.raises(IndexError):
        file[3]
    with pytest.raises(IndexError):
        file[-1]


def test_content_hash_sees_order_and_borders() -> None:
    one = [Document(title="ab", text="c"), Document(title="d", text="")]
    assert content_hash(one) != content_hash(one[::-1])
    assert content_hash(one) != content_hash([Document(title="a", text="bc"), one[1]])


def test_damaged_documents_are_an_infrastructure_error(tmp_path: Path) -> None:
    DocumentFile.write(tmp_path, DOCUMENTS)
    (tmp_path / "documents.jsonl").write_bytes(b"")
    with pytest.raises(InfrastructureError, match="damaged"):
        DocumentFile(tmp_path)
    with pytest.raises(InfrastructureError, match="cannot read"):
        DocumentFile(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("documents.jsonl", bytes),  # as long as it was, all zero
        ("documents.jsonl", lambda size: b"\xff" * size),
        ("documents.jsonl", lambda size: b"[1, 2]".ljust(size)),
        ("documents.jsonl", lambda size: b"[" * size),
        ("offsets.bin", lambda size: bytes(size - 8) + _end(size)),
        ("offsets.bin", lambda size: b"\xff" * (size - 8) + _end(size)),
    ],
)
def test_damaged_document_is_an_infrastructure_error(
    name: str, content: Callable[[int], bytes], tmp_path: Path
) -> None:
    DocumentFile.write(tmp_path, DOCUMENTS)
    path = tmp_path / name
    path.write_bytes(content(path.stat().st_size))
    with pytest.raises(InfrastructureError, match=r"the documents in .* are damaged \(document 0"):
        DocumentFile(tmp_path)[0]


def _end(size: int) -> bytes:
    """Return the last offset of `DOCUMENTS`, which is the length of their lines."""
    lines = sum(len(json.dumps([document.title, document.text])) + 1 for document in DOCUMENTS)
    assert size == 8 * (len(DOCUMENTS) + 1)
    return lines.to_bytes(8, sys.byteorder)


def test_index_is_built_once_and_found_by_content(tmp_path: Path) -> None:
    CountingCorpus.reads = 0
    corpus = CountingCorpus(DOCUMENTS)
    first = open_library(corpus, backend="fts5", cache=tmp_path)
    reads = CountingCorpus.reads
    assert open_library(corpus, backend="fts5", cache=tmp_path) is first  # shared while open
    del first
    again = open_library(CountingCorpus(list(DOCUMENTS)), backend="fts5", cache=tmp_path)
    assert CountingCorpus.reads == reads  # read from the cache
    assert [hit.position for hit in again.retriever.search("cat", 5)] == [0]
    other = open_library(ListCorpus(DOCUMENTS[1:]), backend="fts5", cache=tmp_path)
    assert other.retriever.search("cat", 5) == ()
    assert len(list(tmp_path.iterdir())) == 2


def test_half_built_index_is_built_again(tmp_path: Path) -> None:
    corpus = ListCorpus(DOCUMENTS)
    folder = tmp_path / f"{corpus.key[:32]}-{index_cache.FORMAT}" / "fts5"
    folder.mkdir(parents=True)
    (folder / "index.sqlite").write_bytes(b"half")
    opened = open_library(corpus, backend="fts5", cache=tmp_path)
    assert len(opened.retriever.search("cat", 5)) == 1
    assert json.loads((folder / "manifest.json").read_text()) == {"documents": 3}


def test_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    class Broken(ListCorpus):
        def documents(self) -> Iterator[Document]:
            yield DOCUMENTS[0]
            raise OSError("disk full")

    with pytest.raises(InfrastructureError, match="disk full"):
        open_library(Broken(DOCUMENTS), backend="fts5", cache=tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_dir()] == [
        f"{ListCorpus(DOCUMENTS).key[:32]}-{index_cache.FORMAT}"
    ]
    assert len(open_library(ListCorpus(DOCUMENTS), backend="fts5", cache=tmp_path).documents) == 3


def _count(cache: Path) -> int:
    return len(open_library(ListCorpus(DOCUMENTS), backend="tantivy", cache=cache).documents)


def test_processes_that_build_at_once_get_one_whole_index(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_count, [tmp_path] * 3) == [3, 3, 3]


@pytest.mark.parametrize("name", ["tantivi", "", "elastic"])
def test_unknown_back_end_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"'backend' must be one of .*\(got '"):
        open_library(ListCorpus(DOCUMENTS), backend=name, cache=tmp_path)


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path))
    assert index_cache.cache_folder() == tmp_path / "search"
    monkeypatch.delenv("AGENTGYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert index_cache.cache_folder() == tmp_path / "xdg" / "agentgym" / "search"
