"""Values across the border: built-in types come back equal, all else comes back as nothing."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.sandbox.inside.session import as_json
from agentgym.sandbox.inside.values import MAX_HASHED, Opaque, decode, encode

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
        {"!": "set", "v": list(range(MAX_HASHED + 1))},
        {"!": "dict", "v": [[n, n] for n in range(MAX_HASHED + 1)]},
    ],
    ids=["kind", "no kind", "bytes", "big set", "big dict"],
)
def test_what_encode_does_not_write_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"encoded|hexadecimal|items"):
        decode(data)


def test_deep_data_is_refused_not_crashed_on() -> None:
    data: object = 1
    for _ in range(500):
        data = [data]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(data)
