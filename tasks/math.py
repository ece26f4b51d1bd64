"""The suites of the family math, whose tasks are generated."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.records import Json


def arithmetic(*, levels: Sequence[int] = (1, 2, 3)) -> Suite:
    """Return `math/arithmetic`: the levels take turns, the splits are disjoint by operands."""
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module("agentgym.envs.math.arithmetic_tasks")
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split, levels=tuple(levels))
        )
        for split in generator.SPLITS
    }
    return Suite(name="math/arithmetic", env_id=generator.ENV_ID, splits=splits)


REASONING_MIX = (
    *("basic_arithmetic", "chain_sum", "gsm_symbolic", "leg_counting", "number_sequence"),
    *("simple_equations", "fraction_simplification", "base_conversion", "calendar_arithmetic"),
    *(
        "string_manipulation",
        "word_sequence_reversal",
        "word_sorting",
        "spell_backward",
        "caesar_cipher",
    ),
    *("family_relationships", "knights_knaves", "number_filtering", "countdown"),
)
"""Data sets of `math/reasoning-mix`: arithmetic, algebra, letters and logic, all made quickly."""


def gsm_symbolic(*, settings: Mapping[str, Json] | None = None) -> Suite:
    """Return `math/gsm-symbolic`: grade-school problems with new names and numbers."""
    return _puzzles("math/gsm-symbolic", ("gsm_symbolic",), settings)


def reasoning_mix(
    *, dataset: Sequence[str] = REASONING_MIX, settings: Mapping[str, Json] | None = None
) -> Suite:
    """Return `math/reasoning-mix`: data sets of reasoning-gym that take turns."""
    return _puzzles("math/reasoning-mix", tuple(dataset), settings)


def _puzzles(name: str, datasets: tuple[str, ...], settings: Mapping[str, Json] | None) -> Suite:
    generator: Any = importlib.import_module("agentgym.envs.math.reasoning.puzzles")
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(
                generator.generate_task, split=split, datasets=datasets, settings=settings
            ),
            size=generator.SIZE,
        )
        for split in generator.SPLITS
    }
    return Suite(
        name=name,
        env_id=generator.ENV_ID,
        env_kwargs={"dataset": list(datasets), "settings": dict(settings or {})},
        splits=splits,
    )
