"""The calculations in a worked solution: what a scripted expert asks the calculator."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

from agentgym.envs.math.expressions import Number, evaluate, parse
from agentgym.envs.math.rationals import parse_number
from agentgym.errors import ToolError

_MAX_STEPS = 12
"""Calculations of one solution at most; more would not fit into an episode."""
_ANNOTATION = re.compile(r"<<([^<>=]{1,200})=([^<>=]{1,60})>>")
_CLAUSE = re.compile(r"\n|[;:]|,(?!\d)|\.(?!\d)")
_PER_UNIT = re.compile(r"/\s*[A-Za-z]+")
"""`7 days/week * 5 weeks/month`: the units are no divisors."""
_TOKEN = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+|[-+*/×÷·()%=]|\bx\b(?=\s*[\d$€£(])")
_OPERATORS = {"×": "*", "÷": "/", "·": "*", "x": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One calculation.

    Example:
        Step(expression="35*3", value=Fraction(105))
    """

    expression: str
    """As the calculator takes it."""
    value: Fraction
    """Its exact value."""


def read_steps(solution: str) -> tuple[Step, ...]:
    """Return the calculations of a solution in order; each is right, and each comes once.

    Read are `<<48/2=24>>`, and equations in prose such as `35 × 3 = 105 kiwi`, words left out. What
    is not exactly equal on both sides is no step.

    Example:
        read_steps("He sold 48/2 = <<48/2=24>>24 clips.") is
        (Step(expression="48/2", value=Fraction(24)),)
    """
    annotated = [(left, right) for left, right in _ANNOTATION.findall(solution)]
    pairs = annotated or [
        pair for clause in _CLAUSE.split(_PER_UNIT.sub("", solution)) for pair in _equations(clause)
    ]
    found: dict[str, Step] = {}
    for left, right in pairs:
        step = _step(left, right)
        if step is not None:
            found.setdefault(step.expression, step)
    return tuple(found.values())[:_MAX_STEPS]


def _equations(clause: str) -> list[tuple[str, str]]:
    """Return the sides of each equation in a clause: `a = b = c` gives two."""
    sides = [" ".join(match[0] for match in _TOKEN.finditer(side)) for side in clause.split("=")]
    return list(itertools.pairwise(sides))


def _step(left: str, right: str) -> Step | None:
    target = re.match(r"\s*[$€£]?\s*(-?\s*[\d,]*\.?\d+)\s*(%?)", right)
    value = parse_number(target[1].replace(",", "").replace(" ", "")) if target else None
    written = [match[0] for match in _TOKEN.finditer(left)]
    tokens = [_OPERATORS.get(token, token.replace(",", "")) for token in written]
    if target is None or value is None:
        return None
    value = value / 100 if target[2] else value
    # Words before the calculation may hold numbers of their own: the longest tail that is right.
    for start in range(len(tokens)):
        expression = "".join(tokens[start:]).replace("%", "/100")
        if _evaluates_to(expression, value):
            return Step(expression=expression, value=value)
    return None


def _evaluates_to(expression: str, value: Fraction) -> bool:
    try:
        tree = parse(expression)
        return not isinstance(tree, Number) and evaluate(tree) == value
    except ToolError:
        return False
