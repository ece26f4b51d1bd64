"""The generator of arithmetic tasks: levels 1 to 5, train and held-out splits, one task an index.

| level | form | operands |
|---|---|---|
| 1 | `a+b`, `a-b` | 1 to 99 |
| 2 | `a*b` | 12 to 99, no multiples of ten |
| 3 | `a+b*c`, `a-b*c`, `b*c+a`, `b*c-a` | products as in level 2, `a` from 1 to 99 |
| 4 | three operations with parentheses, one of them a division | 2 to 30 |
| 5 | four to six operations | 2 to 999 |

Whether a task is held out depends on the multiset of its operands alone, so that no held-out task
has the operands of a training task, in whatever order and with whatever operators.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.math.expressions import (
    Expression,
    Number,
    Operation,
    evaluate,
    format_expression,
    operands,
    operations,
)
from agentgym.envs.math.rationals import format_number, parse_number
from agentgym.errors import ToolError
from agentgym.records import Task

ENV_ID = "math/arithmetic-v0"
SPLITS = splits.SPLITS
LEVELS = (1, 2, 3, 4, 5)
HELD_OUT_SHARE = 8
"""One operand multiset in so many is held out."""
MOST_OPERATIONS = {1: 1, 2: 1, 3: 2, 4: 3, 5: 6}
"""Operations of the longest task of each level: calls that its solution needs."""

_SMALL = range(1, 100)
# Products with a multiple of ten, or with less than twelve, can be had without a calculator.
_FACTORS = tuple(n for n in range(12, 100) if n % 10)
_LEVEL_4_OPERANDS = range(2, 31)
_LEVEL_5_OPERANDS = range(2, 1000)
_LEVEL_5_OPERATIONS = range(4, 7)


def is_held_out(expression: Expression) -> bool:
    """Return whether the operands of `expression` belong to the held-out split."""
    text = ",".join(format_number(value) for value in sorted(operands(expression)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; levels take turns, so each has an equal part.

    Args:
        index: Position from 0, without an upper bound. Levels 1 and 2 repeat after all their
            expressions, the others practically never.
        split: `train` or `held_out`.
        levels: Levels to draw from.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    level = levels[index % len(levels)]
    number = index // len(levels)
    return _task(
        _expression(level, number, split), f"arithmetic-{level}-{split}-{number:06d}", level, split
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


def _task(expression: Expression, task_id: str, level: int, split: str) -> Task:
    text = format_expression(expression)
    return Task(
        id=task_id,
        env_id=ENV_ID,
        prompt=text,
        answers=(format_number(evaluate(expression)),),
        payload={"expression": text, "level": level},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def _expression(level: int, number: int, split: str) -> Expression:
    if level in {1, 2}:
        table = _shuffled(level, split)
        return table[number % len(table)]
    rng = seeding.rng("arithmetic", level, split, number)
    while True:
        expression = _draw(level, rng)
        if expression is not None and is_held_out(expression) == (split == "held_out"):
            return expression


@functools.cache
def _shuffled(level: int, split: str) -> tuple[Expression, ...]:
    """Every expression of a small level, in an order that mixes operands and operators."""
    found = [e for e in _all_of(level) if is_held_out(e) == (split == "held_out")]
    seeding.rng("arithmetic", level, split).shuffle(found)
    return tuple(found)


def _all_of(level: int) -> Iterator[Expression]:
    values, symbols = (_SMALL, "+-") if level == 1 else (_FACTORS, "*")
    for left in values:
        for right in values:
            for symbol in symbols:
                yield _operation(_leaf(left), symbol, _leaf(right))


def _draw(level: int, rng: random.Random) -> Expression | None:
    """Return an expression of level 3 to 5, or None where the draw does not qualify."""
    if level == 3:
        return _draw_precedence(rng)
    if level == 4:
        tree = _draw_tree(rng, 3, _LEVEL_4_OPERANDS)
        qualifies = "/" in {o.symbol for o in operations(tree)} and "(" in format_expression(tree)
    else:
        tree, qualifies = _draw_tree(rng, rng.choice(_LEVEL_5_OPERATIONS), _LEVEL_5_OPERANDS), True
    return tree if qualifies and _has_value(tree) else None


def _draw_precedence(rng: random.Random) -> Expression:
    product = _operation(_leaf(rng.choice(_FACTORS)), "*", _leaf(rng.choice(_FACTORS)))
    other = _leaf(rng.choice(_SMALL))
    left, right = (other, product) if rng.random() < 0.5 else (product, other)
    return _operation(left, rng.choice("+-"), right)


def _draw_tree(rng: random.Random, size: int, values: range) -> Expression:
    if size == 0:
        return _leaf(rng.choice(values))
    left_size = rng.randrange(size)
    left = _draw_tree(rng, left_size, values)
    return _operation(left, rng.choice("+-*/"), _draw_tree(rng, size - 1 - left_size, values))


def _has_value(tree: Expression) -> bool:
    try:
        evaluate(tree)
    except ToolError:  # a division by a difference that is zero
        return False
    return parse_number(format_expression(tree)) is None


def _leaf(value: int) -> Number:
    return Number(value=Fraction(value))


def _operation(left: Expression, symbol: str, right: Expression) -> Operation:
    return Operation(symbol=symbol, left=left, right=right)
