r"""Numbers in LaTeX, exactly: `-\frac{1}{2}`, `2\frac{1}{3}`, `0.\overline{3}`, `3.2\times10^{5}`,
and sums and products of them that are still to be worked out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from agentgym.envs.math.expressions import evaluate, parse
from agentgym.envs.math.rationals import parse_number
from agentgym.errors import ToolError

_DIGITS = r"[0-9]{1,300}"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]{{0,300}})?|\.{_DIGITS})"
_SIGN = r"(?P<sign>[-+]?)\s*"
_FRACTION = re.compile(
    rf"{_SIGN}(?P<whole>{_DIGITS})?\s*\\frac\{{\s*(?P<n>[-+]?{_DIGITS})\s*\}}\{{\s*(?P<d>[-+]?{_DIGITS})\s*\}}"
)
_MIXED = re.compile(rf"{_SIGN}(?P<whole>{_DIGITS})\s+(?P<n>{_DIGITS})\s*/\s*(?P<d>{_DIGITS})")
_SLASH = re.compile(rf"{_SIGN}(?P<whole>)(?P<n>{_DIGITS})\s*/\s*(?P<d>[-+]?{_DIGITS})")
_REPEATING = re.compile(
    r"([-+]?)\s*([0-9]{0,50})\.([0-9]{0,50})(?:\\(?:overline|bar|dot)\{([0-9]{1,50})\})(?:\\ldots|\.\.\.)?"
)
_SCIENTIFIC = re.compile(
    rf"([-+]?\s*{_DECIMAL})\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*([-+]?\d{{1,3}})\s*\}}?|[eE]([-+]?\d{{1,3}}))"
)
_PLAIN = re.compile(rf"([-+]?)\s*({_DECIMAL})")
_ARITHMETIC = re.compile(r"[-+*/^(){}\[\]0-9.\s]+")
_DECIMAL_POINT = re.compile(r"\.[0-9]+(?!.*\\overline)")
_FLAT_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeral:
    """An exact number as it was written."""

    value: Fraction
    """Its value."""
    is_finished: bool = True
    """False if a sum, a product or divisions of numbers were written instead of their result."""
    is_decimal: bool = False
    """True if it has digits after a point, so that it may stand for an irrational number."""


def read(text: str) -> Numeral | None:
    r"""Return the number that normalised text is; None if it is anything else.

    Example:
        read("2\frac{1}{3}").value is Fraction(7, 3); read("3+4") is 7, not finished.
    """
    text = text.strip()
    value, is_proper = _read_fraction(text)
    for reader in (_read_plain, _read_repeating, _read_scientific):
        value = value if value is not None else reader(text)
    if value is None:
        return _read_arithmetic(text)
    is_decimal = _DECIMAL_POINT.search(text) is not None
    return Numeral(value=value, is_finished=is_proper, is_decimal=is_decimal)


def is_finished(text: str) -> bool:
    """Return whether text is a number that needs no more work."""
    number = read(text)
    return number is not None and number.is_finished


def _read_plain(text: str) -> Fraction | None:
    match = _PLAIN.fullmatch(text)
    return parse_number(match[1] + match[2].rstrip(".")) if match else None


def _read_fraction(text: str) -> tuple[Fraction | None, bool]:
    """Return a fraction, and False if its whole part stands before no proper one: `9 9/1`."""
    match = _FRACTION.fullmatch(text) or _MIXED.fullmatch(text) or _SLASH.fullmatch(text)
    if match is None or int(match["d"]) == 0:
        return None, True
    part = Fraction(int(match["n"]), int(match["d"]))
    value = int(match["whole"] or 0) + part
    return -value if match["sign"] == "-" else value, not match["whole"] or 0 <= part < 1


def _read_repeating(text: str) -> Fraction | None:
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    sign, whole, head, period = match.groups()
    # 0.1\overline{6}: (16 - 1) / 90.
    scale = 10 ** len(head)
    value = Fraction(int((whole or "0") + head), scale) + Fraction(
        int(period), scale * (10 ** len(period) - 1)
    )
    return -value if sign == "-" else value


def _read_scientific(text: str) -> Fraction | None:
    match = _SCIENTIFIC.fullmatch(text)
    if match is None:
        return None
    mantissa = _read_plain(match[1])
    return mantissa * Fraction(10) ** int(match[2] or match[3]) if mantissa is not None else None


def _read_arithmetic(text: str) -> Numeral | None:
    text = re.sub(r"\\(?:times|cdot|ast)(?![a-zA-Z])", "*", text).replace(r"\div", "/")
    for _ in range(5):  # nested fractions, from the inside
        text = _FLAT_FRACTION.sub(r"((\1)/(\2))", text)
    if not _ARITHMETIC.fullmatch(text) or not re.search(r"[0-9]", text):
        return None
    # Braces are left around exponents only; `2{3}` is no product.
    text = re.sub(r"\^\{([^{}]*)\}", r"^(\1)", text)
    if re.search(r"[{}\[\]]|[0-9)]\s*\(|\)\s*[0-9]|[0-9]\s+[0-9.]", text):
        return None
    try:
        value = evaluate(parse(text))
    except ToolError:  # not arithmetic after all, or too large: the symbolic judge may know
        return None
    unfinished = re.search(r"[0-9)]\s*[-+*]\s*[-+(0-9.]", text)
    # Two divisions, a negative power being one, make a product: 12/(1/37).
    divisions = re.findall(r"/|\^\s*\(?\s*-", text)
    return Numeral(value=value, is_finished=unfinished is None and len(divisions) < 2)
