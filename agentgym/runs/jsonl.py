"""Append-only files of one JSON record a line, which survive being killed and a full disk.

A record counts once its line break is written. A torn last line is ignored by readers and removed
by the next writer; a write that fails is taken back, so that what was written before stays whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from agentgym.errors import InfrastructureError, RecordError
from agentgym.files.bounded import DataError, open_regular

_CHUNK_BYTES = 1 << 16


class DiskError(InfrastructureError):
    """A file of the run could not be written; what was written before is whole."""


class LineWriter:
    """Appends lines to one file.

    Args:
        path: The file; it is made where it is not there.

    Raises:
        DiskError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise DiskError(f"{path} cannot be opened ({error.strerror})") from error
        self._offset = _whole_bytes(self._file)
        os.ftruncate(self._file, self._offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, line: str) -> None:
        """Write one record, whole or not at all.

        Raises:
            DiskError: If it cannot be written, such as on a full disk.
            RecordError: If `line` holds a line break.
        """
        if "\n" in line:
            raise RecordError(f"a record is one line (got a line break in {line[:60]!r})")
        data = line.encode() + b"\n"
        try:
            self._write(data)
        except OSError as error:
            self._take_back()
            raise DiskError(
                f"{self.path.name} cannot be written ({error.strerror}); the {self._offset} bytes "
                f"before are whole. Free space on the disk, then go on with --resume "
                f"({self.path.parent})"
            ) from error
        self._offset += len(data)

    def offset(self) -> int:
        """Return the length of the file in bytes, after its content has reached the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be synced ({error.strerror})") from error
        return self._offset

    def truncate_to(self, offset: int) -> None:
        """Cut the file to its first `offset` bytes, which must end with a whole record.

        Raises:
            RecordError: If the file is shorter, or `offset` is inside a record.
        """
        if offset > self._offset:
            raise RecordError(
                f"{self.path} has {self._offset} bytes, fewer than the {offset} that a checkpoint "
                "counts on: part of the run's record is lost"
            )
        if offset and os.pread(self._file, 1, offset - 1) != b"\n":
            raise RecordError(f"{self.path}: byte {offset} is inside a record")
        os.ftruncate(self._file, offset)
        self._offset = offset

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _take_back(self) -> None:
        # Shrinking needs no space, so this works on a full disk too.
        os.ftruncate(self._file, self._offset)


def read_lines(path: Path, *, start: int = 0) -> Iterator[str]:
    """Yield the whole lines of a file from byte `start` on; a missing file has none.

    A last line without line break is a record that was being written: it is left out.

    Raises:
        RecordError: If it cannot be read, or a line is no text in UTF-8.
    """
    if not os.path.lexists(path):
        return
    try:
        opened = open_regular(path)
    except DataError as error:
        raise RecordError(f"{path}: {error}") from None
    with opened as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                continue
            try:
                yield line[:-1].decode()
            except UnicodeDecodeError as error:
                raise RecordError(f"{path} holds a line that is no UTF-8 ({error})") from None


def torn_bytes(path: Path) -> int:
    """Return the length of a record that was being written when its writer was killed."""
    if not path.exists():
        return 0
    file = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(file).st_size - _whole_bytes(file)
    finally:
        os.close(file)


def _whole_bytes(file: int) -> int:
    """Return the bytes up to and with the last line break."""
    end = os.fstat(file).st_size
    while end > 0:
        begin = max(end - _CHUNK_BYTES, 0)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
