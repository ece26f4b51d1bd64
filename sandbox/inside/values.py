"""Plain Python values as JSON and back, so that nothing of an agent's classes crosses a border.

`encode` runs where the value is, `decode` on the other side; what is decoded is made of built-in
types alone, whatever `__eq__` or `__hash__` the original had.

    None, bool, int, float, str, list        themselves
    tuple, set, frozenset                    {"!": "tuple", "v": [...]}
    dict                                     {"!": "dict", "v": [[key, value], ...]}
    bytes                                    {"!": "bytes", "v": "00ff"}
    complex                                  {"!": "complex", "v": [0.0, 1.0]}
    anything else                            {"!": "opaque", "v": "its type's name"}
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes time that each session would pay
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 200
MOST_WORK = 300_000
"""Steps in which a value must be readable: one for each item, and for the items of a set or dict
that share a hash, which an agent can choose, as many as comparing each with each would take."""
TEXT_STEP = 16
"""Characters, bytes or machine words that are compared in one step."""
TAG = "!"


class Opaque:
    """A value that cannot cross: equal to nothing, not even to itself."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<a value of type {self.type_name}>"


def encode(value: Any, depth: int = 0) -> Any:
    """Return `value` in terms of JSON's types.

    Raises:
        ValueError: If it is nested too deeply, or contains itself.
    """
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [encode(item, depth + 1) for item in value]
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {TAG: kind.__name__, "v": [encode(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]
        return {TAG: "dict", "v": pairs}
    if isinstance(value, (bytes, bytearray)):
        return {TAG: "bytes", "v": bytes(value).hex()}
    if isinstance(value, complex):
        return {TAG: "complex", "v": [value.real, value.imag]}
    return {TAG: "opaque", "v": type(value).__name__[:80]}


def decode(data: Any) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        ValueError: If `data` is not what `encode` writes, or reading it takes too much work.
    """
    return _Reader().read(data, 0)


class _Reader:
    """Reads one value, and counts the steps that it and its comparison with another take."""

    def __init__(self) -> None:
        self.work = 0

    def spend(self, steps: int) -> None:
        """Count steps; raise ValueError if they are too many."""
        self.work += steps
        if self.work > MOST_WORK:
            raise ValueError("reading the value takes too much work")

    def read(self, data: Any, depth: int) -> Any:
        """Return the value of one part."""
        if depth > MAX_DEPTH:
            raise ValueError("the value is nested too deeply")
        self.spend(1)
        if isinstance(data, list):
            return [self.read(item, depth + 1) for item in data]
        if not isinstance(data, dict):
            if isinstance(data, str):
                self.spend(len(data) // TEXT_STEP)
            return data
        kind, inner = data.get(TAG), data.get("v")
        if kind == "tuple" and isinstance(inner, list):
            return tuple([self.read(item, depth + 1) for item in inner])
        if kind in ("set", "frozenset") and isinstance(inner, list):
            items = self.read_hashed(inner, depth)
            return set(items) if kind == "set" else frozenset(items)
        if kind == "dict" and isinstance(inner, list):
            keys = self.read_hashed([key for key, _ in inner], depth)
            return dict(zip(keys, [self.read(item, depth + 1) for _, item in inner]))  # noqa: B905
        if kind == "bytes" and isinstance(inner, str):
            self.spend(len(inner) // TEXT_STEP)
            return bytes.fromhex(inner)
        if kind == "complex" and isinstance(inner, list):
            return complex(float(inner[0]), float(inner[1]))
        if kind == "opaque":
            return Opaque(str(inner))
        raise ValueError(f"not an encoded value: {str(data)[:80]}")

    def read_hashed(self, data: list[Any], depth: int) -> list[Any]:
        """Return items of a set or keys of a dict, which may be put into one after this."""
        items: list[Any] = []
        costs: list[tuple[int, int]] = []
        for part in data:
            before = self.work
            items.append(self.read(part, depth + 1))
            costs.append((hash(items[-1]), self.work - before))
        costs.sort()
        first = 0
        for at in range(1, len(costs) + 1):
            if at == len(costs) or costs[at][0] != costs[first][0]:
                if at - first > 1:
                    self.spend((at - first) * sum([cost for _, cost in costs[first:at]]))
                first = at
        return items
