"""Which calls a solution needs, and the expert's next one."""

from __future__ import annotations

from agentgym.envs.math.calculator import read_operation
from agentgym.envs.math.expert_steps import Reduction
from agentgym.envs.math.expressions import parse


def _uses(expression: str, *calls: str) -> list[bool]:
    state = Reduction(parse(expression))
    return [state.use(read_operation(call)) for call in calls]


def test_use_follows_precedence() -> None:
    # 12+37*48: the sum needs the product first, so 12+37 is of no use and 12+1776 only after it.
    assert _uses("12+37*48", "12+37", "12+1776", "37*48", "12+1776") == [False, False, True, True]


def test_use_counts_a_result_once() -> None:
    assert _uses("12+37*48", "37*48", "37*48") == [True, False]


def test_use_takes_operands_in_either_order_where_that_is_the_same() -> None:
    assert _uses("12+37*48", "48*37", "1776+12") == [True, True]
    assert _uses("5-3", "3-5") == [False]
    assert _uses("8/2", "2/8") == [False]


def test_use_needs_the_operator_of_the_task() -> None:
    assert _uses("2+2", "2*2") == [False]  # the same value by another operation


def test_use_works_out_equal_parts_together() -> None:
    # 3*4-3*4: one call serves both products.
    assert _uses("3*4-3*4", "3*4", "12-12") == [True, True]


def test_next_call_leads_to_the_answer_from_any_state() -> None:
    state = Reduction(parse("(2-9)*3/(1+5)"))
    state.use(read_operation("1+5"))  # out of the expert's order
    state.use(read_operation("2*3"))  # of no use
    calls = []
    while (call := state.next_call()) is not None:
        calls.append(call)
        assert state.use(read_operation(call))
    assert calls == ["2-9", "(-7)*3", "(-21)/6"]
    assert state.is_complete


def test_next_call_writes_fractions_in_parentheses() -> None:
    state = Reduction(parse("7/3+2"))
    state.use(read_operation("7/3"))
    assert state.next_call() == "(7/3)+2"
