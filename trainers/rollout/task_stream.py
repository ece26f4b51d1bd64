"""Which task is drawn when: weighted suites as one stream of tasks, indexed by a number.

A draw is a pure function of the run's seed and its index, so the state of the stream is one
number, and a resumed run goes on with the task that an unbroken one would have drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentgym import seeding
from agentgym.config import EnvSource
from agentgym.env import suites
from agentgym.env.suite import Suite
from agentgym.env.suites import LeakError
from agentgym.records import Json, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedSuite:
    """A suite's split with its share of the draws."""

    suite: Suite
    """Where the tasks come from."""
    split: str
    """Which of its splits."""
    weight: float
    """Share of the draws, relative to the others."""


class TaskStream:
    """Tasks of several suites by index.

    A bounded split is gone through in a new order in every pass, so each of its tasks comes once
    in a pass; an unbounded one is drawn in its own order. Suites take turns by their weights.

    Args:
        sources: Where the tasks come from.
        seed: Seed of the order.
        held_out: Content hashes of tasks that must never be trained on.

    Example:
        stream = TaskStream(open_sources(config.envs), seed=0)
        stream.draw(17)
    """

    def __init__(
        self, sources: Sequence[WeightedSuite], *, seed: int, held_out: Collection[str] = ()
    ) -> None:
        self._sources = tuple(sources)
        self._seed = seed
        self._held_out = frozenset(held_out)
        total = sum(source.weight for source in self._sources)
        shares = [source.weight / total for source in self._sources]
        self._bounds = tuple(itertools.accumulate(shares))
        self._orders: dict[tuple[int, int], list[int]] = {}

    def draw(self, index: int) -> Task:
        """Return the task of draw number `index`, counted from 0 over the whole run.

        Raises:
            LeakError: If it is one of the held-out tasks.
        """
        task = self._draw(index)
        if self._held_out and task.content_hash in self._held_out:
            raise LeakError(
                f"the training task {task.id!r} is a held-out task by its content: "
                "take it out, or pass --allow-leak"
            )
        return task

    def _draw(self, index: int) -> Task:
        if len(self._sources) == 1:
            return self._task(0, index)
        point = seeding.rng(self._seed, "source", index).random()
        chosen = next(
            (i for i, bound in enumerate(self._bounds) if point < bound), len(self._bounds) - 1
        )
        # Each suite counts its own draws by the run's: unbounded, and different in every draw.
        return self._task(chosen, index)

    def _task(self, source_index: int, index: int) -> Task:
        source = self._sources[source_index]
        size = source.suite.size(source.split)
        if size is None:
            return source.suite.task(source.split, index)
        cycle, position = divmod(index, size)
        key = (source_index, cycle)
        if key not in self._orders:
            order = list(range(size))
            seeding.rng(self._seed, source.suite.name, cycle).shuffle(order)
            self._orders = {key: order}
        return source.suite.task(source.split, self._orders[key][position])


def open_sources(sources: Sequence[EnvSource]) -> tuple[WeightedSuite, ...]:
    """Return the suites that a config names.

    Raises:
        TaskError: If one is unknown, or has no such split, or it is empty.
    """
    opened: list[WeightedSuite] = []
    for source in sources:
        suite = suites.load_suite(source.name, env_kwargs=cast("Mapping[str, Json]", source.kwargs))
        suite.task(source.split, 0)
        opened.append(WeightedSuite(suite=suite, split=source.split, weight=source.weight))
    return tuple(opened)
