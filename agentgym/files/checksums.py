"""Checksums of a folder's files: written last, and looked at before anything in it is believed.

The file `SHA256SUMS` has the form that `sha256sum --check` reads, and a last line with its own
checksum, so that a flipped bit in it is not taken for one in a file that it lists.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from agentgym.files.bounded import DataError, open_regular, read_text

CHECKSUMS = "SHA256SUMS"
_MAX_BYTES = 1 << 24  # some 100,000 files


def write_checksums(folder: Path) -> None:
    """Write the checksums of every file below a folder, and wait until they are on the disk.

    Raises:
        OSError: If they cannot be written.
    """
    own_file = folder / CHECKSUMS
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != own_file)
    lines = [f"{_digest(file)}  {file.relative_to(folder)}\n" for file in files]
    text = "".join(lines)
    own = hashlib.sha256(text.encode()).hexdigest()
    with own_file.open("w", encoding="utf-8") as stream:
        stream.write(f"{text}# {own}\n")
        stream.flush()
        os.fsync(stream.fileno())
    for place in {folder, *(file.parent for file in files)}:
        sync_folder(place)


def damage(folder: Path) -> str | None:
    """Return which file of a folder is not as it was written, None if all of them are.

    Example:
        damage(Path("checkpoints/step_000020")) == "tensors/__0_0.distcp is damaged"
    """
    try:
        text = read_text(folder / CHECKSUMS, max_bytes=_MAX_BYTES)
    except DataError as error:
        return f"{CHECKSUMS}: {error}"
    listed, mark, own = text.rpartition("# ")
    if not mark or own != hashlib.sha256(listed.encode()).hexdigest() + "\n":
        return f"{CHECKSUMS} is damaged"
    for line in listed.splitlines():
        digest, _, name = line.partition("  ")
        try:
            if _digest(folder / name) != digest:
                return f"{name} is damaged"
        except (DataError, OSError) as error:
            return f"{name}: {error}"
    return None


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk: a crash after that finds them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Path) -> str:
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
