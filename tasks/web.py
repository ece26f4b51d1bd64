"""The suites of the family web."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from agentgym.env.suite import GeneratedSplit, Suite


def miniwob(*, task: str | Sequence[str] | None = None) -> Suite:
    """Return `web/miniwob`: pages in turn, splits disjoint by page and seed."""
    return _suite("web/miniwob", "miniwob.tasks", task=task)


def shop(*, levels: Sequence[int] = (1, 2, 3, 4, 5)) -> Suite:
    """Return `web/shop`: five levels in turn, splits disjoint by what products are like."""
    return _suite("web/shop", "shop.tasks", levels=levels)


def _suite(name: str, module: str, **chosen: Any) -> Suite:
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module(f"agentgym.envs.web.{module}")
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split, **chosen)
        )
        for split in generator.SPLITS
    }
    return Suite(name=name, env_id=generator.ENV_ID, splits=splits)
