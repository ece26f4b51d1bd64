"""The settings of `agentgym eval`: which it takes, and those that a run's own evaluations had.

What is evaluated stands in words before the settings, in `envs=[…]`, or in a file; the arguments of
an environment are those of its entry, and over them those beside its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.evaluation.inherited import (
    SAMPLING,
    differences,
    own_settings,
    with_run_arguments,
)

if TYPE_CHECKING:
    from agentgym.config import EnvSource, Problem, RunConfig

_SOURCES = "envs"
COMMAND_LINE = "command line"
_ACCEPTED = (
    *("eval.attempts", "eval.tasks", "eval.split", "eval.seed"),
    *(f"eval.{name}" for name in SAMPLING),
    *("limits.*", "rollout.history", "rollout.max_concurrent", "rollout.retries"),
    _SOURCES,
)
_INSTEAD = {
    "policy": "; the policy is given with --policy",
    "eval.suites": "; environments and suites are given before the settings",
}


def settings_of(
    words: Sequence[str],
    file: Path | None,
    *,
    policy: str,
    options: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return what an evaluation is asked to do.

    If the policy is of a run and no file is given, its environments have the run's arguments and
    episodes are drawn and bounded as in that run's own evaluations, unless `words` say otherwise.

    Args:
        words: Environments and suites, and `key=value` settings.
        file: A YAML or TOML file, such as a run's.
        policy: Name of the policy.
        options: Settings of the command's own options; None leaves one to the rest.

    Raises:
        InvalidInputError: With one line for each problem: settings that an evaluation does not
            read, and entries of `envs` that nothing here asks for, among them.
    """
    from agentgym.config import InvalidInputError, load_config
    from agentgym.config.command_line import is_assignment
    from agentgym.runs.folder import read_config
    from agentgym.runs.policies import read_policy

    settings = [word for word in words if is_assignment(word)]
    named = _sources([f"{_SOURCES}={','.join(w for w in words if not is_assignment(w))}"])
    listed = _sources([word for word in settings if _key(word) == _SOURCES])
    problems = [*_unread_settings(settings, named), *_unread_of_sources([*named, *listed])]
    if problems:
        raise InvalidInputError(problems)
    run = read_policy(policy).run if file is None else None
    stored = read_config(run) if run is not None else None
    given = {key: value for key, value in (options or {}).items() if value is not None}
    config = load_config(
        file=file,
        settings=own_settings(stored) if stored is not None else None,
        extra={"policy": policy, **given},
        assignments=settings,
        is_training=False,
    )
    place = str(file) if file is not None and not listed else COMMAND_LINE
    sources = _with_arguments(named, config.envs, place)
    if run is not None and stored is not None:
        sources = with_run_arguments(run, stored, sources)
    return config.model_copy(update={_SOURCES: sources})


def run_lines(config: RunConfig, policy: str) -> list[str]:
    """Return how a policy's own run has what is evaluated, a line for each source."""
    from agentgym.runs.folder import read_config
    from agentgym.runs.policies import read_policy

    run = read_policy(policy).run
    return list(differences(run, read_config(run), config.envs)) if run is not None else []


def _with_arguments(
    named: Sequence[EnvSource], entries: Sequence[EnvSource], place: str
) -> tuple[EnvSource, ...]:
    """Return what is evaluated: what was named with its entry's arguments, or else all entries.

    Of an argument that both give, the one beside the name holds.

    Raises:
        InvalidInputError: If there is neither, or an entry is none of those that were named.
    """
    from agentgym.config import EnvSource, InvalidInputError, Problem
    from agentgym.errors import nearest

    if not (named or entries):
        raise InvalidInputError([Problem(key=_SOURCES, text="name an environment or a suite")])
    if not named:
        return tuple(EnvSource(name=entry.name, kwargs=entry.kwargs) for entry in entries)
    names = {source.name for source in named}
    problems = [
        Problem(
            key=_SOURCES,
            where=place,
            text=f"{entry.name!r} is listed in 'envs', but is not evaluated"
            f"{nearest(entry.name, names)}; name it too, or take it out of the list",
        )
        for entry in entries
        if entry.name not in names
    ]
    if problems:
        raise InvalidInputError(problems)
    found: list[EnvSource] = []
    for source in named:
        # An entry given twice makes two sources, which the evaluation then refuses.
        own = [entry.kwargs for entry in entries if entry.name == source.name] or [{}]
        found.extend(
            EnvSource(name=source.name, kwargs={**kwargs, **source.kwargs}) for kwargs in own
        )
    return tuple(found)


def _sources(assignments: Sequence[str]) -> tuple[EnvSource, ...]:
    """Return the sources of `envs=…` arguments; of several the last one counts."""
    from agentgym.config import load_config

    given = [word for word in assignments if word.partition("=")[2]]
    return load_config(assignments=given, is_training=False).envs


def _key(word: str) -> str:
    return word.partition("=")[0]


def _unread_settings(settings: Sequence[str], named: Sequence[EnvSource]) -> Iterator[Problem]:
    from agentgym.config import Problem
    from agentgym.runs.preflight import argument_hint

    for setting in settings:
        key = _key(setting)
        if key in _ACCEPTED or key.startswith("limits."):
            continue
        hint = argument_hint(key, named)
        text = f"{key!r} is no setting of an evaluation" + (
            hint or f"{_INSTEAD.get(key, '')}; accepted are {', '.join(_ACCEPTED)}"
        )
        yield Problem(key=key, where=COMMAND_LINE, text=text)


def _unread_of_sources(sources: Sequence[EnvSource]) -> Iterator[Problem]:
    from agentgym.config import Problem

    for source in sources:
        name, given = source.name, source.model_fields_set
        if "split" in given:
            fix = f"all sources are evaluated on one split: --split {source.split}"
            yield Problem(key="envs", text=f"{name}: 'split' has no effect here; {fix}")
        if "weight" in given:
            fix = "leave it out: each suite gives as many tasks"
            yield Problem(key="envs", text=f"{name}: 'weight' has no effect here; {fix}")
