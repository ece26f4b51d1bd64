"""Dictionaries in the format of the server dictd, as a corpus: one passage an entry."""

from __future__ import annotations

import gzip
import hashlib
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.envs.search.retrieval.documents import Document
from agentgym.errors import TaskError

_DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_ABOUT_ITSELF = ("00-", "00database")
"""Headwords under which a dictionary describes itself."""


@dataclass(frozen=True, slots=True)
class DictdCorpus:
    """The entries of dictionaries, in the order of the files and of the indexes.

    Example:
        DictdCorpus((Path("/usr/share/dictd/wn"),)) reads wn.index and wn.dict.dz.
    """

    stems: Sequence[Path]
    """Paths without `.index` and `.dict.dz`."""

    @property
    def key(self) -> str:
        """Hash of the files."""
        digest = hashlib.sha256()
        for stem in self.stems:
            for path in (_index_path(stem), _text_path(stem)):
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yield every entry once; one that has several headwords, under the first of them.

        Raises:
            TaskError: If a file is missing or an index does not fit its text.
        """
        for stem in self.stems:
            yield from _entries(stem)


def read_number(text: str) -> int:
    """Return the number that an index writes in base 64, most significant digit first.

    Example:
        read_number("BA") is 64.

    Raises:
        TaskError: If a sign is not a digit.
    """
    value = 0
    for sign in text:
        if sign not in _VALUES:
            raise TaskError(f"a dictd index holds a number that is none (got {text!r})")
        value = value * len(_DIGITS) + _VALUES[sign]
    return value


def _entries(stem: Path) -> Iterator[Document]:
    path = _text_path(stem)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".dz" else path.read_bytes()
    seen: set[tuple[int, int]] = set()
    for line in _index_path(stem).read_text(encoding="utf-8").splitlines():
        headword, start_text, length_text, *_ = [*line.split("\t"), "", ""]
        place = (read_number(start_text), read_number(length_text))
        if place in seen or headword.startswith(_ABOUT_ITSELF):
            continue
        seen.add(place)
        start, length = place
        if not length or start + length > len(data):
            raise TaskError(f"{_index_path(stem)} points outside {path} (got {line!r})")
        text = data[start : start + length].decode("utf-8", "replace")
        yield Document(title=headword, text=" ".join(text.split()))


def _index_path(stem: Path) -> Path:
    return _existing(stem.with_name(f"{stem.name}.index"))


def _text_path(stem: Path) -> Path:
    packed = stem.with_name(f"{stem.name}.dict.dz")
    return packed if packed.is_file() else _existing(stem.with_name(f"{stem.name}.dict"))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise TaskError(f"there is no file {path}: install the dictionary, or correct the path")
    return path
