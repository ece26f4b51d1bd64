"""The process that makes and scores puzzles: `python -m agentgym.envs.math.reasoning.worker`.

reasoning-gym runs here and nowhere else: some of its data sets depend on the order of sets or on
global generators, and some of its scorers evaluate what the agent wrote. Each process has the same
hash seed, touches nobody else's generators, and is killed when it takes too long (`processes`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import logging
import math
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from agentgym.envs.math.processes import serve

CHUNK = 4096
"""Items of one data set object; a chunk's seed is its first item's number, so no item repeats."""
_CACHED = 16

_EVALUATED = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
"""Data sets whose scorers call `eval` on the answer."""
_SYMBOLIC = frozenset(
    {"simple_integration", "intermediate_integration", "polynomial_multiplication"}
)
"""Data sets whose scorers hand the answer to sympy's parser, which evaluates it."""
_COUNTED = frozenset({"puzzle24", "countdown"})
"""Data sets that do the same, and count the numbers used: with a letter (`45*0j`) or a point
(`4.96`) numbers would be got rid of; `//` and `**` are no operators of these games."""
_PLAIN_SYNTAX = (
    ast.Expression,
    ast.List,
    ast.Tuple,
    ast.Constant,
    ast.Load,
    ast.UnaryOp,
    ast.USub,
    ast.Name,
)
_MARKS = frozenset({"tuple", "items", "fraction"})
_FORMULA = re.compile(r"[0-9A-Za-z_\s+\-*/^().,=!|]*")
_SUM = re.compile(r"(?:[0-9\s+\-()]|\*(?!\s*\*)|/(?!\s*/))*")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]|__|[0-9.][A-Za-z]")
"""A dot before a letter, and a letter after a number: `2j` is imaginary, `1e9` huge."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_UNSOLVED = "Integral"
"""Stands in gold answers that sympy could not work out to the end."""
_NUMERIC = re.compile(r"(?=.*[0-9])[-+*/^()\[\].,:%$\s0-9eijEIJ]+", re.DOTALL)
_NO_NUMBER = re.compile(r"nan|inf", re.IGNORECASE)
_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("exp", "log", "ln", "sqrt", "Abs", "pi", "erf", "Si", "Ci", "Integral"),
    }
)


def main() -> None:
    """Answer requests until the input ends."""
    logging.disable(logging.CRITICAL)
    serve(answer, prepare=lambda: importlib.import_module("reasoning_gym"))


def answer(request: dict[str, Any]) -> Mapping[str, Any]:
    """Return `{"result": ...}`, or `{"error": message}` if the library refuses.

    Requests have an `op`: `names`, `check`, `generate` or `score`.
    """
    operations: dict[str, Callable[[dict[str, Any]], Any]] = {
        "names": lambda _: sorted(_library().factory.DATASETS),
        "check": lambda r: len(_dataset(r["dataset"], json.dumps(r["settings"]), 0)) > 0,
        "generate": _generate,
        "score": _score,
    }
    try:
        return {"result": operations[request["op"]](request)}
    except Exception as error:  # noqa: BLE001 - a library's refusal, of any kind, becomes data
        return {"error": f"{type(error).__name__}: {error}"}


def may_be_evaluated(dataset: str, text: str) -> bool:
    """Return whether the library's scorer can be trusted with `text`.

    Answers that hold anything but data or a formula are worth nothing anyway; without this check
    the agent's text would run as a program.
    """
    if dataset in _COUNTED:
        return _SUM.fullmatch(text) is not None
    if dataset in _SYMBOLIC:
        words = _WORD.findall(text)
        return (
            _FORMULA.fullmatch(text) is not None
            and _ATTRIBUTE.search(text) is None
            and all(len(word) == 1 or word in _FUNCTIONS for word in words)
        )
    if dataset in _EVALUATED:
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return True  # `eval` fails as well
        return all(isinstance(node, _PLAIN_SYNTAX) for node in ast.walk(tree))
    return True


def is_no_number(gold: str | None, text: str) -> bool:
    """Return whether `text` has a NaN or an infinity where the gold answer is made of numbers.

    A scorer takes the distance from NaN for none, since no comparison with it holds.
    """
    return (
        gold is not None
        and _NUMERIC.fullmatch(gold) is not None
        and _NO_NUMBER.search("".join(text.split())) is not None
    )


def encode(value: Any) -> Any:
    """Return JSON from which `decode` makes an equal value: tuples and odd keys are marked."""
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not value.keys() & _MARKS:
            return {str(key): encode(item) for key, item in value.items()}
        return {"items": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, str):
        return str(value)  # numpy has strings of its own
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"no JSON for {type(value).__name__}")


def decode(value: Any) -> Any:
    """Return the value that `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tuple"}:
        return tuple(decode(item) for item in value["tuple"])
    if value.keys() == {"fraction"}:
        return Fraction(value["fraction"])
    if value.keys() == {"items"}:
        return {decode(key): decode(item) for key, item in value["items"]}
    return {key: decode(item) for key, item in value.items()}


def _generate(request: dict[str, Any]) -> Any:
    """Return item `number` of a data set: question, answer and metadata without its position."""
    name, number = request["dataset"], request["number"]
    # The library leaves nothing to the global generator, but a contributed generator does.
    random.seed(number)  # noqa: TID251 - this process is the library's own
    item = _dataset(name, json.dumps(request["settings"]), number // CHUNK * CHUNK)[number % CHUNK]
    metadata = {
        key: value
        for key, value in item["metadata"].items()
        if key not in {"source_dataset", "source_index"}
    }
    entry = {"question": item["question"], "answer": item["answer"], "metadata": metadata}
    return {"entry": encode(entry), "gold": _gold(entry)}


def _gold(entry: dict[str, Any]) -> str | None:
    """Return an answer that the scorer accepts; None where the library knows none itself.

    Where many answers are right the library leaves the answer open and puts an example aside.
    """
    examples = entry["metadata"]
    for example in ("example_answer", "example_correct_answer", "possible_answer"):
        if entry["answer"] is None and example in examples:
            found = examples[example]
            return str(found) if isinstance(found, str) else json.dumps(found)
    return str(entry["answer"]) if entry["answer"] is not None else None


def _score(request: dict[str, Any]) -> float:
    name, text = request["dataset"], request["answer"]
    entry = decode(request["entry"])
    gold = _gold(entry)
    if not may_be_evaluated(name, text) or is_no_number(gold, text):
        return 0.0
    if name in _SYMBOLIC and _UNSOLVED in text and _UNSOLVED not in str(gold):
        return 0.0  # the question itself, written as the parser reads it
    dataset = _dataset(name, json.dumps(request["settings"]), 0)
    score = float(dataset.score_answer(text, entry))
    return score if math.isfinite(score) else 0.0


@functools.lru_cache(maxsize=_CACHED)
def _dataset(name: str, settings: str, seed: int) -> Any:
    return _library().create_dataset(name, seed=seed, size=CHUNK, **json.loads(settings))


def _library() -> Any:
    return importlib.import_module("reasoning_gym")


if __name__ == "__main__":
    main()
