"""The process that compares formulas: `python -m agentgym.envs.math.grading.symbolic_worker`.

It may hang, or be killed by the kernel, at any time: `processes` holds the other end and knows.
math-verify's parser reads and its `verify` judges, with two corrections: numbers are compared
relatively, never after rounding, and what `verify` calls equal must agree at sample points too.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from agentgym.envs.math.processes import serve

RELATIVE_TOLERANCE = 1e-6
"""Of a decimal against an irrational number: six digits were written, or it is another number."""
_EXACT_TOLERANCE = 1e-40
_DIGITS = 60
"""Digits of the numbers of exact expressions; of sums that cancel, sympy takes more by itself."""
_SAMPLE_POINTS = ((37, 29), (53, 31), (19, 41), (71, 13))
_STACK_DEPTH = 3000


class UnreadableError(Exception):
    """The text is no formula."""


def main() -> None:
    """Answer requests until the input ends."""
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(_STACK_DEPTH)
    serve(answer, prepare=lambda: importlib.import_module("math_verify"))


def _sympy() -> Any:
    return importlib.import_module("sympy")


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return the verdict on `{"gold": latex, "answer": latex or null}`.

    `verdict` is `equal`, `different`, `readable` (no answer was given), `bad_gold`, `bad_answer`
    or `too_large`.
    """
    try:
        gold = read(request["gold"])
    except UnreadableError:
        return {"verdict": "bad_gold"}
    if request["answer"] is None:
        return {"verdict": "readable"}
    try:
        found = read(request["answer"])
    except UnreadableError:
        return {"verdict": "bad_answer"}
    try:
        return {"verdict": "equal" if is_equal(gold, found) else "different"}
    except (MemoryError, RecursionError, OverflowError):
        return {"verdict": "too_large"}


def read(text: str) -> Any:
    """Return the sympy object of a formula.

    Raises:
        UnreadableError: If math-verify's parser cannot read all of it.
    """
    from latex2sympy2_extended import NormalizationConfig, latex2sympy

    config = NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=True,
        nits=False,
        boxed="none",
        equations=False,
    )
    try:
        return _with_imaginary_unit(latex2sympy(text, normalization_config=config))
    except Exception as error:
        raise UnreadableError(text) from error


def _with_imaginary_unit(value: Any) -> Any:
    """Return `value` with i as the imaginary unit, which the parser takes for a symbol."""
    sympy = _sympy()
    names = {symbol for symbol in getattr(value, "free_symbols", ()) if symbol.name == "i"}
    return value.subs(dict.fromkeys(names, sympy.I)) if names else value


def is_equal(gold: Any, found: Any) -> bool:
    """Return whether two sympy objects have one value."""
    from math_verify import verify

    sympy = _sympy()
    if isinstance(gold, sympy.MatrixBase) and isinstance(found, sympy.MatrixBase):
        return gold.shape == found.shape and all(
            is_equal(left, right) for left, right in zip(gold, found, strict=True)
        )
    if _is_number(gold) and _is_number(found):
        return _same_number(gold, found)
    try:
        verdict = verify(gold, found, strict=True, timeout_seconds=0, raise_on_error=True)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - sympy raises anything; a comparison that fails shows nothing
        verdict = False
    return bool(verdict) and _agrees_at_samples(gold, found)


def _is_number(value: Any) -> bool:
    sympy = _sympy()
    return isinstance(value, sympy.Expr) and not value.free_symbols and bool(value.is_number)


def _same_number(gold: Any, found: Any) -> bool:
    sympy = _sympy()
    exact_gold, exact_found = gold.doit(), found.doit()
    if exact_gold.is_Rational and exact_found.is_Rational:
        return bool(exact_gold == exact_found)
    has_decimal = bool(exact_gold.atoms(sympy.Float) or exact_found.atoms(sympy.Float))
    if not has_decimal and exact_gold == exact_found:
        return True
    return _is_close(
        exact_gold, exact_found, RELATIVE_TOLERANCE if has_decimal else _EXACT_TOLERANCE
    )


def _is_close(gold: Any, found: Any, tolerance: float) -> bool:
    """Return whether |a - b| <= tolerance * max(|a|, |b|), worked out to many digits."""
    sympy = _sympy()
    left, right = (sympy.N(_rational_decimals(value), _DIGITS) for value in (gold, found))
    if not (left.is_finite and right.is_finite):
        return bool(left == right)
    size = max(abs(left), abs(right))
    return bool(size == 0 or abs(left - right) <= tolerance * size)


def _rational_decimals(value: Any) -> Any:
    """Return `value` with its decimals as the exact fractions that were written."""
    sympy = _sympy()
    return value.xreplace(
        {number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)}
    )


def _agrees_at_samples(gold: Any, found: Any) -> bool:
    """Return False if two formulas differ somewhere; True where they cannot be worked out."""
    sympy = _sympy()
    if not (isinstance(gold, sympy.Expr) and isinstance(found, sympy.Expr)):
        return True
    symbols = sorted(gold.free_symbols | found.free_symbols, key=str)
    for shift in range(len(_SAMPLE_POINTS)):
        point = {
            # Past the fourth symbol the points repeat, larger by a whole number.
            symbol: sympy.Rational(*_SAMPLE_POINTS[(i + shift) % len(_SAMPLE_POINTS)]) + i
            for i, symbol in enumerate(symbols)
        }
        left, right = gold.subs(point).doit(), found.subs(point).doit()
        if _is_number(left) and _is_number(right) and not _same_number(left, right):
            return False
    return True


if __name__ == "__main__":
    main()
