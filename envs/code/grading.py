"""Does a function that an agent wrote pass tests? The tests stay on this side of the box.

`run_cases` compares values on the host: the agent's code sees arguments, one call after the other,
and what it returns arrives as built-in types. `run_program` is for test programs that must be
executed: they run in a second box, and only calls and values go between the two.

What scores is run twice, the second time with fresh state and the calls in another order
(`run_hidden_cases`) or among others (`run_program`): a function that counts its calls and does not
read its arguments cannot be right both times.
"""

from __future__ import annotations

import functools
import json
import math
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from agentgym.envs.code.sandbox_client import leased
from agentgym.sandbox.base import MIB, Process, Reply, SandboxLimits
from agentgym.sandbox.pool import Lease
from agentgym.sandbox.python_session import SHARED_IMPORT, CallResult, joined_sources, read_answer
from agentgym.sandbox.supervised.bootstrap import BOOT

LIMITS = SandboxLimits(
    memory_bytes=256 * MIB, disk_bytes=16 * MIB, max_processes=32, timeout_s=10.0
)
"""Of the box in which an agent's function runs."""
JUDGE_LIMITS = SandboxLimits(
    memory_bytes=256 * MIB, disk_bytes=8 * MIB, max_processes=16, timeout_s=30.0
)
"""Of the box in which test programs run; others than LIMITS, so that its pool is another."""
LOAD_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 3.0
Call = Sequence[Any]
"""Arguments and keywords of one call, encoded."""
RUNS = 2
"""Of a test program."""
MOST_DECOYS = 32
"""Calls of the first run that are kept for the second."""
DECOY_SHARE = 0.3
"""Calls of the second run before which another is made."""
MOST_CALLS = 20_000
"""Calls of one test program; more than any that is shipped makes."""
TOLERANCE = 1e-9
"""Relative and absolute, for floats in expected values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call and the value it must return.

    Example:
        Case(arguments=(2,), expected=5)
    """

    arguments: tuple[Any, ...]
    expected: Any

    def shown(self, function: str) -> str:
        """Return the call as source."""
        return f"{function}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tests said."""

    passed: int
    """Cases that passed, up to the first that did not where the rest was not run."""
    total: int
    """Cases there are."""
    problem: str = ""
    """The first thing that went wrong, for the agent; empty if nothing did."""

    @property
    def is_pass(self) -> bool:
        """Whether every case passed."""
        return self.passed == self.total and not self.problem


async def run_cases(lease: Lease, code: str, function: str, cases: Sequence[Case]) -> Verdict:
    """Define the code in a new session and call the function for each case, up to a failure."""
    problem = await load_code(lease, code)
    if problem:
        return Verdict(passed=0, total=len(cases), problem=problem)
    for number, case in enumerate(cases):
        result = await lease.python.call(function, case.arguments, timeout_s=CALL_TIMEOUT_S)
        problem = _case_problem(case, function, result)
        if problem:
            return Verdict(passed=number, total=len(cases), problem=problem)
    return Verdict(passed=len(cases), total=len(cases))


async def run_hidden_cases(
    lease: Lease, code: str, function: str, cases: Sequence[Case], rng: random.Random
) -> Verdict:
    """Run all cases in two orders, the second in a clean box; stop at the first that fails."""
    first, second = two_orders(cases, rng)
    verdict = await run_cases(lease, code, function, first)
    if not verdict.is_pass:
        return verdict
    await lease.box.reset()
    return await run_cases(lease, code, function, second)


def two_orders(
    cases: Sequence[Case], rng: random.Random
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the cases in two orders, whose expected values differ unless all cases share one.

    Example:
        Of cases that expect 2 and 3 one order expects 2, 3 and the other 3, 2.
    """
    first, second = list(cases), list(cases)
    rng.shuffle(first)
    rng.shuffle(second)
    if [repr(case.expected) for case in first] == [repr(case.expected) for case in second]:
        second = [*first[1:], *first[:1]]
    return tuple(first), tuple(second)


async def load_code(lease: Lease, code: str) -> str:
    """Run the agent's code; return what went wrong, or an empty text."""
    result = await lease.python.run(code, timeout_s=LOAD_TIMEOUT_S)
    if result.is_ok:
        return ""
    lines = result.observation().strip().splitlines()
    return f"your code does not run: {lines[-1] if lines else result.raised}"


def _case_problem(case: Case, function: str, result: CallResult) -> str:
    call = case.shown(function)
    if result.problem is not None:
        return f"{call}: {result.problem}"
    if not equal_values(result.value, case.expected):
        return f"{call}: wanted {_short(case.expected)} (got {_short(result.value)})"
    return ""


def equal_values(value: Any, expected: Any) -> bool:
    """Return whether two values of built-in types are equal, types of containers included.

    Floats may differ in the last digits; True is not 1.
    """
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, float) and isinstance(value, (int, float)):
        try:
            return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:  # an integer beyond every float
            return False
    if type(value) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(equal_values(a, b) for a, b in pairs)
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            equal_values(value[key], item) for key, item in expected.items()
        )
    return bool(value == expected)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits; a deep list
        return "a value that cannot be shown"
    return text if len(text) <= 200 else text[:200] + "..."


