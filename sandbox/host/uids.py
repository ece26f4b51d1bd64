"""A user id of its own for each box, where the host process is root.

A box that got out would then own nothing: not the host's files, not another box's processes. An id
is taken by binding an abstract socket of its name, so that it is free again when its owner ends,
however that happens, and nothing is left on disk.
"""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import InfrastructureError

FIRST_UID = 1_900_000_000
"""Above every range that Linux distributions, systemd and container engines hand out."""
UID_COUNT = 4096

_next = itertools.count(os.getpid() * 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedUid:
    """An id that no other box of this machine has."""

    uid: int
    claim: socket.socket

    def release(self) -> None:
        """Give the id back. Doing so twice is no error."""
        self.claim.close()


def needs_own_uid() -> bool:
    """Return whether boxes need an id of their own: the host process is root."""
    return os.geteuid() == 0


def lease_uid() -> LeasedUid:
    """Return a free id.

    Raises:
        InfrastructureError: If none is free.
    """
    first = _first_uid(Path("/proc/self/uid_map").read_text())
    for _ in range(UID_COUNT):
        uid = first + next(_next) % UID_COUNT
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0agentgym-sandbox-uid-{uid}")
        except OSError:
            claim.close()
            continue
        return LeasedUid(uid=uid, claim=claim)
    raise InfrastructureError(f"all {UID_COUNT} user ids for boxes are taken")


def _first_uid(uid_map: str) -> int:
    """Return the first id of our range; lower where this process's ids are mapped narrowly."""
    ranges = [tuple(int(field) for field in line.split()) for line in uid_map.splitlines()]
    if any(start <= FIRST_UID < start + length - UID_COUNT for start, _, length in ranges):
        return FIRST_UID
    start, _, length = max(ranges, key=lambda entry: entry[2])
    return max(start + 1, start + length - 2 * UID_COUNT)
