"""The generator of functions to mend: those of `function_tasks`, with one small fault.

A function is held out here exactly if it is held out there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.code.equivalence import FUNCTION, compiled
from agentgym.envs.code.function_tasks import (
    LEVELS,
    REPAIR_ENV_ID,
    SPLITS,
    Program,
    cases_of,
    check_levels,
    draw_program,
    fails_a_case,
    read_cases,
)
from agentgym.envs.code.grading import Case
from agentgym.envs.code.mutations import mutants
from agentgym.records import Task
from agentgym.sandbox.inside.values import encode

ENV_ID = REPAIR_ENV_ID

__all__ = ["ENV_ID", "LEVELS", "SPLITS", "draw_task", "generate_task"]


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; the levels take turns.

    Args:
        index: Position from 0.
        split: `train` or `held_out`.
        levels: Levels of the function, 1 to 5.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    rng = seeding.rng("code/repair", level, split, number)
    while True:
        program = draw_program(rng, level, split)
        broken = _broken(rng, program)
        if broken is not None:
            return _task(program, *broken, level=level, split=split, number=number)


def draw_task(rng: random.Random, *, levels: Sequence[int] = LEVELS) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(2**31), levels=levels)


def _broken(rng: random.Random, program: Program) -> tuple[str, Case] | None:
    """Return a version with a fault and the test that shows it; None if no fault shows."""
    cases = read_cases([row for rows in cases_of(program).values() for row in rows])
    candidates = [source for source in mutants(program.source) if "return None" not in source]
    rng.shuffle(candidates)
    for source in candidates:
        case = fails_a_case(compiled(source), cases)
        if case is not None:
            return source, case
    return None


def _task(
    program: Program, source: str, case: Case, *, level: int, split: str, number: int
) -> Task:
    payload: dict[str, Any] = {"function": FUNCTION, "level": level, "broken": source}
    payload |= cases_of(program)
    payload["public"] = [encode([case.arguments[0], case.expected]), *payload["public"]]
    return Task(
        id=f"repair-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=f"{FUNCTION}(x) should do this: {program.words}. But it has a fault:\n\n{source}\n\n"
        f"{case.shown(FUNCTION)} must return {case.expected!r}.",
        answers=(program.source,),
        payload=payload,
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )
