"""Functions of at most 40 lines, modules of at most 400, at most five positional parameters.

Lines of a function are counted from `def` to its end without the docstring; those of a command
without its signature too, which is the table of its options. A longer one says why in its
docstring and stands in the list here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentgym", "envs", "sandbox", "tasks", "trainers")
MAX_FUNCTION_LINES = 40
MAX_MODULE_LINES = 400
MAX_POSITIONAL = 5

# "path::function" or "path". Each says why in its docstring.
LONG_FUNCTIONS: frozenset[str] = frozenset()
LONG_MODULES: frozenset[str] = frozenset({"sandbox/inside/supervisor.py"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _modules() -> list[Path]:
    links = {ROOT / "agentgym" / part for part in FOLDERS[1:]}
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not links & set(path.parents)
    ]


def _functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def _lines(function: Function) -> int:
    assert function.end_lineno is not None
    first = function.body[0]
    start = first.lineno if _options(function) else function.lineno
    total = function.end_lineno - start + 1
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        total -= first.end_lineno - first.lineno + 1
    return total


def _options(function: Function) -> list[ast.arg]:
    """Return the arguments that are options of a command: the `Annotated` ones."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [
        argument
        for argument in arguments
        if argument.annotation and ast.unparse(argument.annotation).startswith("Annotated[")
    ]


def _positional(function: Function) -> int:
    """Return how many arguments may be given by position, a command's options apart."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    own = len(arguments) - (bool(arguments) and arguments[0].arg in {"self", "cls"})
    return own - len([argument for argument in arguments if argument in _options(function)])


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    return 1", 2),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1', 2),  # 6 lines - 4 of docstring
    ],
)
def test_line_count_leaves_out_the_docstring(source: str, lines: int) -> None:
    function = ast.parse(source).body[0]
    assert isinstance(function, Function)
    assert _lines(function) == lines


def test_modules_are_found() -> None:
    # Were the list empty, the tests below could not fail.
    assert ROOT / "agentgym" / "errors.py" in _modules()


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}::{function.name}": _lines(function)
        for path in _modules()
        for function in _functions(path)
        if _lines(function) > MAX_FUNCTION_LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_FUNCTIONS} == {}
    assert set(long) >= LONG_FUNCTIONS, "an entry of LONG_FUNCTIONS is short now: remove it"


def test_modules_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in _modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_MODULE_LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_MODULES} == {}
    assert set(long) >= LONG_MODULES, "an entry of LONG_MODULES is short now: remove it"


def test_functions_take_few_positional_parameters() -> None:
    wide = {
        f"{path.relative_to(ROOT)}::{function.name}": _positional(function)
        for path in _modules()
        for function in _functions(path)
        if _positional(function) > MAX_POSITIONAL
    }
    assert wide == {}
