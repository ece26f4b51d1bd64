r"""What an answer says, as a tree: exact numbers, words, symbols, ratios, and collections of them.

`read_value` reads the shape (sets, tuples, intervals, unions, lists, plus-minus, ratios) and all
numbers itself, exactly; what is left are formulas, kept as LaTeX for the symbolic judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from agentgym.envs.math.grading import numerals
from agentgym.envs.math.grading.latex import is_balanced, matching_brackets, split_outside
from agentgym.envs.math.grading.units import read_unit

MAX_CHARS = 2000
"""Longer answers are not read: no gold is near it, and reading takes time."""
MAX_ITEMS = 200
"""Items of one collection."""
MAX_FACTORS = 3
"""Letters of a word that may be a product of variables."""
_MAX_DEPTH = 8


class Shape(StrEnum):
    """Kind of a collection. A tuple or an interval is named by its two brackets."""

    LIST = "list"
    SET = "set"
    UNION = "union"
    PARENTHESES = "()"
    OPEN_CLOSED = "(]"
    CLOSED_OPEN = "[)"
    BRACKETS = "[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    r"""A rational number.

    Example:
        50\% is Exact(value=Fraction(50), is_percent=True)
    """

    value: Fraction
    """The number itself; of `50\\%`, 50."""
    is_percent: bool = False
    """True if a percent sign follows."""
    unit: str = ""
    """Unit in its canonical form where it is a known one; empty otherwise."""
    is_finished: bool = True
    """False if sums or products of numbers are still to be worked out."""
    is_decimal: bool = False
    """True if it has digits after a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Letters and blanks only, such as a name or a choice."""

    text: str
    """Case folded."""
    symbols: str = ""
    """Its letters where it may be a product of variables, such as `xy`; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """LaTeX that the symbolic judge has to compare."""

    text: str
    """Normalised LaTeX."""
    unit: str = ""
    """Unit in its canonical form where it is a known one; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """`3:4`, `1:2:3`, or a time of day."""

    parts: tuple[Fraction, ...]
    """[part] the numbers, two at least."""
    is_clock: bool
    """True if it reads as a time: two digits after each colon."""
    half: str = ""
    """`a` or `p` of a time of day; empty if not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    r"""Several values.

    Example:
        \{1,2\} is Collection(shape=Shape.SET, items=(Exact(...), Exact(...)))
    """

    shape: Shape
    """What holds them together."""
    items: tuple[Value, ...]
    """[item] the values in the order written."""
    names: tuple[str, ...] = ()
    """[item] what each is said to be, as in `x=1, y=2`; empty unless all have names that differ."""


Value = Exact | Words | Formula | Ratio | Collection

_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_SEPARATOR = re.compile(r"\s*[,;]\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(
    r"(?<![\d.,] )(?<![\d.,^_])\d{1,3}(?: \d{3})+(?![\d/]|\s+[\d/]|\s*/)"
)
_NAME = re.compile(r"\s*([a-zA-Z](?:_\{?\w+\}?|')?)\s*=")
_LEFT_SIDE = re.compile(
    r"^\(?[a-zA-Z](?:_\{?\w+\}?|')?(?:\s*\([a-zA-Z](?:\s*,\s*[a-zA-Z])*\))?\)?\s*(?:=|\\in(?![a-zA-Z]))\s*(?=\S)"
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])\s*")
_RATIO = re.compile(
    r"(?P<parts>\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+)\s*(?:(?P<half>[ap])\.?\s*m\.?)?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"\d{1,2}(?::[0-5]\d){1,2}")
_WORDS = re.compile(r"\(?([a-zA-Z](?:[a-zA-Z\s'-]*[a-zA-Z])?)\)?")
_SHORT_WORDS = frozenset({"no", "on", "yes", "one", "two", "six", "ten", "odd"})
"""Words of few letters that answer something."""
_EMPTY_SET = re.compile(r"\\emptyset|\\\{\s*\\\}|\{\s*\}|empty set|no solutions?", re.IGNORECASE)
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}")
"""Two words in a row: a parser would make a product of all their letters."""
_SAYS_SOMETHING = re.compile(r"[0-9a-zA-Z]")
_SHAPES = {
    "()": Shape.PARENTHESES,
    "(]": Shape.OPEN_CLOSED,
    "[)": Shape.CLOSED_OPEN,
    "[]": Shape.BRACKETS,
}


