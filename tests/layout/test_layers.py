"""Import layers: no circles, no arrow that points up, and folders that a reader can take in.

Inside each package, its modules and sub-packages are the nodes, and an import between two of them
is an arrow. Imports for type checkers alone are left out: nothing runs because of them.
"""

from __future__ import annotations

import functools

import grimp
import pytest

import agentgym

MAX_MODULES_BESIDE_FOLDERS = 15
# From the lowest layer up; a name may import what stands in a line above its own.
LAYERS = {
    "agentgym": (
        "concurrency errors redaction seeding",
        "files records",
        "http renderer tool_formats",
        "env policies",
        "config rollouts serving tasks testing",
        "checks evaluation",
        "runs sandbox",
        "api envs trainers",
        "cli",
        "__main__",
    ),
    "agentgym.trainers": (
        "parts rollout",
        "batch",
        "objective",
        "learner",
        "models",
        "weight_sync",
        "loop",
    ),
    "agentgym.sandbox": (
        "base inside",
        "host registry supervised",
        "backends python_session",
        "doctor pool",
        "shared_pools",
    ),
}


@functools.cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("agentgym", exclude_type_checking_imports=True, cache_dir=None)


def _packages() -> list[str]:
    modules = _graph().modules
    parents = {module.rpartition(".")[0] for module in modules}
    return sorted(parents & modules)


def _child(package: str, module: str) -> str:
    return module.removeprefix(f"{package}.").partition(".")[0]


def _arrows(package: str) -> dict[str, dict[str, list[str]]]:
    """Return for each node of a package the nodes it imports, with the imports in words."""
    graph, inside = _graph(), f"{package}."
    arrows: dict[str, dict[str, list[str]]] = {}
    for module in sorted(name for name in graph.modules if name.startswith(inside)):
        node = arrows.setdefault(_child(package, module), {})
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if not imported.startswith(inside):
                continue
            other = _child(package, imported)
            if other != _child(package, module):
                node.setdefault(other, []).append(f"{module} imports {imported}")
    return arrows


def _circle(arrows: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return the nodes that are left when what imports nothing left is taken away."""
    left = {node: set(others) for node, others in arrows.items()}
    while free := [node for node, others in left.items() if not others & set(left)]:
        for node in free:
            del left[node]
    return sorted(left)


@pytest.mark.parametrize("package", _packages())
def test_no_package_has_a_circle_of_imports(package: str) -> None:
    arrows = _arrows(package)
    circle = _circle(arrows)
    assert circle == [], [
        words
        for node in circle
        for other, imports in arrows[node].items()
        if other in circle
        for words in imports
    ]


def test_a_circle_would_be_found() -> None:
    arrows: dict[str, dict[str, list[str]]] = {
        "top": {"left": []},
        "left": {"right": []},
        "right": {"left": []},
        "base": {},
    }
    assert _circle(arrows) == ["left", "right", "top"]
    del arrows["right"]["left"]
    assert _circle(arrows) == []


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_no_arrow_points_up(package: str) -> None:
    depth = {name: at for at, names in enumerate(LAYERS[package]) for name in names.split()}
    arrows = _arrows(package)
    assert set(depth) == set(arrows), "each module and folder stands in one layer of the table"
    upward = [
        words
        for node, others in arrows.items()
        for other, imports in others.items()
        if depth[other] >= depth[node]
        for words in imports
    ]
    assert upward == []


@pytest.mark.parametrize("package", _packages())
def test_folders_are_small(package: str) -> None:
    folders = {name for name in _packages() if name.rpartition(".")[0] == package}
    modules = {name for name in _graph().modules if name.rpartition(".")[0] == package} - folders
    # Parts lie beside each other in one folder on purpose: one module for each slot.
    assert not folders or len(modules) <= MAX_MODULES_BESIDE_FOLDERS, sorted(modules)


def test_roots_show_the_plan() -> None:
    graph = _graph()
    roots = {
        package: [m for m in graph.modules if m.rpartition(".")[0] == package]
        for package in ("agentgym", "agentgym.trainers")
    }
    folders = set(_packages())
    assert len([m for m in roots["agentgym"] if m not in folders]) <= 6
    assert len(roots["agentgym.trainers"]) <= 10
    assert len(LAYERS["agentgym.trainers"]) <= 7


def test_no_package_hides_a_public_name() -> None:
    """An imported sub-package becomes an attribute, in the place of a function of that name."""
    roots = {module.partition(".")[2] for module in _graph().modules if module.count(".") == 1}
    assert roots & set(agentgym.__all__) == set()
