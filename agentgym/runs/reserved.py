"""A file that is taken before the work that fills it: `reserve`, `reserve_new`.

Its name, its folder and the right to write are tried first, so that nothing is played and then
lost. What is taken is a hidden file beside it; the file itself appears whole or not at all, and
what was made for it goes again if the work fails.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.runs.folder import temporary_of, write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedFile:
    """A file that is ours to write."""

    path: Path
    """Where it will be."""

    def write(self, text: str) -> None:
        """Write it, whole or not at all.

        Raises:
            DiskError: If it cannot be written any more.
        """
        write_atomic(self.path, text)


@contextlib.contextmanager
def reserve(path: Path) -> Generator[ReservedFile]:
    """Take a file that may be there already, and is replaced then.

    Raises:
        ConfigError: If it is a folder, or its folder cannot be made or written to.
    """
    with _folder_of(path):
        _take(path, is_new=False)
        with _until_done(path) as taken:
            yield taken


@contextlib.contextmanager
def reserve_new(folder: Path, stem: str) -> Generator[ReservedFile]:
    """Take the first file `STEM-N.json` of a folder that is neither there nor taken, N from 1.

    Raises:
        ConfigError: If the folder cannot be made or written to.
    """
    files = (folder / f"{stem}-{number}.json" for number in itertools.count(1))
    with _folder_of(folder / stem):
        path = next(file for file in files if _take(file, is_new=True))
        with _until_done(path) as taken:
            yield taken


@contextlib.contextmanager
def _folder_of(path: Path) -> Generator[None]:
    """Make the folder of a file, and take away what was made if it is empty afterwards."""
    with _wrong_name(path):
        missing = [folder for folder in path.absolute().parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # there is something in it now
                folder.rmdir()


def _take(path: Path, *, is_new: bool) -> bool:
    """Make the hidden file of a path and return True; False if somebody else has a new one."""
    with _wrong_name(path):
        if path.is_dir():
            raise ConfigError(f"{path} cannot be written: it is a folder; name a file in it")
        if is_new and path.exists():
            return False
        try:
            temporary_of(path).touch(exist_ok=not is_new)
        except FileExistsError:
            return False
    return True


@contextlib.contextmanager
def _until_done(path: Path) -> Generator[ReservedFile]:
    try:
        yield ReservedFile(path=path)
    finally:
        temporary_of(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _wrong_name(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); name a file that can"
        ) from error
