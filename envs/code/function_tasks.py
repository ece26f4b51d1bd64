"""The generator of functions to write: levels 1 to 5, in words, with a solution and tests.

| level | what the function does | such as |
|---|---|---|
| 1 | one step with a number | add 17 to x |
| 2 | two steps | multiply x by 3, then subtract 8 |
| 3 | a choice between two steps | if x is greater than 5, add 2, otherwise multiply by 3 |
| 4 | a list: pick elements, or change each | keep the elements that are even |
| 5 | a list: pick, change, then combine | keep the even elements, add 3 to each, return the sum |

Whether a task is held out depends on the values of the function (`behaviour`), so that no held-out
function is asked for in training, in whatever words and steps.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.code.equivalence import (
    FUNCTION,
    Function,
    behaviour,
    compiled,
    probes,
    shown_values,
)
from agentgym.envs.code.grading import Case, equal_values
from agentgym.envs.code.mutations import mutants
from agentgym.errors import EnvError
from agentgym.records import Task
from agentgym.sandbox.inside.values import decode, encode

ENV_ID = "code/unit-tests-v0"
REPAIR_ENV_ID = "code/repair-v0"
SPLITS = splits.SPLITS
LEVELS = (1, 2, 3, 4, 5)
HELD_OUT_SHARE = 8
"""One function in so many is held out."""
PUBLIC_CASES, HIDDEN_CASES = 2, 8
_LIST_LENGTHS = range(2, 9)
_MOST_DRAWS = 50
"""Draws of test inputs; a function that no draw tells from its mutants is not asked for."""
_EDGE_SHARE = 0.3
"""Elements of lists that stand at an edge of the condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One function: what it does in words, and how it is written."""

    words: str
    body: str
    takes_list: bool = False
    edges: tuple[int, ...] = ()
    """Numbers around which its condition changes."""

    @property
    def source(self) -> str:
        """The whole function."""
        return f"def {FUNCTION}(x):\n{self.body}"


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; the levels take turns.

    Args:
        index: Position from 0. Level 1 repeats after some hundred functions, the others practically
            never.
        split: `train` or `held_out`.
        levels: Levels to draw from.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    program = draw_program(seeding.rng("code/functions", level, split, number), level, split)
    return Task(
        id=f"functions-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=f"Write {FUNCTION}(x): {program.words}.",
        answers=(program.source,),
        payload={"function": FUNCTION, "level": level, **cases_of(program)},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def draw_task(rng: random.Random, *, levels: Sequence[int] = LEVELS) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(2**31), levels=levels)


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels in order.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    return splits.check_levels(levels, LEVELS)


def is_held_out(program: Program) -> bool:
    """Return whether a function belongs to the held-out split, as all that do the same."""
    values = behaviour(program.source, takes_list=program.takes_list)
    return seeding.derive("held out", "code/functions", values) % HELD_OUT_SHARE == 0


def draw_program(rng: random.Random, level: int, split: str) -> Program:
    """Return a function of a level and split, one whose results differ from its argument."""
    while True:
        program = _DRAW[level](rng)
        if is_held_out(program) == (split == "held_out") and _does_something(program):
            return program


def cases_of(program: Program) -> dict[str, Any]:
    """Return the payload's test cases: the same ones each time for one function."""
    function = compiled(program.source)
    rows = [encode([value, function(value)]) for value in _telling_inputs(program)]
    return {"public": rows[:PUBLIC_CASES], "hidden": rows[PUBLIC_CASES:]}


def read_cases(rows: Any) -> tuple[Case, ...]:
    """Return the cases of a payload.

    Raises:
        EnvError: If they are not written as `cases_of` writes them.
    """
    try:
        pairs = [decode(row) for row in rows]
        return tuple(Case(arguments=(pair[0],), expected=pair[1]) for pair in pairs)
    except (TypeError, ValueError, IndexError) as error:
        raise EnvError(f"the payload's test cases cannot be read: {error}") from error


def fails_a_case(function: Function, cases: Sequence[Case]) -> Case | None:
    """Return the first case that a function of our own making fails, if any."""
    for case in cases:
        try:
            value = function(*case.arguments)
        except (ArithmeticError, ValueError, TypeError, IndexError):
            return case
        if not equal_values(value, case.expected):
            return case
    return None


# -------------------------------------------------------------------------------- drawing


@functools.lru_cache(maxsize=256)
def _telling_inputs(program: Program) -> tuple[Any, ...]:
    """Return the arguments of the tests, public ones first; nothing if none tell enough.

    Each mutant of the function that does something else does so on a hidden one.
    """
    rng = seeding.rng("cases", program.body)
    usual = behaviour(program.source, takes_list=program.takes_list)
    arguments = probes(takes_list=program.takes_list)
    rivals = [compiled(source) for source in mutants(program.source)]
    rivals = [rival for rival in rivals if shown_values(rival, arguments) != usual]
    function = compiled(program.source)
    draw = _lists if program.takes_list else _numbers
    for _ in range(_MOST_DRAWS):
        public, hidden = draw(rng, program.edges)
        values = shown_values(function, hidden)
        if all(shown_values(rival, hidden) != values for rival in rivals):
            return (*public, *hidden)
    return ()


