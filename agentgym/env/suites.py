"""Task suites: named sets of tasks with splits, and the check that no held-out task is trained on.

`register_suite`, `load_suite`, `list_suites`, `read_rows`, `check_leaks`. Wherever a
suite is expected the id of an environment will do: its tasks are then drawn from the environment's
own generator. Both may be named with the module or file that registers them, as `myqa.py:lab/qa`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from agentgym.env import registry
from agentgym.env.author_code import described
from agentgym.env.first_observations import compare_first_looks
from agentgym.env.places import only_one, open_place, place_of
from agentgym.env.suite import Suite
from agentgym.env.task_files import read_source, read_tasks
from agentgym.env.tasks import suite_of_env
from agentgym.errors import ConfigError, MissingExtraError, RegistryError, TaskError, nearest
from agentgym.records import Json, Task

ENTRY_POINT_GROUP = "agentgym.tasks"


class LeakError(ConfigError):
    """Held-out tasks are among the training tasks."""


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
        return suite_of_env(name, kwargs)
    else:
        raise TaskError(_unknown(name))
    return replace(suite, env_kwargs={**suite.env_kwargs, **kwargs})


def check_leaks(
    train: Iterable[Task], held_out: Iterable[Task], *, allow: bool = False
) -> tuple[str, ...]:
    """Return the ids of held-out tasks which are training tasks too, by id, by content or by what
    the agent first sees of them.

    `agentgym.env.first_observations.compare_first_looks` says which tasks could not be
    compared by that.

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


def read_rows(path: Path, *, name: str) -> Suite:
    """Return the suite of a file of JSON lines, one task a line, with its file SOURCE beside it.

    Each line holds the fields of `Task`; `split` is `train` unless given, and all lines must name
    one `env_id`.

    Raises:
        TaskError: If the file or its SOURCE is missing, or a line is not a task.
    """
    tasks = read_tasks(path, name=name)
    env_ids = sorted({task.env_id for task in tasks})
    if len(env_ids) > 1:
        raise TaskError(f"{name}: a suite has one environment (got {env_ids!r})")
    names = sorted({task.split for task in tasks})
    splits = {split: tuple(task for task in tasks if task.split == split) for split in names}
    return Suite(name=name, env_id=env_ids[0], splits=splits, source=read_source(path.parent))


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
