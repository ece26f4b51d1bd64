"""Change one place of `trainers/parts` at a time and see whether a test notices.

`python tests/bench/mutation.py --count 500 --seed 0` draws mutants with a seed, runs the
tests of the parts against each in a forked process, and prints the survivors with their lines.
A survivor is either a gap in the tests or an equivalent change: a person decides which.

What is changed: comparisons (< to <=, == to !=), arithmetic (+ to -, * to /), numbers (n to n + 1),
`and`/`or`, `not`, the sides of a conditional, and calls of paired functions (amax to amin,
minimum to maximum, ones_like to zeros_like).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "trainers" / "parts"
TESTS = (
    "tests/trainers/parts",
    "tests/trainers/objective/test_preset.py",
    "tests/trainers/objective/test_prepare.py",
)
SKIPPED = {"__init__.py"}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
PAIRS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "amax": "amin",
    "amin": "amax",
    "ones_like": "zeros_like",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "exp": "expm1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: which node of which file, and what becomes of it."""

    path: Path
    number: int
    line: int
    text: str


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield what can be done to one node, as a description and a function that does it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        other = COMPARISONS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {other.__name__}", lambda n: _compare(n, other)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        new = ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
    is_number = isinstance(node, ast.Constant) and not isinstance(node.value, bool)
    if isinstance(node, ast.Constant) and is_number and isinstance(node.value, int | float):
        yield f"{node.value} -> {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.BoolOp):
        is_and = isinstance(node.op, ast.And)
        yield "and <-> or", lambda n: setattr(n, "op", ast.Or() if is_and else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield f"without {type(node.op).__name__}", lambda n: setattr(n, "op", ast.UAdd())
    if isinstance(node, ast.IfExp):
        yield "sides of a conditional", _swap
    if isinstance(node, ast.Attribute) and node.attr in PAIRS:
        yield f"{node.attr} -> {PAIRS[node.attr]}", lambda n: setattr(n, "attr", PAIRS[n.attr])
    if isinstance(node, ast.Constant) and node.value in ("amin", "amax"):
        yield f"{node.value} -> its pair", lambda n: setattr(n, "value", PAIRS[n.value])


def _compare(node: ast.AST, other: type[ast.cmpop]) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = other()


def _swap(node: ast.AST) -> None:
    assert isinstance(node, ast.IfExp)
    node.body, node.orelse = node.orelse, node.body


def mutable_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every node inside a function's body that is no annotation and no message."""
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        for statement in function.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # the docstring
            yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.arguments):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def all_mutants() -> list[Mutant]:
    """Return every mutant of every module of the parts, in order."""
    found: list[Mutant] = []
    for path in sorted(PARTS.glob("*.py")):
        if path.name in SKIPPED:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        number = 0
        for node in mutable_nodes(tree):
            for text, _ in changes(node):
                line = getattr(node, "lineno", 0)
                found.append(Mutant(path=path, number=number, line=line, text=text))
                number += 1
    return found


def mutated_tree(mutant: Mutant) -> ast.Module:
    """Return the module's tree with the one change made."""
    tree = copy.deepcopy(ast.parse(mutant.path.read_text(encoding="utf-8")))
    number = 0
    for node in list(mutable_nodes(tree)):
        for _, change in list(changes(node)):
            if number == mutant.number:
                change(node)
                return ast.fix_missing_locations(tree)
            number += 1
    raise AssertionError("a mutant has a place")


class _Source(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the changed module in place of the file's."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        self.name, self.mutant = name, mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return this loader for the changed module, and nothing for any other."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source."""
        code = compile(mutated_tree(self.mutant), str(self.mutant.path), "exec")
        exec(code, vars(module))


def run_child(mutant: Mutant | None, limit_s: int) -> int:
    """Fork, run the tests against a mutant, and return pytest's exit status."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    signal.alarm(limit_s)  # an endless loop is a noticed change
    with tempfile.TemporaryFile("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        import pytest

        if mutant is not None:
            name = f"agentgym.trainers.parts.{mutant.path.stem}"
            sys.meta_path.insert(0, _Source(name, mutant))
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS])
    os._exit(int(status))


def load_what_all_children_share() -> None:
    """Import what is slow to import and is no part: a fork has it for nothing.

    Shapes are not checked at run time here, which halves the time; the tests must notice a change
    by its numbers.
    """
    sys.modules["beartype"] = cast(ModuleType, None)
    import pydantic
    import torch
    import yaml

    import agentgym.records

    # Not those that are plugins of pytest, which it must import itself.
    shared = (pydantic, yaml, agentgym.records)
    assert all(shared)
    torch.set_num_threads(1)


def main() -> None:
    """Run a seeded sample and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many drawn")
    parser.add_argument(
        "--shard", default="0/1", help="I/N: every N-th of them from the I-th on, for N processes"
    )
    parser.add_argument("--only", default="", help="numbers of the sample, with commas between")
    parser.add_argument("--limit-s", type=int, default=600)
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    everything = all_mutants()
    drawn = random.Random(options.seed).sample(everything, min(options.count, len(everything)))
    print(f"{len(drawn)} of {len(everything)} mutants", flush=True)
    load_what_all_children_share()
    survivors = 0
    if run_child(None, options.limit_s) != 0:
        raise SystemExit("the tests fail without any change")
    first, of = map(int, options.shard.split("/"))
    chosen = list(enumerate(drawn))[options.skip :][first::of]
    if options.only:
        numbers = {int(part) for part in options.only.split(",")}
        chosen = [(at, mutant) for at, mutant in chosen if at in numbers]
    for at, mutant in chosen:
        if run_child(mutant, options.limit_s) == 0:
            survivors += 1
            print(f"{at:4d} survived {mutant.path.name}:{mutant.line}: {mutant.text}", flush=True)
    print(f"{survivors} survivors of {len(chosen)}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
