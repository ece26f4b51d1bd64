"""Are values equal, are tests passed, can a verdict be faked?"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.code.grading import (
    LIMITS,
    Case,
    Verdict,
    equal_values,
    run_cases,
    run_hidden_cases,
    run_program,
    two_orders,
)
from agentgym.envs.code.mutations import mutants
from agentgym.envs.code.probes import ATTACKS, attack_code
from agentgym.envs.code.sandbox_client import with_fresh_box
from agentgym.errors import InfrastructureError

pytestmark = pytest.mark.filterwarnings(
    "ignore::agentgym.sandbox.backends.subprocess.UnsafeSandboxWarning"
)


@pytest.mark.parametrize(
    ("value", "expected", "is_equal"),
    [
        (3, 3, True),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (None, 0, False),
        (3.0, 3, False),
        (3, 3.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (math.nan, math.nan, False),
        ([1, 2], [1, 2], True),
        ([1, 2], (1, 2), False),
        ([1], [1, 2], False),
        ([1, 2, 3], [1, 2], False),
        ([True], [1], False),
        ({"a": [0.1 + 0.2]}, {"a": [0.3]}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({1, 2}, {2, 1}, True),
        ("a", "a", True),
        ("1", 1, False),
        (10**400, 1.0, False),  # beyond every float: isclose would raise
        ([-(10**400)], [1.0], False),
        ({"a": 10**5000}, {"a": 1}, False),
        (10**400, 10**400, True),
    ],
)
def test_equal_values_by_hand(value: object, expected: object, is_equal: bool) -> None:
    assert equal_values(value, expected) is is_equal


CASES = (Case(arguments=(2,), expected=5), Case(arguments=(-1,), expected=2))


def verdict(sandbox: str, code: str, cases: tuple[Case, ...] = CASES) -> Verdict:
    async def work(lease: Any) -> Verdict:
        return await run_cases(lease, code, "f", cases)

    return asyncio.run(with_fresh_box(sandbox, LIMITS, work))


@pytest.mark.parametrize(
    ("code", "passed", "problem"),
    [
        ("def f(x): return x + 3", 2, ""),
        ("def f(x): return 5", 1, "f(-1): wanted 2 (got 5)"),
        ("def f(x): return str(x + 3)", 0, "f(2): wanted 5 (got '5')"),
        ("def g(x): return x + 3", 0, "f(2): KeyError: 'f'"),
        ("def f(x):\n    return x +", 0, "your code does not run: SyntaxError: invalid syntax"),
        ("def f(x): raise ValueError('no')", 0, "f(2): ValueError: no"),
        ("def f(x, y): return 5", 0, "f(2): TypeError: f() missing 1 required positional"),
        ("import os\nos._exit(0)", 0, "your code does not run: [the Python session ended"),
        ("", 0, "f(2): KeyError: 'f'"),
    ],
)
def test_run_cases_says_what_is_wrong(sandbox: str, code: str, passed: int, problem: str) -> None:
    found = verdict(sandbox, code)
    assert found.passed == passed
    assert found.problem.startswith(problem)
    assert found.is_pass is (not problem)


TESTS = "def check(candidate):\n    assert candidate(2) == 5\n    assert candidate(-1) == 2\n"


def program_verdict(sandbox: str, code: str, program: str = TESTS) -> Verdict:
    async def work(lease: Any) -> Verdict:
        return await run_program(
            lease,
            sandbox,
            code=code,
            function="f",
            program=program,
            timeout_s=5,
            rng=random.Random(1),
        )

    return asyncio.run(with_fresh_box(sandbox, LIMITS, work))


@pytest.mark.parametrize(
    ("code", "is_pass", "problem"),
    [
        ("def f(x): return x + 3", True, ""),
        ("def f(x): return 5", False, "AssertionError"),
        ("def f(x): raise KeyError('k')", False, "KeyError"),
        ("import sys\ndef f(x): sys.exit(0)", False, "CandidateError"),
        ("import os\ndef f(x): os._exit(0)", False, "OutOfReachError: the program ended"),
    ],
)
def test_run_program_calls_across_boxes(
    sandbox: str, code: str, is_pass: bool, problem: str
) -> None:
    found = program_verdict(sandbox, code)
    assert (found.is_pass, found.problem.startswith(problem)) == (is_pass, True)


def test_a_test_program_sees_exceptions_of_their_built_in_type(sandbox: str) -> None:
    program = (
        "def check(candidate):\n"
        "    try: candidate(1)\n"
        "    except ValueError as error: assert str(error) == 'no'\n"
        "    else: assert False\n"
    )
    assert program_verdict(sandbox, "def f(x): raise ValueError('no')", program).is_pass
    assert not program_verdict(sandbox, "def f(x): raise TypeError('no')", program).is_pass


def test_no_test_program_may_catch_the_loss_of_the_function(sandbox: str) -> None:
    """`except Exception` in a test must not turn a program that ended into a pass."""
    program = "def check(candidate):\n    try: candidate(1)\n    except Exception: pass\n"
    assert not program_verdict(sandbox, "import os\ndef f(x): os._exit(0)", program).is_pass


def test_a_program_that_hangs_reaches_the_limit(sandbox: str) -> None:
    found = program_verdict(sandbox, "def f(x):\n    while True: pass")
    assert not found.is_pass
    assert "time limit" in found.problem


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_on_the_tests_fail_them(sandbox: str, attack: str) -> None:
    """By both ways of testing. On subprocess the attack that kills processes is left out."""
    if sandbox == "subprocess" and attack == "kills the runner":
        pytest.skip("nothing isolates: it would end this test run")
    code = attack_code(attack, "f")
    assert not verdict(sandbox, code).is_pass
    assert not program_verdict(sandbox, code).is_pass


FORGE = """
import sys, os
def f(*args):
    frame = sys._getframe()
    while frame and "request" not in frame.f_locals: frame = frame.f_back
    marker = frame.f_locals["request"]["marker"]
    os.write(frame.f_back.f_locals["self"].answers, (marker + "<" + {text} + marker + ">").encode())
