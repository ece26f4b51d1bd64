"""What solutions are, how they are found, and what they share.

A solution gets the words of the task, the page as the agent sees it and the number of actions taken
before, and returns the next action. It keeps no state.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping

from agentgym.envs.web.browser.view import Node, View
from agentgym.errors import EnvError
from agentgym.records import Json

Call = tuple[str, dict[str, Json]]
"""Name of a tool, and its arguments."""
Solution = Callable[[str, View, int], Call]
"""(words of the task, page, actions before) -> next action."""

_MODULES = ("clicking", "forms", "mail", "reading")
SOLUTIONS: dict[str, Solution] = {}
"""Name of a page -> its solution."""
WAIT: Call = ("press", {"key": "Escape"})
"""An action that changes nothing, but takes its time."""


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
        importlib.import_module(f"agentgym.envs.web.miniwob.solutions.{module}")
    return SOLUTIONS


# -- actions -----------------------------------------------------------------------------------


def click(node: Node | None) -> Call:
    """Return the click on an element.

    Raises:
        EnvError: If there is none: the page is not as the solution expects it.
    """
    return "click", {"id": _id_of(node)}


def fill(node: Node | None, text: str) -> Call | None:
    """Return what types a text into a field; None if it holds it already."""
    held = node.value if node is not None else None
    is_hidden = node is not None and "password" in node.states
    if held == ("*" * len(text) if is_hidden else text):
        return None
    return "type", {"id": _id_of(node), "text": text}


def choose(node: Node | None, option: str) -> Call | None:
    """Return what chooses an option; None if it is chosen already."""
    if node is not None and option in (node.value or "").split(" | "):
        return None
    return "select", {"id": _id_of(node), "option": option}


def first_of(*calls: Call | None) -> Call:
    """Return the first action that is still needed."""
    return next(call for call in calls if call is not None)


def submit(view: View, name: str = "Submit") -> Call:
    """Return the click on the button that ends a task."""
    return click(view.first("button", name=name))


# -- reading -----------------------------------------------------------------------------------


def quoted(text: str) -> list[str]:
    """Return the parts of a text in double quotes."""
    return re.findall(r'"([^"]*)"', text)


def matched(pattern: str, text: str) -> tuple[str, ...]:
    """Return the groups of a pattern in the words of a task.

    Raises:
        EnvError: If they are not as the solution expects them.
    """
    found = re.search(pattern, text)
    if found is None:
        raise EnvError(f"the scripted solution does not understand {text!r}")
    return found.groups()


def after(view: View, node: Node, *roles: str, hint: str = "", name: str = "") -> Node | None:
    """Return the first element after another one that has a role, class or name."""
    nodes = view.nodes[view.nodes.index(node) + 1 :]
    return next(
        (
            one
            for one in nodes
            if one.id is not None
            and (not roles or one.role in roles)
            and (not hint or hint in one.hint.split())
            and (not name or one.name == name)
        ),
        None,
    )


def by_hint(view: View, hint: str) -> Node | None:
    """Return the first element of a class."""
    return next((node for node in view.all() if hint in node.hint.split()), None)


def ordinal(text: str) -> int:
    """Return `3rd` as 3."""
    return int(matched(r"(\d+)(?:st|nd|rd|th)", text)[0])


def _id_of(node: Node | None) -> int:
    if node is None or node.id is None:
        raise EnvError("the scripted solution does not find its element on the page")
    return node.id
