"""`FakeModel`: the smallest model with weights: the next id depends on the last one alone.

Its logits are `embedding[last id] @ head.T`, so a learner in any framework can have the same, and
new weights change what is sampled. Needs numpy only.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentgym.errors import PolicyError

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_HEADER = struct.Struct("<Q")
Array = NDArray[np.float32]


class FakeModel:
    """A model by its two matrices.

    Args:
        embedding: [vocab, hidden].
        head: [vocab, hidden]; the embedding itself where a folder has no head of its own.
    """

    def __init__(self, embedding: Array, head: Array) -> None:
        self.embedding = embedding
        self.head = head

    @classmethod
    def load(cls, folder: Path) -> FakeModel:
        """Return the model of a folder's safetensors files.

        Raises:
            PolicyError: If there is no float32 embedding in them.
        """
        tensors: dict[str, Array] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= read_tensors(file, (_EMBEDDING, _HEAD))
        if _EMBEDDING not in tensors:
            raise PolicyError(f"{str(folder)!r} has no float32 tensor {_EMBEDDING!r}")
        embedding = tensors[_EMBEDDING]
        return cls(embedding, tensors.get(_HEAD, embedding))

    def logprobs(self, last: int, temperature: float = 1.0) -> NDArray[np.float64]:
        """Return [vocab] log-probabilities of the id that follows `last`."""
        logits = (self.head @ self.embedding[last]).astype(np.float64) / (temperature or 1.0)
        shifted = logits - logits.max()
        return shifted - math.log(np.exp(shifted).sum())

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each id but the first."""
        return [float(self.logprobs(a)[b]) for a, b in pairwise(ids)]

    def draw(
        self, last: int, temperature: float, rng: random.Random, allowed: Sequence[int] = ()
    ) -> tuple[int, float]:
        """Return an id that follows `last`, and its log-probability."""
        logprobs = self.logprobs(last, temperature)
        if allowed:
            masked = np.full_like(logprobs, -np.inf)
            masked[list(allowed)] = logprobs[list(allowed)]
            logprobs = masked - math.log(np.exp(masked).sum())
        if temperature == 0:
            chosen = int(logprobs.argmax())
        else:
            chosen = int(np.searchsorted(np.exp(logprobs).cumsum(), rng.random(), side="right"))
            chosen = min(chosen, len(logprobs) - 1)
        return chosen, float(logprobs[chosen])


def read_tensors(file: Path, names: Sequence[str]) -> dict[str, Array]:
    """Return named float32 tensors of a safetensors file; other names and formats are left out."""
    data = file.read_bytes()
    (length,) = _HEADER.unpack(data[: _HEADER.size])
    begin = _HEADER.size + length
    header = cast("dict[str, dict[str, Any]]", json.loads(data[_HEADER.size : begin]))
    found: dict[str, Array] = {}
    for name in names:
        entry = header.get(name)
        if entry is None or entry["dtype"] != "F32":
            continue
        first, last = cast("tuple[int, int]", entry["data_offsets"])
        flat = np.frombuffer(data[begin + first : begin + last], dtype="<f4")
        found[name] = flat.reshape(cast("list[int]", entry["shape"])).astype(np.float32)
    return found


__all__ = ["FakeModel", "read_tensors"]