def read_values(text: str) -> tuple[Value, ...]:
    """Return the readings of normalised text: one, or two where commas may group digits.

    `1,234` is a number and may be a list; nothing is returned for text without meaning.
    """
    if len(text) > MAX_CHARS or not is_balanced(text):
        return ()
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)
    readings = [_without_groups(text), text]
    values = (_read(reading, 0) for reading in dict.fromkeys(readings))
    return tuple(value for value in values if value is not None)


def _without_groups(text: str) -> str:
    """Return text whose digit groups are joined, except inside brackets, where commas separate."""
    parts = split_outside(text, _THOUSANDS)
    if len(parts) == 1:
        return text
    joined, position = list[str](), 0
    for part in parts[:-1]:
        match = _THOUSANDS.match(text, position + len(part))
        assert match is not None  # split_outside cut there
        joined += [part, match[0].replace(",", "")]
        position = match.end()
    return "".join([*joined, parts[-1]])


def _read(text: str, depth: int) -> Value | None:
    text = text.strip()
    if depth > _MAX_DEPTH or not text:
        return None
    if _EMPTY_SET.fullmatch(text):
        return Collection(shape=Shape.SET, items=())
    for shape, separator in ((Shape.UNION, _UNION), (Shape.LIST, _SEPARATOR)):
        parts = split_outside(text, separator)
        if len(parts) > 1:
            return _collection(shape, parts, depth)
    text = _LEFT_SIDE.sub("", text, count=1)
    return _read_plus_minus(text, depth) or _read_bracketed(text, depth) or _read_leaf(text)


def _collection(shape: Shape, parts: list[str], depth: int) -> Value | None:
    items = [_read(part, depth + 1) for part in parts[: MAX_ITEMS + 1]]
    if len(items) > MAX_ITEMS or any(item is None for item in items):
        return None
    found: list[Value] = []
    for item in items:
        # The two values of a plus-minus join the list they stand in.
        if shape is Shape.LIST and isinstance(item, Collection) and item.shape is Shape.LIST:
            found += item.items
        elif item is not None:
            found.append(item)
    names = _names(parts) if shape is Shape.LIST and len(found) == len(parts) else ()
    return Collection(shape=shape, items=tuple(found), names=names)


def _names(parts: list[str]) -> tuple[str, ...]:
    """Return the left sides of `x=1, y=2`; nothing where one lacks or comes twice."""
    names = tuple(match[1] for match in map(_NAME.match, parts) if match is not None)
    return names if len(set(names)) == len(parts) else ()


def _read_plus_minus(text: str, depth: int) -> Value | None:
    if _PLUS_MINUS.search(text) is None:
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return _collection(Shape.LIST, [upper, lower], depth)


def _read_bracketed(text: str, depth: int) -> Value | None:
    r"""Read `(1,2]`, `\{1,2\}`; brackets around a single value are dropped, of a set too."""
    start = 1 if text.startswith("\\{") else 0
    if text[start] not in "([{" or matching_brackets(text).get(start) != len(text) - 1:
        return None
    end = len(text) - 1
    inside = text[start + 1 : end - 1 if text[start] == "{" and text[end - 1] == "\\" else end]
    parts = split_outside(inside, _SEPARATOR)
    if len(parts) == 1:
        return _read(inside, depth + 1)
    shape = Shape.SET if text[start] == "{" else _SHAPES[text[start] + text[end]]
    return _collection(shape, parts, depth)


def _read_leaf(text: str) -> Value | None:
    ratio = _read_ratio(text)
    if ratio is not None:
        return ratio
    body, unit = read_unit(text)
    is_percent = unit == "%"
    number = numerals.read(body)
    if number is not None:
        return Exact(
            value=number.value,
            is_percent=is_percent,
            unit="" if is_percent else unit,
            is_finished=number.is_finished,
            is_decimal=number.is_decimal,
        )
    words = _WORDS.fullmatch(text)
    if words is not None:
        return _words(words[1])
    if _PROSE.search(body) or not _SAYS_SOMETHING.search(body):
        return None
    return Formula(text=body, unit=unit)


def _words(text: str) -> Words:
    folded, letters = " ".join(text.casefold().split()), "".join(text.split())
    is_product = (
        letters.isalpha()
        and letters.islower()
        and len(letters) <= MAX_FACTORS
        and letters not in _SHORT_WORDS
    )
    # A single letter may be a symbol in either case.
    return Words(text=folded, symbols=folded if len(folded) == 1 else letters * is_product)


def _read_ratio(text: str) -> Ratio | None:
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    parts = [part.strip() for part in match["parts"].split(":")]
    return Ratio(
        parts=tuple(Fraction(part) for part in parts),
        is_clock=_CLOCK.fullmatch(":".join(parts)) is not None,
        half=(match["half"] or "").casefold(),
    )
