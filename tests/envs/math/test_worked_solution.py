"""The calculations in worked solutions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agentgym.envs.math.worked_solution import Step, read_steps


@pytest.mark.parametrize(
    ("solution", "expressions"),
    [
        # GSM8K's own annotations; prose beside them is not read twice.
        ("He sold 48/2 = <<48/2=24>>24. So 48+24 = <<48+24=72>>72.\n#### 72", ["48/2", "48+24"]),
        (
            "• 3 times as many kiwi, so 35 × 3 = 105 kiwi\n• Total: 105 + 35 = 140",
            ["35*3", "105+35"],
        ),
        ("left with 72*0.25=18 pebbles, back to 18+4=22 pebbles", ["72*0.25", "18+4"]),
        ("220.0 meters / 2.0 meters per plant = 110 plants total", ["220.0/2.0"]),
        ("96 plants × $3 per plant = $288", ["96*3"]),
        ("he works 7 days/week * 5 weeks/month = 35 days/month", ["7*5"]),
        ("9 / 10 = 90.0%.\n90.0% - 25% = 65%", ["9/10", "90.0/100-25/100"]),
        ("It costs 1,200 + 300 = 1,500 dollars", ["1200+300"]),
        ("so 2 * 3 = 6 = 3 + 3 = 6", ["2*3", "3+3"]),
        ("48=48 emails", []),  # no operation
        ("10 / 3 = 3.33", []),  # not exactly equal
        ("2 + 2 = 5", []),
        ("In 2019 he had 4 + 5 = 9 cats", ["4+5"]),  # the year is no part of it
        ("x + y = z", []),
        ("", []),
    ],
)
def test_read_steps_finds_right_calculations(solution: str, expressions: list[str]) -> None:
    assert [step.expression for step in read_steps(solution)] == expressions


def test_read_steps_has_exact_values_and_each_calculation_once() -> None:
    steps = read_steps("a 1/3 + 1/6 = 0.5, again 1/3 + 1/6 = 0.5, and 2 * 0.25 = 0.5")
    half = Fraction(1, 2)
    assert steps == (
        Step(expression="1/3+1/6", value=half),
        Step(expression="2*0.25", value=half),
    )


def test_read_steps_is_bounded() -> None:
    assert len(read_steps("\n".join(f"{i} + 1 = {i + 1}" for i in range(100)))) == 12
