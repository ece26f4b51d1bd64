"""Task suites: named sets of tasks with splits, and the check that no held-out task is trained on.

`Suite`, `GeneratedSplit`, `register_suite`, `load_suite`, `list_suites`, `check_leaks`. Wherever a
suite is expected the id of an environment will do: its tasks are then drawn from the environment's
own generator. Both may be named with the module or file that registers them, as `myqa.py:lab/qa`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentgym import seeding
from agentgym.env import registry
from agentgym.env.author_code import described
from agentgym.env.first_observations import compare_first_looks
from agentgym.env.places import only_one, open_place, place_of
from agentgym.errors import ConfigError, MissingExtraError, RegistryError, TaskError, nearest
from agentgym.records import Json, Task

ENTRY_POINT_GROUP = "agentgym.tasks"
TRAIN = "train"
HELD_OUT = "held_out"

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

    def __post_init__(self) -> None:
        if not self.name or not self.env_id or not self.splits:
            raise TaskError(
                "a suite needs a 'name', an 'env_id' and at least one split (got "
                f"{self.name!r}, {self.env_id!r}, {sorted(self.splits)!r})"
            )
        for name, split in self.splits.items():
            if (split.size if isinstance(split, GeneratedSplit) else len(split)) == 0:
                raise TaskError(f"{self.name}/{name} is empty: leave it out, or give it a task")

    @classmethod
    def from_jsonl(
        cls,
        path: str | Path,
        *,
        env_id: str,
        question: str = "question",
        answer: str = "answer",
        held_out: float = 0.2,
        name: str | None = None,
        source: Origin | None = None,
    ) -> Suite:
        """Return the suite of a file of JSON lines with a question and an answer each.

        Equal questions are in one split, whatever their case and spacing. Further fields of a row
        are the task's payload.

        Args:
            path: The file.
            env_id: Environment that poses the tasks.
            question: Field that becomes the task's prompt.
            answer: Field with the gold answer, or a list of them.
            held_out: Share of the different questions that are held out, in [0, 1].
            name: `family/name`; by default the environment's family and the file's stem.
            source: Licence and origin; by default those of a file SOURCE beside `path`, if any.

        Raises:
            TaskError: If the file is missing, or a line has no such fields.

        Example:
            register_suite(Suite.from_jsonl("capitals.jsonl", env_id="lab/capitals-v0"))
        """
        # Imported here: what reads files makes suites.
        from agentgym.env.task_files import read_source, splits_of

        file = Path(path)
        if source is None and (file.parent / "SOURCE").is_file():
            source = read_source(file.parent)
        return cls(
            name=name or f"{env_id.split('/')[0]}/{file.stem}",
            env_id=env_id,
            splits=splits_of(
                file, env_id=env_id, question=question, answer=answer, held_out=held_out
            ),
            source=source,
        )

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
        if task.env_id != self.env_id:
            # The record would say that another environment played than the one asked for.
            raise TaskError(
                f"{self.name}: the task {task.id!r} is of {task.env_id!r}, the suite of "
                f"{self.env_id!r}; a suite has the tasks of one environment"
            )
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
            TaskError: If the split is unknown, or has no bound and no limit is given.
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
        return found


_registered: dict[str, tuple[Suite, str]] = {}
"""name -> a suite that `register_suite` was given, and the module that gave it."""


def register_suite(suite: Suite) -> Suite:
    """Make a suite known by its name to everything that takes one, and return it.

    Raises:
        TaskError: If another module's suite, or a package's, has the name.
    """
    module = str(sys._getframe(1).f_globals.get("__name__", ""))  # pyright: ignore[reportPrivateUsage]
    owner = _registered[suite.name][1] if suite.name in _registered else module
    if owner != module or suite.name in _offered():
        by = owner if owner != module else " and ".join(_offered()[suite.name])
        raise TaskError(f"the suite {suite.name!r} is taken by {by}: choose another name")
    _registered[suite.name] = (suite, module)
    return suite


def unregister_suite(name: str) -> None:
    """Forget a suite that `register_suite` was given. For tests and notebooks."""
    del _registered[name]


def list_suites() -> tuple[str, ...]:
    """Return the name of every suite, sorted."""
    return tuple(sorted({*_offered(), *_registered}))


def load_suite(name: str, *, env_kwargs: Mapping[str, Json] | None = None) -> Suite:
    """Return a suite by name, or the tasks that an environment generates by its id.

    An environment's own method `splits`, name -> split, says which tasks are held out; without one
    they are drawn with `sample_task` and parted by their content.

    Args:
        name: Name of a suite, or the id of an environment; `module:name` and `file.py[:name]` are
            imported first.
        env_kwargs: Arguments of the environment's constructor, over the suite's own.

    Raises:
        TaskError: If neither is known by that name.
        RegistryError: If two packages claim the name, or what it names cannot be imported.
    """
    kwargs = env_kwargs or {}
    place, bare = place_of(name)
    if place:
        module = open_place(place)
        own = {suite: None for suite, (_, owner) in _registered.items() if owner == module}
        bare = bare or only_one(place, own or registry.registered_in(module))
    if bare in _registered:
        suite = _registered[bare][0]
    elif targets := _offered().get(bare):
        target, *others = targets
        if others:
            raise RegistryError(f"the suite {bare!r} is claimed by {', '.join(targets)}")
        suite = _load(bare, target, kwargs)
    elif registry.is_known(name):
        # Imported here: what draws from an environment makes a suite.
        from agentgym.env.tasks import suite_of_env

        return suite_of_env(name, kwargs)
    else:
        raise TaskError(_unknown(name))
    return replace(suite, env_kwargs={**suite.env_kwargs, **kwargs})


def check_leaks(
    train: Iterable[Task], held_out: Iterable[Task], *, allow: bool = False
) -> tuple[str, ...]:
    """Return the ids of held-out tasks which are training tasks too, by id, by content or by what
    the agent first sees of them.

    `agentgym.env.first_observations.compare_first_looks` says which tasks could not be compared by that.

    Raises:
        LeakError: If there are any, unless `allow`.
    """
    training, asked = tuple(train), tuple(held_out)
    equal = content_leaks(training, asked, allow=allow)
    looks = compare_first_looks(training, asked)
    if looks.same and not allow:
        raise LeakError(f"{looks}: {_APART}, or pass --allow-leak")
    return tuple(dict.fromkeys([*equal, *(pair.held_out_id for pair in looks.same)]))


def content_leaks(
    train: Iterable[Task], held_out: Iterable[Task], *, allow: bool = False
) -> tuple[str, ...]:
    """Return the ids of held-out tasks which are training tasks too, by id or by content.

    Raises:
        LeakError: If there are any, unless `allow`.
    """
    training = tuple(train)
    ids = {(task.suite, task.id) for task in training}
    hashes = {task.content_hash for task in training}
    leaks = tuple(t.id for t in held_out if (t.suite, t.id) in ids or t.content_hash in hashes)
    if leaks and not allow:
        shown = ", ".join(leaks[:3]) + (", ..." if len(leaks) > 3 else "")
        raise LeakError(
            f"{len(leaks)} held-out tasks are training tasks too, by id or by content ({shown}): "
            "take them out, or pass --allow-leak"
        )
    return leaks


_APART = (
    "draw the question in sample_task and put it into Task.prompt, by which tasks are then parted, "
    "or say in a method splits() which tasks are held out"
)


def _offered() -> dict[str, tuple[str, ...]]:
    """Return name -> targets of what packages offer; several where more than one claims a name."""
    builtin: Mapping[str, str] = importlib.import_module("agentgym.tasks").SUITES
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    table: dict[str, tuple[str, ...]] = {}
    for name, target in [*builtin.items(), *((point.name, point.value) for point in points)]:
        table[name] = tuple(dict.fromkeys((*table.get(name, ()), target)))
    return table


def _load(name: str, target: str, env_kwargs: Mapping[str, Json]) -> Suite:
    if ":" not in target:
        folder = Path(str(importlib.import_module("agentgym.tasks").__file__)).parent
        # Imported here: what reads files makes suites.
        from agentgym.env.task_files import read_rows

        return read_rows(folder / target, name=name)
    module_name, _, function = target.partition(":")
    try:
        make_suite = getattr(importlib.import_module(module_name), function)
    except MissingExtraError:
        raise
    except Exception as error:
        text = f"the suite {name!r}{_package(name)} cannot be loaded ({described(error)})"
        raise RegistryError(text) from error
    # Arguments that choose among tasks, such as `levels`, are the generator's as well.
    taken = inspect.signature(make_suite).parameters.keys() & env_kwargs.keys()
    suite = make_suite(**{name: env_kwargs[name] for name in taken})
    if not isinstance(suite, Suite):
        raise TaskError(f"{target} must return a Suite (got {type(suite).__name__})")
    return suite


def _package(name: str) -> str:
    """Return `` of the package 'x'`` for a suite that an installed package offers."""
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    names = (point.dist.name for point in points if point.dist is not None)
    return next((f" of the package {package!r}" for package in names), "")


def _unknown(name: str) -> str:
    known = [*list_suites(), *registry.list_envs()]
    versions = [env_id for env_id in registry.list_envs() if env_id.startswith(f"{name}-v")]
    hint = f" (did you mean {versions[-1]!r}?)" if versions else nearest(name, known)
    return f"unknown suite or environment {name!r}{hint}; `agentgym tasks list` shows the suites"
