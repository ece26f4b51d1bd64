"""The contract of task suites over every suite: `check_suite`."""

from __future__ import annotations

import pytest

from agentgym.checks.suite import check_suite
from agentgym.errors import InfrastructureError, MissingExtraError, SandboxError
from agentgym.suites import HELD_OUT, list_suites, load_suite

SUITES = list_suites()
GRADED_EACH = 24
SLOW = {"code": 3, "web": 3}
"""Family -> tasks of each split that are graded, where one starts programs or a browser."""
ABSENT = (MissingExtraError, InfrastructureError, SandboxError)


def test_suites_are_listed() -> None:
    assert "math/arithmetic" in SUITES


@pytest.mark.parametrize("name", SUITES)
def test_suite_keeps_the_contract(name: str) -> None:
    try:
        graded_each = SLOW.get(name.split("/")[0], GRADED_EACH)
        report = check_suite(name, graded_each=graded_each)
    except ABSENT as error:
        pytest.skip(f"{name}: {error}")
    assert report.is_ok, str(report)


@pytest.mark.parametrize("name", SUITES)
def test_suite_names_its_tasks(name: str) -> None:
    try:
        suite = load_suite(name)
    except ABSENT as error:
        pytest.skip(f"{name}: {error}")
    assert HELD_OUT in suite.splits
    for split in suite.splits:
        task = suite.task(split, 0)
        assert (task.suite, task.split, task.env_id) == (name, split, suite.env_id)
