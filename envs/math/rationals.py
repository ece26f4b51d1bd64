"""Exact numbers as text: reading, writing, and the bounds that keep them cheap.

Nothing here evaluates an expression; see `expressions`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from agentgym.errors import ToolError

MAX_DIGITS = 300
"""Digits of a numerator or denominator. Far above any task, and cheap to multiply."""

# `[0-9]` and not `\d`, which also matches digits of other scripts. The length bound keeps an
# agent's flood of digits from reaching `int`.
_NATURAL = rf"[0-9]{{1,{MAX_DIGITS}}}"
_NUMBER = re.compile(
    rf"\s*(?P<sign>[+-]?)\s*(?:(?P<numerator>{_NATURAL})\s*/\s*(?P<denominator>{_NATURAL})"
    rf"|(?P<whole>{_NATURAL})(?:\.(?P<digits>{_NATURAL}))?|\.(?P<bare>{_NATURAL}))\s*"
)


def parse_number(text: str) -> Fraction | None:
    """Return the exact value of a number; None if `text` is anything else.

    Integers, decimals and fractions of integers are numbers; expressions are not, so that the
    text of a task is never its own answer.

    Example:
        parse_number("-7/3") is Fraction(-7, 3), parse_number("0.25") is Fraction(1, 4),
        parse_number("2+3") and parse_number("1/0") are None.
    """
    match = _NUMBER.fullmatch(text.replace("\N{MINUS SIGN}", "-"))
    if match is None:
        return None
    sign = -1 if match["sign"] == "-" else 1
    if match["numerator"] is not None:
        denominator = int(match["denominator"])
        return sign * Fraction(int(match["numerator"]), denominator) if denominator else None
    digits = match["bare"] or match["digits"] or ""
    return sign * Fraction(int((match["whole"] or "") + digits), 10 ** len(digits))


def format_number(value: Fraction) -> str:
    """Return the shortest text that `parse_number` reads back: `-7`, `7/3`."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{value.numerator}/{value.denominator}"


def check_size(value: Fraction) -> Fraction:
    """Return `value`.

    Raises:
        ToolError: If it has more than `MAX_DIGITS` digits above or below the line.
    """
    # Three bits and a third make a digit; exact enough for a bound, and free of `str(int)`.
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_DIGITS * 10 // 3:
        raise ToolError(f"the result has more than {MAX_DIGITS} digits")
    return value
