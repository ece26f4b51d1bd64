"""Values across the border: built-in types come back equal, all else comes back as nothing.

F25, *bound on size, not on work, in a shared loop*: what an agent's code returns is read in a
bounded number of steps, whatever hashes it chose.
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.sandbox.inside import values as values_module
from agentgym.sandbox.inside.session import as_json
from agentgym.sandbox.inside.values import MOST_WORK, Opaque, decode, encode

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


@given(values)
def test_built_in_values_come_back_equal_and_of_the_same_type(value: object) -> None:
    text = as_json(encode(value))
    assert text.isascii()
    back = decode(json.loads(text))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, "a"), '{"!":"tuple","v":[1,"a"]}'),
        ({1: [2.5, None]}, '{"!":"dict","v":[[1,[2.5,null]]]}'),
        (b"\x00\xff", '{"!":"bytes","v":"00ff"}'),
        (math.inf, "Infinity"),
        (True, "true"),
        ("ä\n", '"\\u00e4\\n"'),
        (object(), '{"!":"opaque","v":"object"}'),
    ],
)
def test_encoding_by_hand(value: object, text: str) -> None:
    assert as_json(encode(value)) == text


def test_not_a_number_crosses() -> None:
    assert math.isnan(decode(json.loads(as_json(encode(math.nan)))))


class Yes(int):
    """Claims to equal everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_a_class_that_equals_everything_loses_that_on_the_way() -> None:
    back = decode(json.loads(as_json(encode([Yes(3)]))))
    assert type(back[0]) is int
    assert back == [3]
    assert back != [4]


def test_what_cannot_cross_equals_nothing() -> None:
    back = decode(encode(lambda: 1))
    assert isinstance(back, Opaque)
    assert back != back
    assert repr(back) == "<a value of type function>"


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        {"!": "no-such-kind", "v": []},
        {"v": 1},
        {"!": "bytes", "v": "zz"},
    ],
    ids=["kind", "no kind", "bytes"],
)
def test_what_encode_does_not_write_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"encoded|hexadecimal"):
        decode(data)


# ----------------------------------------------------------------------- work to read (F25)

MODULUS = 2**61 - 1
"""Integers that differ by it have one hash."""


def tupled(number: int, bits: int) -> dict[str, object]:
    """One of 2 ** bits tuples with one hash: hash(-1) is hash(-2)."""
    return {"!": "tuple", "v": [-1 - (number >> bit & 1) for bit in range(bits)]}


HARD_VALUES = {
    "integers with one hash": {"!": "set", "v": [n * MODULUS for n in range(20_000)]},
    "keys with one hash": {"!": "dict", "v": [[n * MODULUS, 0] for n in range(20_000)]},
    "tuples with one hash": {"!": "frozenset", "v": [tupled(n, 12) for n in range(4096)]},
    "many sets of few": [{"!": "set", "v": [n * MODULUS for n in range(100)]} for _ in range(1000)],
    "one item many times": {"!": "set", "v": [{"!": "bytes", "v": "00" * 5000}] * 500},
    "more items than are read": [0] * (MOST_WORK + 1),
}


@pytest.mark.parametrize("kind", HARD_VALUES)
def test_f25_a_value_that_takes_too_much_work_is_refused_before_the_work(kind: str) -> None:
    """Refused by a count, so no clock is asked; the sets are never made."""
    with pytest.raises(ValueError, match="too much work"):
        decode(HARD_VALUES[kind])


def test_f25_no_two_equal_hashes_are_compared_more_often_than_the_bound_says() -> None:
    """Whatever passes: 3 tuples of 2 steps and a number each, 3 * (3 + 3 + 3) = 27 of them."""
    counted = {"!": "set", "v": [tupled(n, 2) for n in range(3)]}
    assert decode(counted) == {(-1, -1), (-2, -1), (-1, -2)}
    reader = values_module._Reader()
    reader.read(counted, 0)
    assert reader.work == 1 + 3 * 3 + 27


@pytest.mark.parametrize(
    "value",
    [
        set(range(20_000)),
        {(x, y) for x in range(-50, 50) for y in range(-50, 50)},
        dict.fromkeys(range(20_000), "x"),
        ["a" * 30] * 20_000,
    ],
    ids=["numbers", "a grid around zero", "dict", "texts"],
)
def test_f25_large_values_of_ordinary_functions_are_read(value: object) -> None:
    assert decode(json.loads(as_json(encode(value)))) == value


def test_deep_data_is_refused_not_crashed_on() -> None:
    data: object = 1
    for _ in range(500):
        data = [data]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(data)
