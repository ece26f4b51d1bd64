"""The suites of the family math whose tasks are generated."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from agentgym.suites import GeneratedSplit, Suite


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
