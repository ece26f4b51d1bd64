"""The contract of task suites over every suite: `check_suite`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentgym.checks.suite import check_suite
from agentgym.env import registry
from agentgym.env.suites import list_suites, load_suite
from agentgym.env.task_files import HELD_OUT
from agentgym.errors import InfrastructureError, MissingExtraError, SandboxError

SUITES = list_suites()
GRADED_EACH = 24
SLOW = {"code": 3, "web": 2}
"""Family -> tasks of each split that are graded, where one starts programs or a browser."""
ABSENT = (MissingExtraError, InfrastructureError, SandboxError)


def require_available(name: str) -> None:
    """Skip where the suite's environment cannot pose a task for a reason that is not its own."""
    try:
        suite = load_suite(name)
        task = suite.task(HELD_OUT, 0)
        env = registry.make(suite.env_id, **task.env_kwargs)
        try:
            env.reset(seed=0, options={"task": task})
        finally:
            env.close()
    except ABSENT as error:
        pytest.skip(f"{name}: {error}")


def test_suites_are_listed() -> None:
    assert "math/arithmetic" in SUITES


@pytest.mark.parametrize("name", SUITES)
def test_suite_keeps_the_contract(name: str) -> None:
    require_available(name)
    graded_each = SLOW.get(name.split("/")[0], GRADED_EACH)
    report = check_suite(name, graded_each=graded_each)
    assert report.is_ok, str(report)


@pytest.mark.parametrize("name", SUITES)
def test_suite_names_its_tasks(name: str) -> None:
    require_available(name)
    suite = load_suite(name)
    assert HELD_OUT in suite.splits
    for split in suite.splits:
        task = suite.task(split, 0)
        assert (task.suite, task.split, task.env_id) == (name, split, suite.env_id)


LEVEL_OF = {
    "code/functions": 4,
    "code/repair": 5,
    "code/shell": 3,
    "math/arithmetic": 5,
    "games/guess-number": 3,
    "games/gridworld": 4,
    "games/wordle": 2,
    "search/graph": 5,
    "search/graph-easy": 1,
    "web/shop": 2,
}
"""Suite -> a level that is not the first of those it has by default."""


@pytest.mark.parametrize("name", LEVEL_OF)
def test_suite_is_of_the_levels_that_are_asked_for(name: str) -> None:
    suite = load_suite(name, env_kwargs={"levels": [LEVEL_OF[name]]})
    for split in suite.splits:
        assert {task.difficulty for task in suite.tasks(split, limit=6)} == {float(LEVEL_OF[name])}


def test_suite_of_pages_is_of_those_that_are_asked_for() -> None:
    require_available("web/miniwob")
    suite = load_suite("web/miniwob", env_kwargs={"task": "click-button"})
    assert [task.payload["page"] for task in suite.tasks("train", limit=3)] == ["click-button"] * 3


def test_suite_of_worlds_is_of_the_size_that_is_asked_for() -> None:
    suite = load_suite("search/graph-easy", env_kwargs={"documents": 50})
    assert suite.env_kwargs == {"levels": [2], "documents": 50}
    (task,) = suite.tasks("train", limit=1)
    assert cast("Any", task.payload["world"])["documents"] == 50
