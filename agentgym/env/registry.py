"""The registry of environments: `register_env`, `make`, `spec`, `list_envs`.

Three sources, one table: the built-in table `agentgym.envs.ENVS`, entry points of the group
`agentgym.envs` (name: the id, value: `module:Class [extra]`), and the decorator. Names are
collected at first use; a module is imported by `make` only. Everything known here is known to
`gymnasium.make` too.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gymnasium.envs import registration

from agentgym.env.author_code import author_code, check_class, described
from agentgym.env.places import only_one, open_place, place_of
from agentgym.errors import MissingExtraError, RegistryError, nearest
from agentgym.records import Json
from agentgym.redaction import remember

ENTRY_POINT_GROUP = "agentgym.envs"

_ADAPTER = "agentgym.envs.adapters.gymnasium_text"
"""For environments that others have registered with Gymnasium."""

_NO_TIME_LIMIT = -1
"""`max_episode_steps` by which `gymnasium.make` is told to put no bound on an episode."""

_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?-v(?P<version>[0-9]+)")
_VERSION = re.compile(r"-v[0-9]+$")
_TARGET = re.compile(r"\s*(?P<path>[\w.]+:[\w.]+)\s*(?:\[(?P<extra>[\w-]+)\])?\s*")

EnvClass = TypeVar("EnvClass", bound=type[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """What the registry knows of one environment.

    Example:
        EnvEntry(id="math/arithmetic-v0", target="agentgym.envs.math.arithmetic:ArithmeticEnv")
    """

    id: str
    """`family/name-vN`."""
    target: str
    """`module:Class`, imported by `make`."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of the constructor, unless `make` is given others."""
    extra: str | None = None
    """Optional group of packages that the module needs."""
    max_instances: int | None = None
    """Live instances a run may have, where a resource is scarce; None for no bound."""
    factory: Callable[..., Any] | None = None
    """The class itself where a decorator registered it; `target` is then for display."""

    @property
    def family(self) -> str:
        """The part before the slash."""
        return self.id.split("/", 1)[0]


_lock = threading.RLock()
_entries: dict[str, EnvEntry] = {}
_conflicts: dict[str, str] = {}
"""id -> what is wrong with its row of the table or its entry point. Raised when the id is asked
for: a package that breaks one id must not take the others away."""
_is_collected = False


def register_env(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Json] | None = None,
    extra: str | None = None,
    max_instances: int | None = None,
) -> Callable[[EnvClass], EnvClass]:
    """Return a class decorator that registers an environment.

    Args:
        env_id: `family/name-vN`.
        env_kwargs: Arguments of the constructor, unless `make` is given others.
        extra: Optional group of packages that it needs.
        max_instances: Live instances a run may have.

    Raises:
        RegistryError: If the id is malformed, or taken by another class.
    """

    def decorate(env_class: EnvClass) -> EnvClass:
        # Imported here: an environment's class knows the registry.
        from agentgym.env.contract import TextEnv

        check_class(env_id, env_class, TextEnv)
        target = f"{env_class.__module__}:{env_class.__qualname__}"
        entry = EnvEntry(
            id=env_id,
            target=target,
            env_kwargs=dict(env_kwargs or {}),
            extra=extra,
            max_instances=max_instances,
            factory=env_class,
        )
        with _lock:
            _collect()
            _add(entry)
        return env_class

    return decorate


def unregister_env(env_id: str) -> None:
    """Forget an id that a decorator registered, here and in Gymnasium. For tests and notebooks.

    Raises:
        RegistryError: If the id is unknown.
    """
    with _lock:
        entry = spec(env_id)
        for name in [name for name, known in _entries.items() if known is entry]:
            del _entries[name]
        # What others registered with Gymnasium stays there.
        if not entry.target.startswith(_ADAPTER):
            registration.registry.pop(env_id, None)


def list_envs() -> tuple[str, ...]:
    """Return every known id, sorted."""
    with _lock:
        _collect()
        return tuple(sorted(_entries))


