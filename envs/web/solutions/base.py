"""What solutions are, and how they are found by the name of a page.

A solution gets the words of the task and the page as the agent sees it, and returns the next
action. It keeps no state: whatever was done before is read from the page.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from agentgym.envs.web.view import Node, View
from agentgym.errors import EnvError
from agentgym.records import Json

Call = tuple[str, dict[str, Json]]
"""Name of a tool, and its arguments."""
Solution = Callable[[str, View], Call]

_MODULES = ("clicking",)
SOLUTIONS: dict[str, Solution] = {}
"""Name of a page -> its solution."""


def solves(*pages: str) -> Callable[[Solution], Solution]:
    """Return a decorator that enters a solution for some pages."""

    def enter(solution: Solution) -> Solution:
        SOLUTIONS.update(dict.fromkeys(pages, solution))
        return solution

    return enter


def solution_of(page: str) -> Solution | None:
    """Return the solution of a page; None if none is scripted."""
    return all_solutions().get(page)


def all_solutions() -> Mapping[str, Solution]:
    """Return every solution by the name of its page."""
    for module in _MODULES:
        importlib.import_module(f"agentgym.envs.web.solutions.{module}")
    return SOLUTIONS


def click(node: Node | None) -> Call:
    """Return the click on an element.

    Raises:
        EnvError: If there is none: the page is not as the solution expects it.
    """
    if node is None or node.id is None:
        raise EnvError("the scripted solution does not find its element on the page")
    return "click", {"id": node.id}
