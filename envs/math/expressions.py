"""Expressions of exact rationals: a tree, its parser, its evaluator and its text.

The parser is a small recursive descent over `+ - * / ** ( )` and numbers; no `eval`, no names, no
functions. Bounds on length, depth and size make any text cheap.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from agentgym.envs.math.rationals import check_size, format_number, parse_number
from agentgym.errors import ToolError

MAX_CHARS = 1000
"""Longer text is refused before it is read."""
MAX_DEPTH = 50
"""Nesting of parentheses and signs; far below Python's own recursion limit."""
MAX_EXPONENT = 1000
"""Size of an exponent. The result is bounded apart from it."""

_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<symbol>\*\*|[-+*/^()]))")
_READ_AS = {"×": "*", "·": "*", "÷": "/", "\N{MINUS SIGN}": "-"}

_ARITHMETIC: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 3}
_ATOM = 4
"""Precedence of what needs no parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A leaf.

    Example:
        Number(value=Fraction(48))
    """

    value: Fraction
    """Exact value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A binary operation on two trees.

    Example:
        37*48 is Operation(symbol="*", left=Number(value=Fraction(37)),
        right=Number(value=Fraction(48)))
    """

    symbol: str
    """One of `+ - * / **`."""
    left: Expression
    """First operand."""
    right: Expression
    """Second operand."""

    def __post_init__(self) -> None:
        if self.symbol not in _PRECEDENCE:
            raise ValueError(f"'symbol' must be one of {sorted(_PRECEDENCE)} (got {self.symbol!r})")


Expression = Number | Operation


def apply(symbol: str, left: Fraction, right: Fraction) -> Fraction:
    """Return the exact value of `left symbol right`.

    Raises:
        ToolError: If it divides by zero, is not rational, or is too large; nothing large is
            computed first.
    """
    if symbol in _ARITHMETIC:
        return check_size(_ARITHMETIC[symbol](left, right))
    if symbol == "/":
        if right == 0:
            raise ToolError("division by zero")
        return check_size(left / right)
    return _power(left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("an exponent must be a whole number")
    power = exponent.numerator
    if abs(power) > MAX_EXPONENT:
        raise ToolError(f"an exponent must lie between -{MAX_EXPONENT} and {MAX_EXPONENT}")
    if base == 0 and power < 0:
        raise ToolError("division by zero")
    # The size is known before the power is taken.
    bits = max(abs(base.numerator), base.denominator).bit_length()
    if bits > 1:
        check_size(Fraction(1 << min((bits - 1) * abs(power), MAX_EXPONENT * 8)))
    return check_size(base**power)


def evaluate(expression: Expression) -> Fraction:
    """Return the exact value.

    Raises:
        ToolError: As `apply`.
    """
    if isinstance(expression, Number):
        return expression.value
    return apply(expression.symbol, evaluate(expression.left), evaluate(expression.right))


def operations(expression: Expression) -> Iterator[Operation]:
    """Yield the operations, each after those inside it: an order in which to compute."""
    if isinstance(expression, Operation):
        yield from operations(expression.left)
        yield from operations(expression.right)
        yield expression


def operands(expression: Expression) -> Iterator[Fraction]:
    """Yield the numbers of the leaves, from left to right."""
    if isinstance(expression, Number):
        yield expression.value
    else:
        yield from operands(expression.left)
        yield from operands(expression.right)


def literal(value: Fraction) -> str:
    """Return a number as an operand is written: `48`, `(-5)`, `(7/3)`."""
    text = format_number(value)
    return text if text.isdigit() else f"({text})"


def format_expression(expression: Expression) -> str:
    """Return the text without spaces and with the fewest parentheses; `parse` gives it back."""
    return _format(expression)[0]


def _format(expression: Expression) -> tuple[str, int]:
    if isinstance(expression, Number):
        return literal(expression.value), _ATOM
    rank = _PRECEDENCE[expression.symbol]
    left, left_rank = _format(expression.left)
    right, right_rank = _format(expression.right)
    # Operations are read from the left, so an equal rank on the right needs parentheses; of
    # powers, both sides do.
    left = f"({left})" if left_rank < rank or left_rank == rank == _PRECEDENCE["**"] else left
    right = f"({right})" if right_rank <= rank else right
    return f"{left}{expression.symbol}{right}", rank


def parse(text: str) -> Expression:
    """Return the tree of `text`; `*` and `/` before `+` and `-`, from the left.

    A sign directly before a number belongs to it (`-5`); `^` is read as `**`; `(7/3)` is an
    operation, which evaluates to the fraction.

    Raises:
        ToolError: If it is not such an expression; the message names the place.
    """
    if len(text) > MAX_CHARS:
        raise ToolError(f"an expression has at most {MAX_CHARS} characters (got {len(text)})")
    parser = _Parser(_tokens(text))
    expression = parser.sum(0)
    if parser.peek():
        raise ToolError(f"unexpected {parser.peek()!r} after a complete expression")
    return expression


def _tokens(text: str) -> list[str]:
    for shown, meant in _READ_AS.items():
        text = text.replace(shown, meant)
    text, position, found = text.rstrip(), 0, list[str]()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position:].lstrip()
            raise ToolError(f"cannot read {rest[:20]!r}: numbers, + - * / and parentheses only")
        symbol = match["number"] or match["symbol"]
        found.append("**" if symbol == "^" else symbol)
        position = match.end()
    if not found:
        raise ToolError("the expression is empty")
    return found


class _Parser:
    """Recursive descent over tokens; each level gets the depth so far."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        token = self.peek()
        self._position += 1
        return token

    def sum(self, depth: int) -> Expression:
        left = self._product(depth)
        while self.peek() in {"+", "-"}:
            left = Operation(symbol=self._take(), left=left, right=self._product(depth))
        return left

    def _product(self, depth: int) -> Expression:
        left = self._signed(depth)
        while self.peek() in {"*", "/"}:
            left = Operation(symbol=self._take(), left=left, right=self._signed(depth))
        return left

    def _signed(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ToolError(f"an expression may be nested {MAX_DEPTH} deep")
        if self.peek() not in {"+", "-"}:
            return self._power(depth)
        is_negative = self._take() == "-"
        inner = self._signed(depth + 1)
        if not is_negative:
            return inner
        if isinstance(inner, Number):
            return Number(value=-inner.value)
        return Operation(symbol="-", left=Number(value=Fraction(0)), right=inner)

    def _power(self, depth: int) -> Expression:
        base = self._atom(depth)
        if self.peek() != "**":
            return base
        self._take()
        return Operation(symbol="**", left=base, right=self._signed(depth + 1))

    def _atom(self, depth: int) -> Expression:
        token = self._take()
        if token == "(":
            inner = self.sum(depth + 1)
            if self._take() != ")":
                raise ToolError("a parenthesis is not closed")
            return inner
        value = parse_number(token)
        if value is None:
            raise ToolError(
                f"expected a number (got {token!r})" if token else "a number is missing"
            )
        return Number(value=value)