def spec(env_id: str) -> EnvEntry:
    """Return what is known of an id; without a version the newest one is meant.

    Raises:
        RegistryError: If it is unknown; the message names the nearest one.
    """
    with _lock:
        _collect()
        if env_id in _conflicts:
            raise RegistryError(_conflicts[env_id])
        entry = _found(env_id)
        if entry is None:
            raise RegistryError(_unknown(place_of(env_id)[1]))
        return entry


def is_known(env_id: str) -> bool:
    """Return whether an id is known here, or to Gymnasium, which is then asked for it.

    Raises:
        RegistryError: If it names a module or a file that cannot be imported.
    """
    with _lock:
        _collect()
        return env_id in _conflicts or _found(env_id) is not None


def conflicts() -> dict[str, str]:
    """Return id -> what is wrong with it, for what packages offer and nobody can make."""
    with _lock:
        _collect()
        return dict(sorted(_conflicts.items()))


def registered_in(module: str) -> dict[str, EnvEntry]:
    """Return id -> entry of what the classes of a module were registered as."""
    with _lock:
        return {
            env_id: entry
            for env_id, entry in _entries.items()
            if env_id == entry.id and entry.target.startswith(f"{module}:")
        }


def without_version(env_id: str) -> str:
    """Return an id without its version: `math/arithmetic` of `math/arithmetic-v0`."""
    return _VERSION.sub("", env_id)


def _versioned(env_id: str) -> str:
    """Return the id with the newest version of what is named without one."""
    if env_id in _entries or _VERSION.search(env_id):
        return env_id
    others = [known for known in _entries if without_version(known) == env_id]
    return max(others, key=lambda known: int(known.rpartition("-v")[2]), default=env_id)


def load(env_id: str) -> Callable[..., Any]:
    """Return the class of an id, importing its module.

    Raises:
        RegistryError: If the id is unknown, or its target is not there.
        MissingExtraError: If an optional package is missing.
    """
    entry = spec(env_id)
    if entry.factory is not None:
        return entry.factory
    return _import_target(entry)


def make(env_id: str, **env_kwargs: Any) -> Any:
    """Return a new, bare instance of an environment (`gymnasium.make` adds Gymnasium's wrappers).

    Args:
        env_id: A registered id.
        env_kwargs: Arguments of its constructor, over the registered ones.

    Raises:
        RegistryError: If the id is unknown.
        MissingExtraError: If an optional package is missing.
    """
    entry = spec(env_id)
    kwargs = {**entry.env_kwargs, **env_kwargs}
    remember(kwargs)
    make_env = load(env_id)
    with author_code(entry.id):
        env = make_env(**kwargs)
    env.unwrapped.spec = _gym_spec(entry, env_id, kwargs)
    return env


def register_with_gymnasium() -> None:
    """Make every known id known to `gymnasium.make`; the package calls this when imported."""
    with _lock:
        _collect()


def _collect() -> None:
    """Fill the table from the built-in one and the entry points, once."""
    global _is_collected
    if _is_collected:
        return
    _is_collected = True
    # By string: the core imports no part. The package holds strings only, no environment.
    builtin: Mapping[str, str] = importlib.import_module("agentgym.envs").ENVS
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    for env_id, target in [*builtin.items(), *((point.name, point.value) for point in points)]:
        try:
            _add(_entry_of(env_id, target))
        except RegistryError as error:
            _conflicts[env_id] = str(error)


def _entry_of(env_id: str, target: str) -> EnvEntry:
    match = _TARGET.fullmatch(target)
    if match is None:
        raise RegistryError(f"{env_id}: the target must read 'module:Class' (got {target!r})")
    return EnvEntry(id=env_id, target=match["path"], extra=match["extra"])


