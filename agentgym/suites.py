"""Task suites: named sets of tasks with splits, and the check that no held-out task is trained on.

`Suite`, `GeneratedSplit`, `load_suite`, `list_suites`, `check_leaks`. Wherever a suite is expected
the id of an environment will do: its tasks are then drawn from the environment's own generator.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentgym import registry, seeding
from agentgym.errors import ConfigError, RegistryError, TaskError, nearest
from agentgym.records import Json, Task

ENTRY_POINT_GROUP = "agentgym.tasks"
TRAIN = "train"
HELD_OUT = "held_out"

_HELD_OUT_SHARE = 8
"""Of the tasks that an environment generates by itself, one in so many is held out."""
_MAX_DRAWS = 2000
"""Draws to find a task of a split; at a share of 1/8 all of them miss once in 10**116."""
_UNBOUNDED_INDEX = 2**31


class LeakError(ConfigError):
    """Held-out tasks are among the training tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the tasks of a suite come from and under which licence."""

    licence: str
    """SPDX name where there is one."""
    origin: str
    """Who made them, and where or how they were got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSplit:
    """A split whose task number `index` is made when asked for."""

    generate: Callable[[int], Task]
    """index in [0, size) -> its task; a pure function."""
    size: int | None = None
    """Number of tasks; None for no bound."""


Split = Sequence[Task] | GeneratedSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A named set of tasks of one environment, in splits.

    Example:
        Suite(name="math/arithmetic", env_id="math/arithmetic-v0", splits={"train": (task,)})
    """

    name: str
    """`family/name`, without a version."""
    env_id: str
    """Environment that poses the tasks."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of its constructor."""
    splits: Mapping[str, Split]
    """name -> tasks; `train` and `held_out` by custom."""
    source: Origin | None = None
    """Licence and origin; None where an environment generates the tasks."""

    def size(self, split: str) -> int | None:
        """Return the number of tasks of a split; None for no bound."""
        found = self._split(split)
        return found.size if isinstance(found, GeneratedSplit) else len(found)

    def task(self, split: str, index: int) -> Task:
        """Return task number `index` of a split, with the suite's name and arguments on it."""
        found = self._split(split)
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise TaskError(f"{self.name}/{split} has tasks 0 to {(size or 0) - 1} (got {index!r})")
        task = found.generate(index) if isinstance(found, GeneratedSplit) else found[index]
        return replace(
            task, suite=self.name, split=split, env_kwargs={**self.env_kwargs, **task.env_kwargs}
        )

    def tasks(
        self, split: str, *, limit: int | None = None, seed: int | None = None
    ) -> tuple[Task, ...]:
        """Return the tasks of a split.

        Args:
            split: Name of the split.
            limit: Most tasks to return; needed where the split has no bound.
            seed: Draws that many at random, the same ones each time; without it the first ones.

        Raises:
            TaskError: If the split is unknown or empty, or has no bound and no limit is given.
        """
        if limit is not None and limit < 1:
            raise TaskError(f"'limit' must be >= 1 or None for all (got {limit!r})")
        size = self.size(split)
        if size is None and limit is None:
            raise TaskError(f"{self.name}/{split} has no end: say how many tasks with 'limit'")
        bound = size if size is not None else _UNBOUNDED_INDEX
        count = min(bound, limit) if limit is not None else bound
        if seed is None:
            indices: Iterable[int] = range(count)
        else:
            indices = seeding.rng(seed, self.name, split).sample(range(bound), count)
        return tuple(self.task(split, index) for index in indices)

    def sample(self, split: str, rng: random.Random) -> Task:
        """Return one task of a split, drawn with `rng`."""
        size = self.size(split)
        return self.task(split, rng.randrange(size if size is not None else _UNBOUNDED_INDEX))

    def _split(self, split: str) -> Split:
        found = self.splits.get(split)
        if found is None:
            raise TaskError(
                f"{self.name} has no split {split!r}{nearest(split, self.splits)}; "
                f"it has {', '.join(sorted(self.splits))}"
            )
        if (found.size if isinstance(found, GeneratedSplit) else len(found)) == 0:
            raise TaskError(f"{self.name}/{split} is empty")
        return found


def list_suites() -> tuple[str, ...]:
    """Return the name of every suite, sorted."""
    return tuple(sorted(_table()))


def load_suite(name: str, *, env_kwargs: Mapping[str, Json] | None = None) -> Suite:
    """Return a suite by name, or the tasks that an environment generates by its id.

    An environment's own method `splits`, name -> split, says which tasks are held out; without one
    they are drawn with `sample_task` and parted by their content.

    Args:
        name: Name of a suite, or the id of an environment.
        env_kwargs: Arguments of the environment's constructor, over the suite's own.

    Raises:
        TaskError: If neither is known by that name.
        RegistryError: If two packages claim the name.
    """
    table = _table()
    if name in table:
        if len(table[name]) > 1:
            raise RegistryError(f"the suite {name!r} is claimed by {', '.join(table[name])}")
        suite = _load(name, table[name][0], env_kwargs or {})
    elif registry.is_known(name):
        return _suite_of_env(name, env_kwargs or {})
    else:
        raise TaskError(_unknown(name, table))
    return replace(suite, env_kwargs={**suite.env_kwargs, **(env_kwargs or {})})


