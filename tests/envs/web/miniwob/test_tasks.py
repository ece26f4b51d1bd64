"""Which pages and seeds are tasks; needs the package miniwob, no browser."""

from __future__ import annotations

import pytest

pytest.importorskip("miniwob", reason="needs the extra web")

from agentgym.env.suites import check_leaks, load_suite
from agentgym.envs.web.miniwob.site import page_names
from agentgym.envs.web.miniwob.solutions.base import all_solutions
from agentgym.envs.web.miniwob.tasks import (
    check_tasks,
    generate_task,
    is_held_out,
    solved_pages,
    suite_pages,
)
from agentgym.errors import EnvError


def test_at_least_sixty_pages_are_listed_and_scripted() -> None:
    assert len(solved_pages()) >= 60
    assert set(solved_pages()) <= set(page_names())
    assert set(all_solutions()) == set(solved_pages())
    assert len(set(solved_pages())) == len(solved_pages())


def test_pages_with_few_problems_are_not_in_the_suite_m6() -> None:
    """All seeds of `click-test` give one page: a split by seed would share it."""
    assert set(suite_pages()) < set(solved_pages())
    assert not {"click-test", "click-test-2", "focus-text", "use-spinner"} & set(suite_pages())
    assert len(suite_pages()) >= 60


def test_splits_are_disjoint_by_page_and_seed_m6() -> None:
    suite = load_suite("web/miniwob")
    train = suite.tasks("train", limit=600)
    held_out = suite.tasks("held_out", limit=600)
    check_leaks(train, held_out)
    keys = [
        {(str(t.payload["page"]), str(t.payload["seed"])) for t in part}
        for part in (train, held_out)
    ]
    assert keys[0].isdisjoint(keys[1])
    assert len(keys[0]) == 600
    assert all(is_held_out(page, int(seed)) for page, seed in keys[1])
    assert {page for page, _ in keys[0]} == set(suite_pages())


def test_tasks_are_the_same_again() -> None:
    assert generate_task(7, split="train") == generate_task(7, split="train")
    assert generate_task(7, task="click-tab").payload["page"] == "click-tab"


def test_wrong_requests_are_named() -> None:
    with pytest.raises(EnvError, match="'split' must be one of"):
        generate_task(0, split="test")
    with pytest.raises(EnvError, match="'index' must be >= 0"):
        generate_task(-1)
    with pytest.raises(EnvError, match="at least one page"):
        check_tasks(())
