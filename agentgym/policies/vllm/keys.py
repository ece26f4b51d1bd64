"""Keys of the servers of this machine: a random one for each, which only its user can read.

`agentgym serve` writes a server's key into a folder of mode 0700; clients of the same user find it
there by the server's address. Others are told it, and set `VLLM_API_KEY`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from agentgym.errors import InfrastructureError

VARIABLE = "VLLM_API_KEY"
"""Variable of the process that holds a key: vLLM's own."""
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_OTHERS = 0o077


def new_key() -> str:
    """Return the key of the environment, or a random one."""
    return os.environ.get(VARIABLE) or secrets.token_urlsafe(32)


def key_for(url: str) -> str | None:
    """Return the key of a server: what was left here for its address, or the environment's.

    None if there is neither.
    """
    parts = urlsplit(url)
    if parts.hostname in _LOCAL and parts.port is not None:
        path = _path(parts.port)
        # A file of somebody else, or one that others can read, holds no key of ours.
        if _is_ours(path.parent) and _is_ours(path):
            with contextlib.suppress(OSError):
                return path.read_text(encoding="ascii").strip() or None
    return os.environ.get(VARIABLE) or None


def leave_key(port: int, key: str) -> Path:
    """Write the key of a server on this machine where clients of this user look for it.

    Raises:
        InfrastructureError: If the folder is somebody else's, or cannot be written to.
    """
    path = _path(port)
    private_folder()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        with os.fdopen(opened, "w", encoding="ascii") as file:
            file.write(key)
        fresh.replace(path)
    except OSError as error:
        raise InfrastructureError(f"the key cannot be written to {str(path)!r}: {error}") from error
    return path


def take_key_away(port: int, key: str) -> None:
    """Remove the key of a server that has ended, unless another one's is there by now."""
    path = _path(port)
    with contextlib.suppress(OSError):
        if path.read_text(encoding="ascii").strip() == key:
            path.unlink()


def private_folder() -> Path:
    """Return the folder of this user's keys and locks on this machine, made if it is missing.

    Raises:
        InfrastructureError: If it is somebody else's, or others may look into it.
    """
    folder = _folder()
    try:
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"{str(folder)!r} cannot be made: {error}") from error
    if not _is_ours(folder):
        raise InfrastructureError(
            f"{str(folder)!r} must be a folder of yours that nobody else may read (mode 0700); "
            "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    return folder


def _folder() -> Path:
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and Path(own).is_dir():
        return Path(own) / "agentgym"
    return Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}"


def _path(port: int) -> Path:
    return _folder() / f"key-{port}"


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.getuid() and not found.st_mode & _OTHERS


__all__ = ["VARIABLE", "key_for", "leave_key", "new_key", "private_folder", "take_key_away"]