def _add(entry: EnvEntry) -> None:
    if _ID.fullmatch(entry.id) is None:
        raise RegistryError(f"an environment id must read 'family/name-vN' (got {entry.id!r})")
    taken = _entries.get(entry.id)
    if taken is not None:
        if taken.target != entry.target:
            raise RegistryError(
                f"{entry.id!r} is taken by {taken.target} (got {entry.target}): choose another "
                "name, or the next version if it replaces that one"
            )
        # The same class, seen through the table and through its own decorator.
        entry = dataclasses.replace(entry, extra=entry.extra or taken.extra)
    _entries[entry.id] = entry
    registration.registry[entry.id] = registration.EnvSpec(
        id=entry.id, entry_point=_GymnasiumFactory(entry.id), kwargs=dict(entry.env_kwargs)
    )


def _found(env_id: str) -> EnvEntry | None:
    """Return the entry of an id; of `module:id` or `file.py[:id]` the place is imported first."""
    if env_id in _entries:
        return _entries[env_id]
    place, name = place_of(env_id)
    if place:
        module = open_place(place)
        name = name or only_one(place, registered_in(module))
    entry = _entries.get(_versioned(name)) or _adopted(name)
    if entry is not None and place:
        _entries[env_id] = entry
    return entry


def _adopted(env_id: str) -> EnvEntry | None:
    """Return an entry for an environment that Gymnasium alone knows, and keep it.

    Its observations and actions must be text, which `make` finds out.
    """
    # By string: the core imports no part.
    adapter = importlib.import_module(_ADAPTER)
    if not adapter.is_known(env_id):
        return None
    if env_id not in _entries:  # the package that was asked for may have registered it here
        factory = functools.partial(adapter.make_text_env, env_id)
        target = f"{_ADAPTER}:make_text_env"
        _entries[env_id] = EnvEntry(id=env_id, target=target, factory=factory)
    return _entries[env_id]


@dataclass(frozen=True, slots=True)
class _GymnasiumFactory:
    """What `gymnasium.make` calls: a picklable stand-in for the class, imported when needed."""

    env_id: str

    def __call__(self, **env_kwargs: Any) -> Any:
        return load(self.env_id)(**env_kwargs)


def _gym_spec(entry: EnvEntry, env_id: str, kwargs: dict[str, Any]) -> registration.EnvSpec:
    """Return the spec from which `gymnasium.make` makes an equal environment."""
    gym_spec = copy.copy(registration.registry[entry.id])
    gym_spec.kwargs = kwargs
    if entry.target.startswith(_ADAPTER):
        # Gymnasium's own makes the environment without the adapter, which knows our arguments and
        # puts the wrappers on by itself.
        gym_spec.entry_point = _GymnasiumFactory(env_id)
        gym_spec.additional_wrappers, gym_spec.vector_entry_point = (), None
        steps: int | None = kwargs.get("max_episode_steps", gym_spec.max_episode_steps)
        gym_spec.max_episode_steps = None if steps == _NO_TIME_LIMIT else steps
    return gym_spec


def _import_target(entry: EnvEntry) -> Callable[..., Any]:
    module_name, _, path = entry.target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if entry.extra is not None and name and not module_name.startswith(name):
            raise MissingExtraError(entry.id, extra=entry.extra) from error
        text = f"{entry.id}: cannot import {entry.target} ({described(error)})"
        raise RegistryError(text) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise RegistryError(f"{entry.id}: {module_name} has no {path!r}")
        found = getattr(found, part)
    return found


def _unknown(env_id: str) -> str:
    stem, dash, _ = env_id.rpartition("-v")
    stem = stem if dash else env_id
    others = [known for known in _entries if known.rpartition("-v")[0] == stem]
    if others:
        newest = max(others, key=lambda known: int(known.rpartition("-v")[2]))
        return f"unknown environment {env_id!r}: the version that exists is {newest!r}"
    return (
        f"unknown environment {env_id!r}{nearest(env_id, _entries)}; "
        "`agentgym envs list` shows all of them"
    )
