"""The generator of arithmetic tasks."""

from __future__ import annotations

import hashlib
import random
import re

import pytest

from agentgym.envs.math.arithmetic_tasks import (
    MOST_OPERATIONS,
    draw_task,
    generate_task,
    is_held_out,
)
from agentgym.envs.math.expressions import evaluate, operands, operations, parse
from agentgym.envs.math.rationals import format_number
from agentgym.errors import EnvError
from agentgym.records import Task


def _tasks(level: int, count: int, split: str = "train") -> list[Task]:
    return [generate_task(i, split=split, levels=(level,)) for i in range(count)]


def test_generate_task_is_the_same_whatever_ran_before() -> None:
    first = [generate_task(i) for i in range(20)]
    random.seed(1)
    draw_task(random.Random(3))
    assert [generate_task(i) for i in reversed(range(20))] == first[::-1]


def test_levels_take_turns() -> None:
    levels = [generate_task(i, levels=(3, 1)).payload["level"] for i in range(5)]
    assert levels == [1, 3, 1, 3, 1]


@pytest.mark.parametrize(
    ("level", "form"),
    [
        (1, r"\d{1,2}[+-]\d{1,2}"),
        (2, r"\d\d\*\d\d"),
        (3, r"\d{1,2}[+-]\d\d\*\d\d|\d\d\*\d\d[+-]\d{1,2}"),
    ],
)
def test_small_levels_have_their_form(level: int, form: str) -> None:
    for task in _tasks(level, 200):
        assert re.fullmatch(form, task.prompt), task.prompt


def test_large_levels_have_their_operations() -> None:
    for task in _tasks(4, 100):
        tree = parse(task.prompt)
        assert len(list(operations(tree))) == 3
        assert "/" in task.prompt
        assert "(" in task.prompt
    assert {len(list(operations(parse(t.prompt)))) for t in _tasks(5, 60)} == {4, 5, 6}
    assert any("/" in t.answers[0] for t in _tasks(4, 30)), "some answers are fractions"


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_answers_are_exact_and_operations_bounded(level: int) -> None:
    for task in _tasks(level, 50, "held_out"):
        tree = parse(task.prompt)
        assert task.answers == (format_number(evaluate(tree)),)
        assert len(list(operations(tree))) <= MOST_OPERATIONS[level]
        assert task.prompt not in task.answers


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_splits_are_disjoint_by_operands(level: int) -> None:
    train, held_out = (
        {tuple(sorted(operands(parse(t.prompt)))) for t in _tasks(level, 400, split)}
        for split in ("train", "held_out")
    )
    assert train
    assert held_out
    assert not train & held_out


def test_split_depends_on_the_operands_only() -> None:
    # The rule by hand for {3, 5}: the hash of "3,5".
    expected = int(hashlib.sha256(b"3,5").hexdigest()[:16], 16) % 8 == 0
    assert {is_held_out(parse(text)) for text in ("3+5", "5-3", "5*3")} == {expected}


def test_small_levels_use_every_expression_once_before_they_repeat() -> None:
    # 80 factors (12..99 less 8 multiples of ten): 6400 products over both splits.
    prompts = [t.prompt for split in ("train", "held_out") for t in _tasks(2, 6400, split)]
    assert len(set(prompts)) == 6400


def test_no_held_out_task_of_level_3_repeats_among_the_first_thousand() -> None:
    assert len({t.prompt for t in _tasks(3, 1000, "held_out")}) >= 995


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"levels": ()}, r"'levels' must be some of .* \(got \(\)\)"),
        ({"levels": (1, 7)}, r"'levels' .* \(got \(1, 7\)\)"),
        ({"split": "test"}, r"'split' .* \(got 'test'\)"),
        ({"index": -1}, r"'index' must be >= 0 \(got -1\)"),
    ],
)
def test_generate_task_refuses_bad_arguments(kwargs: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"index": 0} | kwargs
    with pytest.raises(EnvError, match=message):
        generate_task(**arguments)  # type: ignore[arg-type]
