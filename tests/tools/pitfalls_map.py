"""Write tests/pitfalls.md: which test holds which pitfall (`make pitfalls`).

A pitfall is a fault that users of comparable projects met; tests/data/pitfall_titles.tsv names
them. A test says which it holds by its name's end (`test_closing_tag_in_a_string_c1`,
`test_masks_b1_b3`) or in its docstring (`Pitfall C1`, `Pitfalls B1, B3`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
TITLES = TESTS / "data" / "pitfall_titles.tsv"
PAGE = TESTS / "pitfalls.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef

_NAME_END = re.compile(r"(?:_[a-n]\d{1,2})+$")
_DOCSTRING = re.compile(r"[Pp]itfalls?\s+((?:[A-N]\d{1,2}(?:\s*(?:,|and|&)\s*)?)+)")
# In the trainers' tests these are the estimators k1, k2, k3 of the KL divergence.
_KL_ESTIMATORS = {"K1", "K2", "K3"}


def titles() -> dict[str, str]:
    """Return the title of each pitfall by its id, in the order of the table."""
    lines = TITLES.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if line)


def ids_of(name: str, docstring: str, *, is_trainer: bool) -> set[str]:
    """Return the ids that a test's name and docstring claim.

    Example:
        `ids_of("test_masks_b1_b3", "Pitfall C1.", is_trainer=False)` is {"B1", "B3", "C1"}.
    """
    end = _NAME_END.search(name)
    from_name = set(end.group().upper().strip("_").split("_")) if end else set[str]()
    if is_trainer:
        from_name -= _KL_ESTIMATORS
    stated = _DOCSTRING.findall(docstring)
    return from_name | {found for group in stated for found in re.findall(r"[A-N]\d{1,2}", group)}


def test_functions(path: Path) -> Iterator[Function]:
    """Yield the test functions of a file, methods of test classes included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def collect() -> dict[str, list[str]]:
    """Return the tests (`folder/test_x.py::test_y`) that hold each pitfall."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        relative = path.relative_to(TESTS).as_posix()
        if relative.startswith("layout/"):
            continue
        for function in test_functions(path):
            docstring = ast.get_docstring(function) or ""
            is_trainer = relative.startswith("trainers/")
            for pitfall in ids_of(function.name, docstring, is_trainer=is_trainer):
                found[pitfall].append(f"{relative}::{function.name}")
    return found


def page(found: dict[str, list[str]]) -> str:
    """Return the text of tests/pitfalls.md.

    Raises:
        ValueError: If a test claims a pitfall that the table does not have.
    """
    known = titles()
    if unknown := sorted(set(found) - set(known)):
        tests = ", ".join(test for pitfall in unknown for test in found[pitfall])
        raise ValueError(f"no such pitfall: {', '.join(unknown)} (claimed by {tests})")
    held = [pitfall for pitfall in known if found.get(pitfall)]
    lines = [
        "# Pitfalls and the tests that hold them",
        "",
        "Faults that users of comparable projects met. Written by `make pitfalls`; a test claims",
        "one by the end of its name (`…_c1`) or in its docstring (`Pitfall C1`).",
        f"{len(held)} of {len(known)} are held by a test.",
        "",
        "| pitfall | what goes wrong | tests |",
        "|---|---|---|",
    ]
    for pitfall in held:
        tests = "<br>".join(f"`{test}`" for test in sorted(found[pitfall]))
        lines.append(f"| {pitfall} | {known[pitfall]} | {tests} |")
    missing = ", ".join(pitfall for pitfall in known if pitfall not in held)
    lines += ["", f"Not held by a test of this page: {missing or 'none'}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(collect()), encoding="utf-8")
