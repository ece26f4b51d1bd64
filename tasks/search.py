"""The suites of the family search."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from agentgym.suites import GeneratedSplit, Suite

EASY_LEVELS = (2,)
HARD_LEVELS = (3, 4, 5)


def graph_easy() -> Suite:
    """Return `search/graph-easy`: two steps in small worlds, each task in a world of its own."""
    return _graph("search/graph-easy", EASY_LEVELS)


def graph() -> Suite:
    """Return `search/graph`: two to five steps in one world of 10,000 documents."""
    return _graph("search/graph", HARD_LEVELS)


def corpus() -> Suite:
    """Return `search/corpus`: the example of `search/corpus-v0`, questions about 400 documents."""
    module: Any = importlib.import_module("agentgym.envs.search.corpus")
    tasks = module.read_tasks(module.Files(None, ()))
    splits = {
        split: tuple(task for task in tasks if task.split == split)
        for split in ("train", "held_out")
    }
    return Suite(name="search/corpus", env_id=module.ENV_ID, splits=splits)


def _graph(name: str, levels: tuple[int, ...]) -> Suite:
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module("agentgym.envs.search.graph_tasks")
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split, levels=levels)
        )
        for split in generator.SPLITS
    }
    return Suite(
        name=name, env_id=generator.ENV_ID, env_kwargs={"levels": list(levels)}, splits=splits
    )