# --------------------------------------------------------------------------- test programs


@functools.cache
def judge_source() -> bytes:
    """Return the program that runs tests in a box, complete in one text."""
    values = resources.files("agentgym.sandbox.inside").joinpath("values.py").read_text("utf-8")
    judge = resources.files("agentgym.envs.code.inside").joinpath("runner.py").read_text("utf-8")
    return joined_sources(values, judge, SHARED_IMPORT)


async def run_program(
    lease: Lease,
    sandbox: str,
    *,
    code: str,
    function: str,
    program: str,
    timeout_s: float,
    rng: random.Random,
) -> Verdict:
    """Run a test program, which defines `check(candidate)`, twice against the agent's function.

    A program makes its calls in its own order. So in the second run, with fresh state on both
    sides, calls of the first are mixed in between them, whose values nobody looks at.

    Args:
        lease: A clean box, in which the agent's code will run.
        sandbox: Kind of the second box, in which the tests run.
        code: What the agent wrote.
        function: Name of the function under test.
        program: Source of the tests.
        timeout_s: Seconds for one run.
        rng: Draws what is mixed in.
    """
    decoys: tuple[Call, ...] = ()
    verdict = Verdict(passed=0, total=1)
    for run in range(RUNS):
        if run > 0:
            await lease.box.reset()
        problem = await load_code(lease, code)
        if problem:
            return Verdict(passed=0, total=1, problem=problem)
        async with leased(sandbox, JUDGE_LIMITS) as judge_lease:
            conversation = _Conversation(lease, judge_lease, function, timeout_s)
            conversation.mix_in(decoys, rng)
            verdict = await conversation.hold(program)
        if not verdict.is_pass:
            return verdict
        decoys = tuple(conversation.calls)
    return verdict


_UNREADABLE_CALL = {"passed": False, "text": "the tests make a call that cannot be passed on"}


def _judge_answer(reply: Reply) -> dict[str, Any] | None:
    if reply.message is None:
        return None
    try:
        return json.loads(reply.message)
    except (ValueError, RecursionError):  # a call with a number that cannot be read
        return _UNREADABLE_CALL


class _Conversation:
    """Calls from the box of the tests, values from the box of the agent."""

    def __init__(self, lease: Lease, judge: Lease, function: str, timeout_s: float) -> None:
        self._lease = lease
        self._judge = judge
        self._function = function
        self._left_s = timeout_s
        self._decoys: tuple[Call, ...] = ()
        self._rng = random.Random(0)
        self.calls: list[Call] = []

    def mix_in(self, decoys: Sequence[Call], rng: random.Random) -> None:
        """Make these calls too, one before the first of the program and others at random."""
        self._decoys, self._rng = tuple(decoys), rng

    async def hold(self, program: str) -> Verdict:
        process = await self._judge.box.start_process(["python3", "-u", "-c", BOOT])
        source = judge_source()
        message: Mapping[str, Any] = {"program": program, "function": self._function}
        first = len(source).to_bytes(4, "big") + source
        for _ in range(MOST_CALLS):
            answer = await self._ask(process, first, message)
            first = b""
            if answer is None:
                return Verdict(passed=0, total=1, problem="the tests reached their time limit")
            if "passed" in answer:
                passed = answer["passed"] is True
                return Verdict(passed=int(passed), total=1, problem=str(answer.get("text", "")))
            message = await self._call(answer["call"])
        return Verdict(passed=0, total=1, problem="the tests make too many calls")

    async def _ask(
        self, process: Process, first: bytes, message: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        marker = secrets.token_hex(16)
        body = json.dumps({**message, "marker": marker}).encode("ascii")
        reply = await process.interact(
            first + len(body).to_bytes(4, "big") + body,
            marker=marker,
            timeout_s=max(0.1, self._left_s),
        )
        self._left_s -= reply.wall_s
        return await read_answer(reply, _judge_answer)

    async def _call(self, call: Call) -> Mapping[str, Any]:
        """Pass a call on, perhaps after one that is mixed in; nothing is decoded on the way."""
        if self._decoys and (not self.calls or self._rng.random() < DECOY_SHARE):
            decoy = await self._relay(self._rng.choice(self._decoys))
            if decoy.get("is_gone"):
                return decoy
        if len(self.calls) < MOST_DECOYS:
            self.calls.append(call)
        return await self._relay(call)

    async def _relay(self, call: Call) -> Mapping[str, Any]:
        if self._left_s <= 0:
            return {"is_gone": True, "text": "time limit reached"}
        result = await self._lease.python.relay(
            self._function, *call, timeout_s=max(0.1, self._left_s)
        )
        self._left_s -= result.wall_s
        if result.answer is None:
            return {"is_gone": True, "text": result.problem or "the program ended"}
        return {
            key: result.answer[key] for key in ("value", "raised", "text") if key in result.answer
        }