def _numbers(rng: random.Random, edges: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return public and hidden arguments; zero, both signs, edges and a large one are hidden."""
    signs = (rng.randrange(-20, -6), 0, rng.randrange(7, 21))
    hidden = list(dict.fromkeys((*edges, *signs, rng.randrange(100, 1000))))
    others = [number for number in range(-20, 21) if number not in hidden]
    rng.shuffle(others)
    missing = HIDDEN_CASES - len(hidden)
    hidden += others[:missing]
    rng.shuffle(hidden)
    return others[missing : missing + PUBLIC_CASES], hidden


def _lists(rng: random.Random, edges: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return public and hidden arguments: each edge, and a list of none and of one, are hidden."""
    count = HIDDEN_CASES - 2
    lengths = [*rng.sample(_LIST_LENGTHS, PUBLIC_CASES), *rng.choices(_LIST_LENGTHS, k=count)]
    drawn = [[_element(rng, edges) for _ in range(length)] for length in lengths]
    public, hidden = drawn[:PUBLIC_CASES], drawn[PUBLIC_CASES:]
    for some, edge in zip(hidden, edges, strict=False):
        some[rng.randrange(len(some))] = edge
    hidden += [[], [_element(rng, edges)]]
    rng.shuffle(hidden)
    return public, hidden


def _element(rng: random.Random, edges: Sequence[int]) -> int:
    return rng.choice(edges) if edges and rng.random() < _EDGE_SHARE else rng.randrange(-12, 13)


def _does_something(program: Program) -> bool:
    """Whether hidden tests tell a function from the identity, a constant and its own mutants."""
    if not _telling_inputs(program):
        return False
    hidden = read_cases(cases_of(program)["hidden"])
    values = [case.expected for case in hidden]
    is_identity = all(case.expected == case.arguments[0] for case in hidden)
    return not is_identity and any(value != values[0] for value in values)


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of one number: as an order, and as an expression of it."""

    words: str
    expression: str
    edges: tuple[int, ...] = ()


def _step(rng: random.Random, most: int = 99) -> _Step:
    number = rng.randrange(2, most + 1)
    return rng.choice(
        (
            _Step(f"add {number} to {{x}}", f"{{x}} + {number}"),
            _Step(f"subtract {number} from {{x}}", f"{{x}} - {number}"),
            _Step(f"multiply {{x}} by {number}", f"{{x}} * {number}"),
            _Step(f"subtract {{x}} from {number}", f"{number} - {{x}}"),
        )
    )


def _condition(rng: random.Random) -> _Step:
    number = rng.randrange(-6, 7)
    divisor = rng.randrange(2, 6)
    around = (number - 1, number, number + 1)
    # Multiples of either sign, and what is next to one.
    multiples = (-divisor, divisor, divisor + 1, 2 * divisor)
    return rng.choice(
        (
            _Step(f"greater than {number}", f"{{x}} > {number}", around),
            _Step(f"less than {number}", f"{{x}} < {number}", around),
            _Step(f"at least {number}", f"{{x}} >= {number}", around),
            _Step(f"divisible by {divisor}", f"{{x}} % {divisor} == 0", multiples),
            _Step(f"not divisible by {divisor}", f"{{x}} % {divisor} != 0", multiples),
        )
    )


def _draw_1(rng: random.Random) -> Program:
    step = _step(rng)
    return Program(
        words=step.words.format(x="x"), body=f"    return {step.expression.format(x='x')}"
    )


def _draw_2(rng: random.Random) -> Program:
    first, second = _step(rng, 20), _step(rng, 20)
    return Program(
        words=f"{first.words.format(x='x')}, then {second.words.format(x='the result')}",
        body=f"    y = {first.expression.format(x='x')}\n"
        f"    return {second.expression.format(x='y')}",
    )


def _draw_3(rng: random.Random) -> Program:
    test, first, second = _condition(rng), _step(rng, 20), _step(rng, 20)
    while second == first:  # else there would be no choice
        second = _step(rng, 20)
    return Program(
        words=f"if x is {test.words}, {first.words.format(x='x')}, "
        f"otherwise {second.words.format(x='x')}",
        body=f"    if {test.expression.format(x='x')}:\n"
        f"        return {first.expression.format(x='x')}\n"
        f"    return {second.expression.format(x='x')}",
        edges=test.edges,
    )


def _draw_4(rng: random.Random) -> Program:
    edges: tuple[int, ...] = ()
    if rng.random() < 0.5:
        test = _condition(rng)
        edges = test.edges
        words = f"keep the elements of the list x that are {test.words}"
        body = f"    return [y for y in x if {test.expression.format(x='y')}]"
    else:
        step = _step(rng, 20)
        words = f"for each element of the list x, {step.words.format(x='it')}"
        body = f"    return [{step.expression.format(x='y')} for y in x]"
    return Program(words=words, body=body, takes_list=True, edges=edges)


def _draw_5(rng: random.Random) -> Program:
    test, step = _condition(rng), _step(rng, 20)
    words, expression = rng.choice(
        (
            ("return the sum", "sum(z)"),
            ("return the largest, or 0 if there is none", "max(z, default=0)"),
            ("return the smallest, or 0 if there is none", "min(z, default=0)"),
            ("return how many different ones there are", "len(set(z))"),
            ("return them in order, smallest first", "sorted(z)"),
        )
    )
    return Program(
        words=f"keep the elements of the list x that are {test.words}; for each of them, "
        f"{step.words.format(x='it')}; {words}",
        body=f"    z = [{step.expression.format(x='y')} for y in x "
        f"if {test.expression.format(x='y')}]\n    return {expression}",
        takes_list=True,
        edges=test.edges,
    )


_DRAW: dict[int, Callable[[random.Random], Program]] = {
    1: _draw_1,
    2: _draw_2,
    3: _draw_3,
    4: _draw_4,
    5: _draw_5,
}
