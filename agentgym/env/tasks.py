"""Tasks that an environment generates: `suite_of_env`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentgym import seeding
from agentgym.env import registry
from agentgym.env.author_code import author_code
from agentgym.env.suite import GeneratedSplit, Split, Suite
from agentgym.env.task_files import HELD_OUT, TRAIN
from agentgym.errors import TaskError
from agentgym.records import Json, Task

_HELD_OUT_SHARE = 8
"""Of the tasks that an environment generates by itself, one in so many is held out."""
_MAX_DRAWS = 2000
"""Draws to find a task of a split; at a share of 1/8 all of them miss once in 10**116."""


def suite_of_env(env_id: str, env_kwargs: Mapping[str, Json]) -> Suite:
    """Return the tasks that an environment generates, by its own splits or parted by content."""
    env = registry.make(env_id, **env_kwargs).unwrapped
    env_id = registry.spec(env_id).id  # without the module that registers it
    generate = _EnvTasks(env=env, draw=getattr(env, "own_task", None) or env.sample_task)
    drawn = {
        TRAIN: GeneratedSplit(generate=lambda index: generate.task(index, is_held_out=False)),
        HELD_OUT: GeneratedSplit(generate=lambda index: generate.task(index, is_held_out=True)),
    }
    # An environment that knows better which task is held out has a method `splits`.
    own: Callable[[], Mapping[str, Split]] | None = getattr(env, "splits", None)
    splits = drawn
    if own is not None:
        with author_code(env_id):
            splits = {split: _owned(tasks, env_id) for split, tasks in own().items()}
    return Suite(name=env_id, env_id=env_id, env_kwargs=dict(env_kwargs), splits=splits)


def _owned(split: Split, env_id: str) -> Split:
    """Return a split as the environment's own, also where its class takes the tasks of a base."""
    if not isinstance(split, GeneratedSplit):
        return tuple(replace(task, env_id=env_id) for task in split)
    generate = split.generate

    def own(index: int) -> Task:
        return replace(generate(index), env_id=env_id)

    return replace(split, generate=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EnvTasks:
    """Tasks from an environment's own generator. Which split a task is in follows from its
    content, so that the splits are disjoint by content as well as by seed.
    """

    env: Any
    """The unwrapped environment."""
    draw: Callable[[random.Random], Task]
    """Draws a task of its own."""

    def task(self, index: int, *, is_held_out: bool) -> Task:
        split = HELD_OUT if is_held_out else TRAIN
        for attempt in range(_MAX_DRAWS):
            task: Task = self.draw(seeding.rng("env-tasks", split, index, attempt))
            if (int(task.content_hash[:8], 16) % _HELD_OUT_SHARE == 0) == is_held_out:
                return replace(task, id=f"{split}-{index:06d}-{task.id}")
        raise TaskError(
            f"{self.env.env_id} generates too few different tasks to have both a train and a "
            "held-out split: define a suite with splits of its own"
        )
