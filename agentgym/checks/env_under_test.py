"""What a check of an environment is given: how to make instances, and what to play."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from agentgym import seeding
from agentgym.env import players, registry
from agentgym.env.contract import TextEnv
from agentgym.errors import EnvError, TaskError
from agentgym.records import Json, Task

_Tasks: TypeAlias = tuple[Task | None, ...]
_MOST_TASKS = 24
"""Tasks drawn where none are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An environment under check."""

    name: str
    """For the report."""
    make: Callable[[], Any]
    """Makes an instance."""
    tasks: tuple[Task | None, ...]
    """What is played, in order; None where an environment has no tasks."""
    others: tuple[Task | None, ...]
    """Further tasks: what answers and moves look like, for players who have seen others."""
    env_id: str | None = None
    """Registered id, if it has one."""
    env_kwargs: Mapping[str, Json]
    """Arguments of its constructor."""
    max_instances: int | None = None
    """Live instances allowed."""
    episodes_each: int
    """Episodes of each way to play."""
    seed: int
    """Seed of everything that is drawn."""

    @classmethod
    def of(
        cls,
        env: str | Callable[[], Any],
        env_kwargs: Mapping[str, Json],
        tasks: Sequence[Task] | None,
        *,
        episodes_each: int,
        seed: int,
    ) -> Subject:
        """Return the subject of an id or a factory."""
        make = _maker(env, env_kwargs)
        played, others = _drawn(make, seed, episodes_each) if tasks is None else _halves(tasks)
        return cls(
            name=env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__),
            make=make,
            tasks=played,
            others=others,
            # The id, without the module or file that registers it.
            env_id=registry.spec(env).id if isinstance(env, str) else None,
            env_kwargs=env_kwargs,
            max_instances=registry.spec(env).max_instances if isinstance(env, str) else None,
            episodes_each=episodes_each,
            seed=seed,
        )

    @contextlib.contextmanager
    def instance(self) -> Generator[Any]:
        """Give a new instance and close it."""
        env = self.make()
        try:
            yield env
        finally:
            env.close()

    def options(self, task: Task | None) -> dict[str, Any] | None:
        """Return the options of `reset` that pose a task."""
        return {"task": task} if task is not None else None

    def task(self, number: int) -> Task | None:
        """Return the task of episode `number`; they are taken in turn."""
        return self.tasks[number % len(self.tasks)]

    def actions(self, task: Task | None) -> tuple[str, ...]:
        """Return the expert's actions, or random ones where there is no expert."""
        with self.instance() as env:
            actor = players.expert if has_expert(env, task) else _RANDOM
            return players.play(env, actor, task=task, seed=self.seed).actions


_RANDOM = players.random_well_formed((), ())


def has_expert(env: Any, task: Task | None) -> bool:
    """Return whether an environment ships a scripted expert for a task, which begins an episode.

    An environment may have experts for some of its tasks or variants alone.
    """
    method = getattr(cast("type[Any]", type(env.unwrapped)), "expert", None)
    if method is None or method is TextEnv.expert:
        return False
    try:
        env.reset(seed=0, options={"task": task} if task is not None else None)
        env.unwrapped.expert()
    except NotImplementedError:
        return False
    return True


def _maker(env: str | Callable[[], Any], env_kwargs: Mapping[str, Json]) -> Callable[[], Any]:
    if isinstance(env, str):
        registry.spec(env)  # an unknown id is the caller's mistake, not a finding
        return lambda: registry.make(env, **env_kwargs)

    def made() -> Any:
        found = env() if callable(env) else None
        if not all(hasattr(found, name) for name in ("reset", "step", "close")):
            raise EnvError(
                "what is checked is the id of an environment, its class, or a function that makes "
                f"an instance, with reset, step and close (got {env!r})"
            )
        return found

    return made


def _drawn(make: Callable[[], Any], seed: int, count: int) -> tuple[_Tasks, _Tasks]:
    with contextlib.closing(make()) as env:
        inner = env.unwrapped
        draw = getattr(inner, "own_task", None) or getattr(inner, "sample_task", None)
        if draw is None:
            return (None,), (None,)
        numbers = range(min(count, _MOST_TASKS))
        played = tuple(draw(seeding.rng(seed, "check-task", number)) for number in numbers)
        others = tuple(draw(seeding.rng(seed, "other-task", number)) for number in numbers)
        return played, others


def _halves(tasks: Sequence[Task]) -> tuple[_Tasks, _Tasks]:
    if not tasks:
        raise TaskError("'tasks' must hold at least one task, or be None to draw some (got none)")
    middle = (len(tasks) + 1) // 2
    return tuple(tasks[:middle]), tuple(tasks[middle:])