def check_leaks(
    train: Iterable[Task], held_out: Iterable[Task], *, allow: bool = False
) -> tuple[str, ...]:
    """Return the ids of held-out tasks which are training tasks too, by id or by content.

    Raises:
        LeakError: If there are any, unless `allow`.
    """
    training = tuple(train)
    ids = {(task.suite, task.id) for task in training}
    hashes = {task.content_hash for task in training}
    leaks = tuple(
        task.id for task in held_out if (task.suite, task.id) in ids or task.content_hash in hashes
    )
    if leaks and not allow:
        shown = ", ".join(leaks[:3]) + (", ..." if len(leaks) > 3 else "")
        raise LeakError(
            f"{len(leaks)} held-out tasks are training tasks too, by id or by content ({shown}): "
            "take them out, or pass --allow-leak"
        )
    return leaks


def _table() -> dict[str, tuple[str, ...]]:
    """Return name -> targets; more than one where several packages claim a name."""
    builtin: Mapping[str, str] = importlib.import_module("agentgym.tasks").SUITES
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    table: dict[str, tuple[str, ...]] = {}
    for name, target in [*builtin.items(), *((point.name, point.value) for point in points)]:
        table[name] = tuple(dict.fromkeys((*table.get(name, ()), target)))
    return table


def _load(name: str, target: str, env_kwargs: Mapping[str, Json]) -> Suite:
    if ":" not in target:
        folder = Path(str(importlib.import_module("agentgym.tasks").__file__)).parent
        return read_rows(folder / target, name=name)
    module_name, _, function = target.partition(":")
    make_suite = getattr(importlib.import_module(module_name), function)
    # Arguments that choose among tasks, such as `levels`, are the generator's as well.
    taken = inspect.signature(make_suite).parameters.keys() & env_kwargs.keys()
    suite = make_suite(**{name: env_kwargs[name] for name in taken})
    if not isinstance(suite, Suite):
        raise TaskError(f"{target} must return a Suite (got {type(suite).__name__})")
    return suite


def read_rows(path: Path, *, name: str) -> Suite:
    """Return the suite of a file of JSON lines, one task a line, with its file SOURCE beside it.

    Each line holds the fields of `Task`; `split` is `train` unless given, and all lines must name
    one `env_id`.

    Raises:
        TaskError: If the file or its SOURCE is missing, or a line is not a task.
    """
    if not path.is_file():
        raise TaskError(f"{name}: there is no file {path}")
    tasks = [_read_row(path, number, line) for number, line in _lines(path)]
    if not tasks:
        raise TaskError(f"{name}: {path} holds no task")
    env_ids = sorted({task.env_id for task in tasks})
    if len(env_ids) > 1:
        raise TaskError(f"{name}: a suite has one environment (got {env_ids!r})")
    names = sorted({task.split for task in tasks})
    splits = {split: tuple(task for task in tasks if task.split == split) for split in names}
    return Suite(name=name, env_id=env_ids[0], splits=splits, source=read_source(path.parent))


def read_source(folder: Path) -> Origin:
    """Return what the file SOURCE of a folder says: lines `licence:` and `origin:`.

    Raises:
        TaskError: If it is missing or says too little.
    """
    path = folder / "SOURCE"
    if not path.is_file():
        raise TaskError(f"{path} is missing: state 'licence:' and 'origin:' of the rows")
    pairs = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    fields = {key.strip(): value.strip() for key, colon, value in pairs if colon}
    if not fields.get("licence") or not fields.get("origin"):
        raise TaskError(f"{path} must have the lines 'licence:' and 'origin:' (got {fields!r})")
    return Origin(licence=fields["licence"], origin=fields["origin"])


def _lines(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _read_row(path: Path, number: int, line: str) -> Task:
    try:
        fields = json.loads(line)
        for name in ("answers", "tags"):
            if isinstance(fields.get(name), str):
                raise TypeError(f"{name!r} is a list of texts (got {fields[name]!r})")
            fields[name] = tuple(fields.get(name, ()))
        return Task(**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"{path.name} line {number} is not a task: {error}") from error


def _suite_of_env(env_id: str, env_kwargs: Mapping[str, Json]) -> Suite:
    env = registry.make(env_id, **env_kwargs).unwrapped
    env_id = registry.spec(env_id).id  # without the module that registers it
    generate = _EnvTasks(env=env)
    drawn = {
        TRAIN: GeneratedSplit(generate=lambda index: generate.task(index, is_held_out=False)),
        HELD_OUT: GeneratedSplit(generate=lambda index: generate.task(index, is_held_out=True)),
    }
    # An environment that knows better which task is held out has a method `splits`.
    own: Callable[[], Mapping[str, Split]] | None = getattr(env, "splits", None)
    splits = own() if own is not None else drawn
    return Suite(name=env_id, env_id=env_id, env_kwargs=dict(env_kwargs), splits=splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EnvTasks:
    """Tasks from an environment's own generator. Which split a task is in follows from its
    content, so that the splits are disjoint by content as well as by seed.
    """

    env: Any
    """The unwrapped environment whose `sample_task` draws."""

    def task(self, index: int, *, is_held_out: bool) -> Task:
        split = HELD_OUT if is_held_out else TRAIN
        for attempt in range(_MAX_DRAWS):
            task: Task = self.env.sample_task(seeding.rng("env-tasks", split, index, attempt))
            if (int(task.content_hash[:8], 16) % _HELD_OUT_SHARE == 0) == is_held_out:
                return replace(task, id=f"{split}-{index:06d}-{task.id}")
        raise TaskError(
            f"{self.env.env_id} generates too few different tasks to have both a train and a "
            "held-out split: define a suite with splits of its own"
        )


def _unknown(name: str, table: Iterable[str]) -> str:
    known = [*table, *registry.list_envs()]
    versions = [env_id for env_id in registry.list_envs() if env_id.startswith(f"{name}-v")]
    hint = f" (did you mean {versions[-1]!r}?)" if versions else nearest(name, known)
    return f"unknown suite or environment {name!r}{hint}; `agentgym tasks list` shows the suites"
