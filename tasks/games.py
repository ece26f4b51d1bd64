"""The suites of the family games; their tasks are generated."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from agentgym.env.suite import GeneratedSplit, Suite


def guess_number(*, levels: Sequence[int] | None = None) -> Suite:
    """Return `games/guess-number`: five levels in turn, splits disjoint by interval and secret."""
    return _suite("guess_number", "games/guess-number", levels)


def gridworld(*, levels: Sequence[int] | None = None) -> Suite:
    """Return `games/gridworld`: five levels in turn, splits disjoint by map."""
    return _suite("gridworld", "games/gridworld", levels)


def wordle(*, levels: Sequence[int] | None = None) -> Suite:
    """Return `games/wordle`: three levels in turn, splits disjoint by hidden word."""
    return _suite("wordle", "games/wordle", levels)


def _suite(module: str, name: str, levels: Sequence[int] | None) -> Suite:
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module(f"agentgym.envs.games.{module}")
    chosen: Any = generator.LEVELS if levels is None else levels
    sizes: Any = getattr(generator, "split_size", lambda split, levels: None)
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split, levels=chosen),
            size=sizes(split, levels=chosen),
        )
        for split in ("train", "held_out")
    }
    return Suite(name=name, env_id=generator.ENV_ID, splits=splits)
