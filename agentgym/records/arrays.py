"""Long tuples of numbers as short JSON values. `pack_*` write them, `unpack_*` read them.

A tuple is a JSON list, or a string `code:base64` of little-endian numbers (`u1`, `u2`, `u4`, `f4`),
or `{"runs": [value, count, …]}`; the writer takes the shortest that loses nothing.
"""

from __future__ import annotations

import array
import binascii
import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, cast

from agentgym.errors import RecordError

_SHORT = 4
"""Up to here a plain list is shortest, and easiest to read."""
# Code -> (typecode of array, bytes of one number, smallest value that does not fit).
_UNSIGNED = {"u1": ("B", 1, 2**8), "u2": ("H", 2, 2**16), "u4": ("I", 4, 2**32)}
_FLOAT = ("f4", "f", 4)
_BYTES_IN_BASE64 = 4 / 3
_CHARS_OF_A_RUN = 6
_CHARS_OF_A_NUMBER = 4
"""Typical lengths of `12,345,` and `-12,`: guesses that only choose between exact forms."""


def pack_ints(values: Sequence[int]) -> Any:
    """Return whole numbers (or booleans) as JSON."""
    if len(values) <= _SHORT:
        return [int(value) for value in values]
    lowest, highest = min(values), max(values)
    fits = (code for code, (_, _, bound) in _UNSIGNED.items() if lowest >= 0 and highest < bound)
    code = next(fits, None)
    width = _UNSIGNED[code][1] * _BYTES_IN_BASE64 if code is not None else _CHARS_OF_A_NUMBER
    # Runs can win only where values repeat; counting distinct ones first keeps token ids fast.
    if len(set(values)) * _CHARS_OF_A_RUN < width * len(values):
        runs = [(int(value), len(tuple(same))) for value, same in itertools.groupby(values)]
        if len(runs) * _CHARS_OF_A_RUN < width * len(values):
            return {"runs": list(itertools.chain.from_iterable(runs))}
    if code is None:
        return [int(value) for value in values]
    return _encode(code, array.array(_UNSIGNED[code][0], values))


def unpack_ints(value: Any) -> tuple[int, ...]:
    """Return what `pack_ints` wrote.

    Raises:
        RecordError: If `value` is none of its forms.
    """
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if not all(isinstance(item, int) for item in items):
            raise RecordError(f"whole numbers are expected (got {items[:_SHORT]!r})")
        return tuple(items)
    if isinstance(value, dict):
        runs = cast("dict[str, Any]", value).get("runs")
        if not isinstance(runs, list) or not all(
            isinstance(i, int) for i in cast("list[Any]", runs)
        ):
            raise RecordError(f"runs are expected (got {value!r})")
        numbers = cast("list[int]", runs)
        if len(numbers) % 2 or any(count < 1 for count in numbers[1::2]):
            raise RecordError(f"runs are pairs of a value and a count >= 1 (got {numbers!r})")
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return tuple(
            itertools.chain.from_iterable(itertools.repeat(n, count) for n, count in pairs)
        )
    code, data = _decode(value)
    if code not in _UNSIGNED:
        raise RecordError(f"a code of {sorted(_UNSIGNED)!r} is expected (got {code!r})")
    return tuple(_array(_UNSIGNED[code][0], data))


def unpack_bools(value: Any) -> tuple[bool, ...]:
    """Return what `pack_ints` wrote of booleans.

    Raises:
        RecordError: If `value` is none of its forms, or has other numbers than 0 and 1.
    """
    numbers = unpack_ints(value)
    if not set(numbers) <= {0, 1}:
        raise RecordError(f"booleans are expected (got {numbers[:_SHORT]!r})")
    return tuple(map(bool, numbers))


def pack_floats(values: Sequence[float]) -> Any:
    """Return numbers as JSON: as float32 where that loses nothing, else in full."""
    if len(values) > _SHORT:
        packed = array.array(_FLOAT[1], values)
        if packed.tolist() == list(values):
            return _encode(_FLOAT[0], packed)
    return [pack_float(value) for value in values]


def unpack_floats(value: Any) -> tuple[float, ...]:
    """Return what `pack_floats` wrote.

    Raises:
        RecordError: If `value` is none of its forms.
    """
    if isinstance(value, list):
        return tuple(unpack_float(item) for item in cast("list[Any]", value))
    code, data = _decode(value)
    if code != _FLOAT[0]:
        raise RecordError(f"the code {_FLOAT[0]!r} is expected (got {code!r})")
    return tuple(_array(_FLOAT[1], data))


def pack_float(value: float) -> Any:
    """Return one number as JSON, which has no word for what is not finite: a string then."""
    return value if math.isfinite(value) else repr(float(value))


def unpack_float(value: Any) -> float:
    """Return what `pack_float` wrote.

    Raises:
        RecordError: If `value` is not a number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise RecordError(f"a number is expected (got {value!r})")


def _encode(code: str, values: array.array[Any]) -> str:
    if sys.byteorder == "big":
        values.byteswap()
    return f"{code}:{binascii.b2a_base64(values.tobytes(), newline=False).decode()}"


def _decode(value: Any) -> tuple[str, bytes]:
    if not isinstance(value, str):
        raise RecordError(f"an array is expected (got {value!r})")
    code, _, text = value.partition(":")
    try:
        return code, binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise RecordError(f"an array is not base64 ({error})") from None


def _array(typecode: str, data: bytes) -> array.array[Any]:
    values: array.array[Any] = array.array(typecode)
    try:
        values.frombytes(data)
    except ValueError:
        raise RecordError(f"an array has {len(data)} bytes, not a whole number of items") from None
    if sys.byteorder == "big":
        values.byteswap()
    return values
