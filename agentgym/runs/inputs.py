"""What a Python caller asks for: environments, policies and settings in any of their forms.

In order: `sources_of`, `policy_of`, `eval_settings`, `asked_evaluation`. The command line has these
forms too, and gets them by the same functions of `agentgym.config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from agentgym.config.command_line import parse_sources
from agentgym.config.loading import load_config
from agentgym.config.schema import EnvSource, EvalConfig, RunConfig
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.evaluation.evaluator import own_sources
from agentgym.evaluation.inherited import own_settings, with_run_arguments
from agentgym.policies.base import GenerateRequest, Policy
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import Json
from agentgym.records.limits import Limits
from agentgym.renderer.base import History
from agentgym.runs.folder import read_config
from agentgym.runs.load_policy import open_policy
from agentgym.runs.policies import read_policy

AskedEnvs: TypeAlias = str | Sequence[str] | Mapping[str, Mapping[str, Json]]
"""An environment or suite, written as on the command line, or several; or name -> arguments."""
AskedPolicy: TypeAlias = Policy | str | Callable[[GenerateRequest], Any]
"""A policy, its name as on the command line, or a function of the request that returns a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An evaluation, with what it takes over from the run that its policy is of."""

    sources: Mapping[str, Mapping[str, Json]]
    """Suite or environment -> arguments of its environment."""
    settings: EvalConfig
    """Tasks, attempts, split, seed and sampling."""
    limits: Limits
    """Bounds, beside the environment's own."""
    history: History
    """How earlier turns enter the next prompt."""


def sources_of(envs: object) -> tuple[EnvSource, ...]:
    """Return environments in any accepted form, each with its arguments.

    Raises:
        InvalidInputError: If it is none of the forms.
    """
    if isinstance(envs, str):
        return tuple(EnvSource(**source) for source in parse_sources(envs))
    if isinstance(envs, Mapping):
        given = cast("Mapping[Any, Any]", envs)
        return tuple(EnvSource(name=name, kwargs=kwargs or {}) for name, kwargs in given.items())
    if isinstance(envs, Sequence) and all(isinstance(one, str) for one in cast("Any", envs)):
        return tuple(s for one in cast("Sequence[str]", envs) for s in sources_of(one))
    text = (
        "environments are a name, such as 'math/arithmetic:levels=[1]', a list of names, or a "
        f"mapping of names to arguments (got {envs!r})"
    )
    raise InvalidInputError([Problem(key="envs", text=text)])


def policy_of(policy: object, *, history: History = History.VERBATIM) -> Policy:
    """Return a policy that acts, from any accepted form.

    Raises:
        InvalidInputError: If it is none of the forms, or names a policy that cannot act.
    """
    problems = list(form_problems(policy))
    if problems:
        raise InvalidInputError(problems)
    if isinstance(policy, str):
        return open_policy(policy, history=history)
    if isinstance(policy, Policy):
        return policy
    function = cast("Callable[[GenerateRequest], Any]", policy)
    return ScriptedPolicy(function, policy_id=getattr(function, "__name__", "function"))


def form_problems(policy: object) -> Iterator[Problem]:
    """Yield a problem if `policy` is none of the forms of a policy."""
    is_class = isinstance(policy, type)
    if is_class or not (isinstance(policy, str | Policy) or callable(policy)):
        text = (
            "a policy is its name, such as 'expert' or a run's folder, an object with the methods "
            f"of agentgym.policies.base.Policy, or a function of the request (got {policy!r})"
        )
        yield Problem(key="policy", text=text)


def eval_settings(settings: object, defaults: Mapping[str, Any]) -> EvalConfig:
    """Return the settings of an evaluation.

    Args:
        settings: An `EvalConfig`, a mapping of its fields, or None.
        defaults: Values of the fields that `settings` does not set, by name.

    Raises:
        InvalidInputError: With one line for each thing that is wrong with them.
    """
    given: object = settings if settings is not None else {}
    if isinstance(given, EvalConfig):
        given = given.model_dump(exclude_unset=True)
    if not isinstance(given, Mapping):
        text = (
            f"'settings' must be an EvalConfig or a mapping such as {{'tasks': 2}} (got {given!r})"
        )
        raise InvalidInputError([Problem(key="settings", text=text)])
    fields = {**defaults, **cast("Mapping[str, Any]", given)}
    extra = {f"eval.{name}": value for name, value in fields.items()}
    return load_config(extra=extra, is_training=False).eval


def asked_rollout(
    env: str, policy: object, env_kwargs: Mapping[str, Json] | None
) -> tuple[str, dict[str, Json], RunConfig]:
    """Return the name of a source, its arguments, and the config of the policy's run, if any.

    Raises:
        InvalidInputError: If it is not one source.
    """
    sources = sources_of(env)
    run, stored = _run_of(policy)
    if run is not None and env_kwargs is None:
        sources = with_run_arguments(run, stored, sources)
    if len(sources) != 1:
        text = f"episodes are of one environment or suite (got {env!r})"
        raise InvalidInputError([Problem(key="env", text=text)])
    kwargs = {**cast("Mapping[str, Json]", sources[0].kwargs), **(env_kwargs or {})}
    return sources[0].name, kwargs, stored


def _run_of(policy: object) -> tuple[Path | None, RunConfig]:
    """Return the run that a policy is of, and its config; or None and the defaults."""
    run = read_policy(policy).run if isinstance(policy, str) else None
    return run, read_config(run) if run is not None else RunConfig()


def asked_evaluation(
    envs: object,
    policy: object,
    *,
    settings: object,
    limits: Limits | None,
    history: History | None,
) -> Asked:
    """Return what is evaluated; what is None is the run's own if the policy is of a run.

    Raises:
        InvalidInputError: With one line for each problem.
    """
    sources = sources_of(envs)
    run, stored = _run_of(policy)
    defaults: dict[str, Any] = {}
    if run is not None:
        sources = with_run_arguments(run, stored, sources)
        own = own_settings(stored).items()
        defaults = {k.removeprefix("eval."): v for k, v in own if k.startswith("eval.")}
    return Asked(
        sources=own_sources(RunConfig(envs=sources)),
        settings=eval_settings(settings, defaults),
        limits=limits if limits is not None else stored.limits.to_limits(),
        history=history if history is not None else stored.rollout.history,
    )
