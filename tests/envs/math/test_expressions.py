"""Exact numbers, expressions and the two calculators."""

from __future__ import annotations

import contextlib
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.math.calculator import calculate, calculate_one, read_operation
from agentgym.envs.math.expressions import (
    Expression,
    Number,
    Operation,
    evaluate,
    format_expression,
    operands,
    operations,
    parse,
)
from agentgym.envs.math.rationals import format_number, parse_number
from agentgym.errors import ToolError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1776", Fraction(1776)),
        (" -7/3 ", Fraction(-7, 3)),
        ("14/6", Fraction(7, 3)),  # unreduced is the same number
        ("0.25", Fraction(1, 4)),
        (".5", Fraction(1, 2)),
        ("+3", Fraction(3)),
        ("−3", Fraction(-3)),  # the typographic minus sign
        ("007", Fraction(7)),
    ],
)
def test_parse_number_reads_exact_values(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "2+3",
        "1/0",
        "--3",
        "1e3",
        "3.",
        "x",
        "1,776",
        "٣",
        "2*3",
        "(3)",
        "1/2/3",
        "9" * 301,
    ],
)
def test_parse_number_takes_nothing_but_numbers(text: str) -> None:
    assert parse_number(text) is None


@given(st.fractions())
def test_format_number_is_read_back(value: Fraction) -> None:
    if max(abs(value.numerator), value.denominator) < 10**300:
        assert parse_number(format_number(value)) == value


# By hand: products before sums, from the left, signs bind to the number, ** before the sign.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12+37*48", Fraction(1788)),  # 37*48 = 1776
        ("20-5-3", Fraction(12)),  # (20-5)-3
        ("20-(5-3)", Fraction(18)),
        ("24/4/2", Fraction(3)),  # (24/4)/2
        ("7/3*(2-5)", Fraction(-7)),  # 7/3 * -3
        ("-2**2", Fraction(-4)),
        ("(-2)^2", Fraction(4)),
        ("2**-3", Fraction(1, 8)),
        ("2**3**2", Fraction(512)),  # 2**9
        ("0.1+0.2", Fraction(3, 10)),
        ("3 × 4 ÷ 6 − 1", Fraction(1)),
        ("5--3", Fraction(8)),
        ("-(1+2)*2", Fraction(-6)),
    ],
)
def test_evaluate_is_exact(text: str, value: Fraction) -> None:
    assert evaluate(parse(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2+", "number is missing"),
        ("(2+3", "not closed"),
        ("2)", "unexpected"),
        ("2x", "cannot read 'x'"),
        ("__import__('os')", "cannot read"),
        ("2**0.5", "whole number"),
        ("9**9**9", "exponent"),
        ("99**1000", "digits"),
        ("1" * 1001, "characters"),
        ("(" * 60 + "1" + ")" * 60, "nested"),
        ("-" * 60 + "1", "nested"),
    ],
)
def test_evaluate_refuses_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        evaluate(parse(text))


def _random_tree(rng: random.Random, size: int) -> Expression:
    if size == 0:
        return Number(value=Fraction(rng.randint(-20, 20)))
    left = rng.randrange(size)
    return Operation(
        symbol=rng.choice(["+", "-", "*", "/", "**"]),
        left=_random_tree(rng, left),
        right=_random_tree(rng, size - 1 - left),
    )


@given(st.integers(0, 10**6))
def test_format_expression_is_parsed_back(seed: int) -> None:
    rng = random.Random(seed)
    tree = _random_tree(rng, rng.randrange(6))
    assert parse(format_expression(tree)) == tree


def test_operations_come_after_those_inside_them() -> None:
    tree = parse("1+2*(3-4)")
    assert [format_expression(o) for o in operations(tree)] == ["3-4", "2*(3-4)", "1+2*(3-4)"]
    assert list(operands(tree)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("37*48", "1776"),
        ("12-1776", "-1764"),
        ("7/3", "7/3"),
        ("(7/3)-2", "1/3"),
        ("-5*3", "-15"),
        ("3--5", "8"),
        ("( -5 ) * ( 7 / 3 )", "-35/3"),
        ("0.5+.25", "3/4"),
        ("6×7", "42"),
    ],
)
def test_calculate_one_takes_one_operation(text: str, result: str) -> None:
    assert calculate_one(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "12+37*48",
        "7/3-2",
        "7",
        "-7",
        "",
        "1+2+3",
        "(1+2)",
        "2**3",
        "a+b",
        "1+",
        "1" * 800 + "+1",
        "1..2+3",
        "((7))+1",
    ],
)
def test_calculate_one_refuses_all_else(text: str) -> None:
    with pytest.raises(ToolError, match="one operation"):
        calculate_one(text)


def test_calculate_one_says_what_cannot_be_computed() -> None:
    with pytest.raises(ToolError, match="division by zero"):
        calculate_one("3/0")


def test_read_operation_returns_the_parts() -> None:
    assert read_operation("(7/3)÷-2") == Operation(
        symbol="/", left=Number(value=Fraction(7, 3)), right=Number(value=Fraction(-2))
    )


@given(st.text(alphabet="0123456789+-*/().^ ×", max_size=40))
def test_calculators_raise_tool_errors_only(text: str) -> None:
    for calculator in (calculate, calculate_one):
        with contextlib.suppress(ToolError):
            assert parse_number(calculator(text)) is not None
