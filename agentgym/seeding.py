"""Deterministic seeds from names and numbers. Nothing here touches a global random state."""

from __future__ import annotations

import hashlib
import random

_SEED_BYTES = 8
_SEED_MASK = 2**63 - 1  # torch, numpy and vLLM take non-negative 63-bit seeds


def derive(*parts: str | int) -> int:
    """Return a seed in [0, 2**63) which depends on every part and on their order.

    Parts are joined with type and length, so `derive("ab", 1)` and `derive("a", "b1")` differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")  # whatever a file holds
        digest.update(f"{type(part).__name__}:{len(data)}:".encode())
        digest.update(data)
    return int.from_bytes(digest.digest()[:_SEED_BYTES], "big") & _SEED_MASK


def rng(*parts: str | int) -> random.Random:
    """Return a private random generator seeded by `derive(*parts)`."""
    return random.Random(derive(*parts))
