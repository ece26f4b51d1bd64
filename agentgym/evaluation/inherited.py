"""What an evaluation takes over from the run that its policy is of, and what differs from it.

A policy is measured as it was trained: with the arguments of the run's environments, and with the
sampling, limits, history and seed of the run's own evaluations. In order: `own_settings`,
`with_run_arguments`, `differences`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym.config.schema import EnvSource, RunConfig
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.env.registry import without_version
from agentgym.redaction import REDACTED, redact

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens")
"""Settings of an evaluation that say how a turn is drawn."""


def own_settings(config: RunConfig) -> dict[str, Any]:
    """Return how a run's own evaluations draw and bound episodes, by dotted key."""
    sampling = asdict(config.eval.sampling())
    found: dict[str, Any] = {f"eval.{name}": sampling[name] for name in SAMPLING}
    found |= {f"limits.{name}": value for name, value in config.limits.model_dump().items()}
    return found | {"eval.seed": config.eval.seed, "rollout.history": config.rollout.history.value}


def with_run_arguments(
    run: Path, config: RunConfig, sources: Iterable[EnvSource]
) -> tuple[EnvSource, ...]:
    """Return sources with the arguments that a run has them with; arguments of their own win.

    Raises:
        InvalidInputError: If the run has a source with different arguments and the source has
            none, or an argument is a secret, which a run does not store.
    """
    found: list[EnvSource] = []
    problems: list[Problem] = []
    for source in sources:
        own = _arguments(config, source.name)
        if len(own) > 1 and not source.kwargs:
            text = (
                f"the run {run} has {source.name!r} with {shown(own[0])} and with {shown(own[1])}: "
                f"say which, such as {source.name}:KEY=VALUE"
            )
            problems.append(Problem(key="envs", text=text))
        kwargs = {**(own[0] if len(own) == 1 else {}), **source.kwargs}
        for key in (key for key, value in kwargs.items() if REDACTED in str(value)):
            text = (
                f"{key!r} of {source.name!r} is a secret, which the run {run} does not store: give "
                f"it again, {source.name}:{key}=…"
            )
            problems.append(Problem(key="envs", text=text))
        found.append(source.model_copy(update={"kwargs": kwargs}))
    if problems:
        raise InvalidInputError(problems)
    return tuple(found)


def differences(run: Path, config: RunConfig, sources: Iterable[EnvSource]) -> Iterator[str]:
    """Yield one line for each source: how it is played, and how the policy's run has it."""
    for source in sources:
        own = _arguments(config, source.name)
        here = shown(source.kwargs)
        if not own:
            names = ", ".join(_names(config)) or "no environment"
            yield f"{source.name} with {here}; the run {run} is on {names}"
        elif source.kwargs in own:
            yield f"{source.name} with {here}, as in the run {run}"
        else:
            others = " and with ".join(shown(kwargs) for kwargs in own)
            yield f"{source.name} with {here}; the run {run} has it with {others}"


def shown(kwargs: Mapping[str, Any]) -> str:
    """Return arguments of an environment for a person, secrets left out."""
    return ", ".join(f"{k}={v}" for k, v in redact(kwargs).items()) or "no arguments"


def _names(config: RunConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(source.name for source in config.envs), *config.eval.suites]))


def _arguments(config: RunConfig, name: str) -> list[Mapping[str, Any]]:
    """Return the different arguments with which a run has a source; none if it has it not."""
    found: list[Mapping[str, Any]] = []
    for source in config.envs:
        if _is_same(source.name, name) and source.kwargs not in found:
            found.append(source.kwargs)
    if not found and any(_is_same(suite, name) for suite in config.eval.suites):
        return [{}]
    return found


def _is_same(one: str, other: str) -> bool:
    """Return whether two names mean one source: `math/arithmetic` is `math/arithmetic-v0` too."""
    return other in {one, without_version(one)} or one == without_version(other)
