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
MAX_HASHED = 5000  # more keys with one hash, which an agent can choose, would stop the reader
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


def decode(data: Any, depth: int = 0) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        ValueError: If `data` is not what `encode` writes.
    """
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply")
    if isinstance(data, list):
        return [decode(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    kind, inner = data.get(TAG), data.get("v")
    if kind in ("set", "frozenset", "dict") and len(inner or ()) > MAX_HASHED:
        raise ValueError(f"a {kind} of more than {MAX_HASHED} items")
    if kind in ("tuple", "set", "frozenset") and isinstance(inner, list):
        items = [decode(item, depth + 1) for item in inner]
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    if kind == "dict" and isinstance(inner, list):
        return {decode(key, depth + 1): decode(item, depth + 1) for key, item in inner}
    if kind == "bytes" and isinstance(inner, str):
        return bytes.fromhex(inner)
    if kind == "complex" and isinstance(inner, list):
        return complex(float(inner[0]), float(inner[1]))
    if kind == "opaque":
        return Opaque(str(inner))
    raise ValueError(f"not an encoded value: {str(data)[:80]}")
