"""Tasks of `web/miniwob-v0`: which pages, drawn with which seeds, in which split."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.web.miniwob.site import page_names
from agentgym.errors import EnvError, nearest
from agentgym.records import Task

ENV_ID = "web/miniwob-v0"
SPLITS = splits.SPLITS
HELD_OUT_SHARE = 4
"""One seed in so many is held out."""
SEEDS = 2**31
FEW = "few"
"""Marks a page with few problems in the list."""
NULL_SCORE = 0.1
"""What random clicks reach on the suite's pages, some of which have two or three buttons."""


def solved_pages() -> tuple[str, ...]:
    """Return the pages that a scripted solution exists for, in order."""
    return tuple(words[0] for words in _listed())


def suite_pages() -> tuple[str, ...]:
    """Return those of them that have many different problems."""
    return tuple(words[0] for words in _listed() if FEW not in words)


@functools.cache
def _listed() -> tuple[tuple[str, ...], ...]:
    text = (Path(__file__).parent / "miniwob_solved.txt").read_text(encoding="utf-8")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return tuple(tuple(words) for words in lines if words)


def check_tasks(task: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names of pages in order; those of the suite for None.

    Raises:
        EnvError: If the package has no such page.
    """
    if task is None:
        return suite_pages()
    names = (task,) if isinstance(task, str) else tuple(task)
    for name in names:
        if name not in page_names():
            raise EnvError(f"miniwob has no page {name!r}{nearest(name, page_names())}")
    if not names:
        raise EnvError("'task' must name at least one page, or be None (got none)")
    return tuple(dict.fromkeys(names))


def is_held_out(page: str, seed: int) -> bool:
    """Return whether a page with a seed belongs to the held-out split."""
    return seeding.derive("miniwob", page, seed) % HELD_OUT_SHARE == 0


def generate_task(
    index: int, *, split: str = "train", task: str | Sequence[str] | None = None
) -> Task:
    """Return task number `index` of a split; pages take turns.

    Raises:
        EnvError: If the split, a page or the index is not one.
    """
    pages = check_tasks(task)
    splits.check_request(index, split)
    page, number = pages[index % len(pages)], index // len(pages)
    rng = seeding.rng("miniwob", page, split, number)
    while True:
        seed = rng.randrange(SEEDS)
        if is_held_out(page, seed) == (split == "held_out"):
            break
    return Task(
        id=f"miniwob-{page}-{split}-{number:06d}",
        env_id=ENV_ID,
        payload={"page": page, "seed": seed},
        tags=(page,),
        split=split,
    )


def draw_task(rng: random.Random, *, tasks: Sequence[str]) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(SEEDS), task=tasks)
