"""Documents: what a corpus is, and the file that holds one so that many episodes can read it.

In order: `Document`, the `Corpus` protocol, documents in memory, documents on disk.
"""

from __future__ import annotations

import array
import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentgym.errors import InfrastructureError

_LINES = "documents.jsonl"
_OFFSETS = "offsets.bin"
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document. Its id is its position in the corpus.

    Example:
        Document(title="Ana Halberg", text="Ana Halberg was born in Alderford.")
    """

    title: str
    """Name, shown in search results."""
    text: str
    """Content without the title."""

    @property
    def indexed_text(self) -> str:
        """What a retriever indexes. The title stands twice: of a document about a name and one that
        mentions it, the first is found first.
        """
        return f"{self.title}\n{self.title}\n{self.text}"


class Corpus(Protocol):
    """Documents in a fixed order, which may be too many to hold in memory."""

    @property
    def key(self) -> str:
        """Hash of the content, or of all that the content is made from."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yield every document, in order."""
        ...


class Documents(Protocol):
    """Read access to a corpus by position."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, position: int, /) -> Document:
        """Return the document at a position, from 0."""
        ...


def content_hash(documents: Iterable[Document]) -> str:
    """Return the SHA-256 of the documents in their order, in hex."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(_line(document))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ListCorpus:
    """A corpus in memory."""

    items: Sequence[Document]

    @property
    def key(self) -> str:
        """Hash of the content."""
        return content_hash(self.items)

    def documents(self) -> Iterator[Document]:
        """Yield every document, in order."""
        return iter(self.items)


class DocumentFile:
    """Documents in a folder: one JSON line each, and where each line ends. Read-only, and shared by
    any number of threads.

    Raises:
        InfrastructureError: If the files are missing or do not fit each other; also from an access
            to a document that is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            with (folder / _LINES).open("rb") as lines:
                # An empty file cannot be mapped.
                size = lines.seek(0, 2)
                self._lines = mmap.mmap(lines.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            self._offsets = array.array("Q", (folder / _OFFSETS).read_bytes())
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"cannot read the documents in {folder}: {error}") from error
        if not self._offsets or self._offsets[-1] != len(self._lines):
            raise self._damaged("their length is not what it was")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int, /) -> Document:
        if not 0 <= position < len(self):
            raise IndexError(f"there is no document {position}")
        start, stop = self._offsets[position], self._offsets[position + 1]
        try:
            title, text = json.loads(self._lines[start:stop])
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(f"document {position}: {error}") from error
        if not (isinstance(title, str) and isinstance(text, str)):
            raise self._damaged(f"document {position} is no pair of texts")
        return Document(title=title, text=text)

    def __iter__(self) -> Iterator[Document]:
        for position in range(len(self)):
            yield self[position]

    def _damaged(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"the documents in {self._folder} are damaged ({what}): delete the folder"
        )

    @staticmethod
    def write(folder: Path, documents: Iterable[Document]) -> str:
        """Write documents into a folder, one at a time, and return the hash of their content."""
        digest = hashlib.sha256()
        offsets = array.array("Q", [0])
        with (folder / _LINES).open("wb") as file:
            for document in documents:
                line = _line(document)
                digest.update(line)
                offsets.append(offsets[-1] + len(line))
                file.write(line)
        (folder / _OFFSETS).write_bytes(offsets.tobytes())
        return digest.hexdigest()


def _line(document: Document) -> bytes:
    # Lone surrogates, which JSON files may hold, cannot be written as UTF-8: escaped they can.
    return json.dumps([document.title, document.text]).encode() + b"\n"
