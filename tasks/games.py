"""The suites of the family games; their tasks are generated."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from agentgym.suites import GeneratedSplit, Suite


def guess_number() -> Suite:
    """Return `games/guess-number`: five levels in turn, splits disjoint by interval and secret."""
    return _suite("guess_number", "games/guess-number")


def gridworld() -> Suite:
    """Return `games/gridworld`: five levels in turn, splits disjoint by map."""
    return _suite("gridworld", "games/gridworld")


def wordle() -> Suite:
    """Return `games/wordle`: three levels in turn, splits disjoint by hidden word."""
    return _suite("wordle", "games/wordle")


def _suite(module: str, name: str) -> Suite:
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module(f"agentgym.envs.games.{module}")
    sizes: Any = getattr(generator, "split_size", lambda _: None)
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split), size=sizes(split)
        )
        for split in ("train", "held_out")
    }
    return Suite(name=name, env_id=generator.ENV_ID, splits=splits)