"""
HUGE = "'1' + '0' * 400"
UNREADABLE_VALUES = {
    "a huge integer": "def f(*a): return 10**400",
    "one of more digits than are read": "def f(*a): return 10**6000",
    "a deep list": "def f(*a):\n    x = []\n    for _ in range(150): x = [x]\n    return x",
    "a list too deep": "def f(*a):\n    x = []\n    for _ in range(9999): x = [x]\n    return x",
    "a list in itself": "def f(*a):\n    x = []\n    x.append(x)\n    return x",
    "an integer that refuses": "class I(int):\n    def __int__(s): raise OSError\n"
    "    def __index__(s): raise OSError\ndef f(*a): return I(3)",
    "a list that refuses": "class L(list):\n    def __iter__(s): raise OSError\n"
    "def f(*a): return L([3])",
    "a complex of huge integers": FORGE.format(
        text='\'{"value": {"!": "complex", "v": [\' + ' + HUGE + " + ', 0]}}'"
    ),
    "an exception with a list for a name": FORGE.format(
        text="'{\"raised\": ' + '[' * 300 + ']' * 300 + '}'"
    ),
    "a set of items with one hash": FORGE.format(
        text='\'{"value": {"!": "set", "v": [\' '
        "+ ', '.join(str(n * (2**61 - 1)) for n in range(20000)) + ']}}'"
    ),
    "no JSON": FORGE.format(text="'{'"),
    "brackets": FORGE.format(text="'[' * 100000"),
    "no object": FORGE.format(text="'7'"),
    "a value of no kind": FORGE.format(text='\'{"value": {"!": [], "v": 1}}\''),
    "bytes that are none": FORGE.format(text='\'{"value": {"!": "bytes", "v": "xy"}}\''),
}
FLOATS = (Case(arguments=(2,), expected=5.0), Case(arguments=(-1,), expected=[1.5]))
NESTED = "def check(candidate):\n    assert candidate(candidate(2)) == candidate([candidate(2)])\n"


@pytest.mark.parametrize("kind", UNREADABLE_VALUES)
def test_what_cannot_be_read_is_a_wrong_answer_and_no_fault_of_the_machine(
    sandbox: str, kind: str
) -> None:
    code = UNREADABLE_VALUES[kind]
    for cases in (CASES, FLOATS):
        assert not verdict(sandbox, code, cases).is_pass
    assert program_verdict(sandbox, code, TESTS).problem
    assert not program_verdict(sandbox, code, NESTED.replace("==", "!= 7 and 3 ==")).is_pass


# ------------------------------------------------------------------ the order of tests (F26)

IGNORING = {
    "counts its calls": "calls = -1\ndef f(x):\n    global calls\n    calls += 1\n"
    "    return {values}[calls]\n",
    "counts for ever": "calls = -1\ndef f(x):\n    global calls\n    calls += 1\n"
    "    return {values}[calls % len({values})]\n",
    "counts in a file": "import os\ndef f(x):\n    open('calls', 'a').write('.')\n"
    "    return {values}[os.path.getsize('calls') - 1]\n",
}
"""Functions that do not read their argument, for tests that are made in one order, each once."""
SEVERAL = tuple(Case(arguments=(n,), expected=n * n) for n in (1, 2, 3, 4, 5))


def hidden_verdict(sandbox: str, code: str, cases: tuple[Case, ...], seed: int) -> Verdict:
    async def work(lease: Any) -> Verdict:
        return await run_hidden_cases(lease, code, "f", cases, random.Random(seed))

    return asyncio.run(with_fresh_box(sandbox, LIMITS, work))


@pytest.mark.parametrize("kind", IGNORING)
def test_f26_values_in_the_order_of_the_tests_pass_none(sandbox: str, kind: str) -> None:
    """Not even when the order of the first run is known: there is a second."""
    known, _ = two_orders(SEVERAL, random.Random(5))
    for order in (SEVERAL, known):
        code = IGNORING[kind].format(values=[case.expected for case in order])
        assert verdict(sandbox, code, order).is_pass
        assert not hidden_verdict(sandbox, code, SEVERAL, 5).is_pass


@pytest.mark.parametrize("kind", IGNORING)
def test_f26_a_test_program_fails_a_function_that_counts(sandbox: str, kind: str) -> None:
    assert not program_verdict(sandbox, IGNORING[kind].format(values=[5, 2])).is_pass


def test_f26_a_function_that_reads_its_argument_passes_both_runs(sandbox: str) -> None:
    code = "seen = {}\ndef f(x):\n    return seen.setdefault(x, x * x)\n"
    assert hidden_verdict(sandbox, code, SEVERAL, 5).is_pass
    cases = (Case(arguments=(1,), expected=7),)
    assert hidden_verdict(sandbox, "def f(x): return 7", cases, 5).is_pass


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 50))
def test_f26_two_orders_tell_every_sequence_of_values_apart(values: list[int], seed: int) -> None:
    cases = [Case(arguments=(n,), expected=value) for n, value in enumerate(values)]
    first, second = two_orders(cases, random.Random(seed))
    assert (first, second) == two_orders(cases, random.Random(seed))
    assert sorted(case.arguments for case in first) == sorted(case.arguments for case in second)
    told = [[case.expected for case in order] for order in (first, second)]
    assert (told[0] == told[1]) is (len(set(values)) == 1)


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
def test_a_program_that_ends_between_two_calls_is_a_wrong_answer(
    sandbox: str, delay_s: float
) -> None:
    code = (
        "import os, threading, time\n"
        f"def end():\n    time.sleep({delay_s})\n    os._exit(0)\n"
        "def f(x):\n    threading.Thread(target=end).start()\n    return 5\n"
    )
    cases = (CASES[0],) * 40 + (CASES[1],)
    assert not verdict(sandbox, code, cases).is_pass
    assert not program_verdict(sandbox, code).is_pass


def test_a_lost_box_is_tried_once_more_then_raised() -> None:
    calls = 0

    async def work(lease: Any) -> None:
        nonlocal calls
        calls += 1
        raise InfrastructureError("lost")

    with pytest.raises(InfrastructureError, match="lost"):
        asyncio.run(with_fresh_box("subprocess", LIMITS, work))
    assert calls == 2


# ------------------------------------------------------------------------------- mutations


def test_mutants_of_a_comparison_and_a_sum_by_hand() -> None:
    """One node at a time, breadth first: the comparison and its numbers, the return last."""
    source = "def f(x):\n    if x < 2:\n        return x + 1\n    return not x"
    found = [text.replace("\n", ";").replace("    ", " ") for text in mutants(source)]
    head = "def f(x):; if x "
    assert found == [
        f"{head}<= 2:;  return x + 1; return not x",
        f"{head}> 2:;  return x + 1; return not x",
        f"{head}< 2:;  return x + 1; return not not x",
        f"{head}< 3:;  return x + 1; return not x",
        f"{head}< 1:;  return x + 1; return not x",
        f"{head}< 2:;  return x - 1; return not x",
        f"{head}< 2:;  return x + 2; return not x",
        f"{head}< 2:;  return x + 0; return not x",
        f"{head}< 2:;  return x + 1; return None",
        f"{head}< 2:;  return None; return not x",
    ]


def test_docstrings_are_not_mutated() -> None:
    assert list(mutants('def f():\n    """Text."""')) == []
