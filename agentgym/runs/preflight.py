"""Checks a config against what is installed and on disk, before anything slow starts.

`preflight` finds everything it can and reports it together: environments and suites, their splits,
the preset with its overrides, the policy, the run folder, held-out tasks among the training tasks,
and experts for a warm start. What lives in `agentgym.trainers` is reached by name, since the core
imports no part.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from agentgym.config.loading import load_config
from agentgym.config.reward_names import weight_problems
from agentgym.config.schema import Device, EnvSource, RunConfig, SamplingEngine
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.env import registry
from agentgym.env.first_observations import FirstLooks, compare_first_looks
from agentgym.env.suite import Suite
from agentgym.env.suites import LeakError, check_leaks, list_suites, load_suite
from agentgym.errors import AgentGymError, ConfigError, nearest
from agentgym.evaluation.evaluator import choose_tasks, evaluation_sources
from agentgym.records import Json, Task
from agentgym.runs.expert_check import blank_policy_problems, demonstration_problems
from agentgym.runs.folder import next_free, refuse_used
from agentgym.runs.model_folder import folder_problems
from agentgym.runs.policies import policy_problems

_MOST_TRAINING_TASKS = 4_096
"""Training tasks compared with the held-out ones at the start; more would take too long."""


def checked_config(
    *,
    file: str | Path | None = None,
    assignments: Sequence[str] = (),
    settings: object = None,
    extra: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the config of a new run, looked at against everything that can be known before it.

    Takes what `load_config` takes. What could not be read is reported together with what is wrong
    with the rest.

    Raises:
        InvalidInputError: With one line for each problem.
    """
    problems: list[Problem] = []
    try:
        config = load_config(file=file, assignments=assignments, settings=settings, extra=extra)
    except InvalidInputError as error:
        if not isinstance(error.rest, RunConfig):
            raise
        config = error.rest
        problems.extend(error.problems)
    problems = [_as_argument(problem, config.envs) for problem in problems]
    known = {problem.key.partition(".")[0] for problem in problems}
    try:
        preflight(config, run_dir=run_path(config))
    except InvalidInputError as error:
        # A setting that could not be read stands at its default: nothing to say about that.
        problems.extend(problem for problem in error.problems if problem.key not in known)
    if problems:
        raise InvalidInputError(problems)
    return config


def run_path(config: RunConfig) -> Path:
    """Return the folder that a new run of `config` takes.

    Raises:
        InvalidInputError: If several processes would each choose their own.
    """
    if config.run_dir:
        return Path(config.run_dir).expanduser()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        text = "several processes need to be told one folder: give 'run_dir'"
        raise InvalidInputError([Problem(key="run_dir", text=text)])
    names = "-".join(source.name.rpartition("/")[2] for source in config.envs[:2])
    return next_free(f"{names or 'run'}-{Path(config.preset).stem}")


def preflight(config: RunConfig, *, run_dir: Path | None = None) -> None:
    """Raise everything that would make the run of `config` fail later.

    Args:
        config: What is to be run.
        run_dir: Folder of a new run, which must not be used; None to leave it unchecked.

    Raises:
        InvalidInputError: With one line for each problem.
    """
    problems = [*source_problems(config), *policy_problems(config.policy, trained=True)]
    problems += _warmstart_problems(config)
    problems += [*preset_problems(config), *_run_dir_problems(run_dir), *_engine_problems(config)]
    if not problems:
        problems += [*_leak_problems(config), *demonstration_problems(config)]
        problems += blank_policy_problems(config)
    if problems:
        raise InvalidInputError(problems)


def source_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield what is wrong with the environments and suites, for training and evaluation."""
    if not config.envs:
        yield Problem(
            key="envs", text="no environment given; `agentgym envs list` shows all of them"
        )
    for source in config.envs:
        kwargs = cast("dict[str, Json]", dict(source.kwargs))
        yield from split_problems(source.name, kwargs, source.split)
    if not evaluates(config):
        return
    own = {source.name for source in config.envs}
    for name, kwargs in evaluation_sources(config).items():
        found = split_problems(name, dict(kwargs), config.eval.split)
        # Of a source that is wrong altogether one line is enough.
        yield from (p for p in found if name not in own or config.eval.split in p.text)


def split_problems(name: str, kwargs: dict[str, Json], split: str) -> Iterator[Problem]:
    """Yield what is wrong with one split of one suite or environment."""
    try:
        suite = load_suite(name) if name in list_suites() else None
        env_id = suite.env_id if suite is not None else name
        wrong = list(_env_problems(env_id, kwargs)) if registry.is_known(env_id) else []
        yield from wrong
        if not wrong:
            load_suite(name, env_kwargs=kwargs).task(split, 0)
    except AgentGymError as error:
        text = _one_line(error)
        yield Problem(key="envs", text=text if name in text else f"{name}: {text}")


def _env_problems(env_id: str, kwargs: dict[str, Json]) -> Iterator[Problem]:
    """Yield what is wrong with an environment's arguments: their names, or one of their values."""
    wrong = list(argument_problems(env_id, kwargs))
    yield from wrong
    if wrong:
        return
    try:
        registry.make(env_id, **kwargs).close()
    except (AgentGymError, TypeError, ValueError) as error:  # the constructor's own words
        text = _one_line(error)
        yield Problem(key="envs", text=text if env_id in text else f"{env_id}: {text}")


def argument_problems(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each argument that a constructor does not take, or that is missing."""
    known = inspect.signature(registry.load(env_id)).parameters
    given = {*kwargs, *registry.spec(env_id).env_kwargs}
    for key, parameter in known.items():
        is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not is_open and key not in given:
            yield Problem(key="envs", text=f"{env_id} needs {key}=… (got no argument {key!r})")
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for key in kwargs:
        if key not in known:
            text = f"{env_id} takes no argument {key!r}{nearest(key, known)}"
            yield Problem(key="envs", text=text)


def _as_argument(problem: Problem, sources: Iterable[EnvSource]) -> Problem:
    """Return a problem of an unknown setting that is an argument of an environment, as such."""
    hint = argument_hint(problem.key, sources) if problem.text.startswith("unknown setting") else ""
    if not hint:
        return problem
    return dataclasses.replace(problem, text=f"unknown setting {problem.key!r}{hint}")


def argument_hint(key: str, sources: Iterable[EnvSource]) -> str:
    """Return where the argument `key` of one of the sources is written; empty if it is of none."""
    for source in sources:
        try:
            suite = load_suite(source.name) if source.name in list_suites() else None
            env_id = suite.env_id if suite is not None else source.name
            known = inspect.signature(registry.load(env_id)).parameters
        except (AgentGymError, TypeError, ValueError):  # said elsewhere
            continue
        if key in known:
            return (
                f"; it is an argument of {source.name}, which stands beside its name: "
                f"{source.name}:{key}=…"
            )
    return ""


def evaluates(config: RunConfig) -> bool:
    """Return whether a run makes any evaluation."""
    return config.eval.every > 0 or config.eval.at_start or config.eval.at_end


def preset_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield what is wrong with the preset, its overrides, and the group size it needs."""
    try:
        module: Any = importlib.import_module("agentgym.trainers.objective.preset")
    except ImportError as error:
        text = f"training needs {error.name}: pip install 'agentgym-rl-kit[train]'"
        yield Problem(key="preset", text=text)
        return
    try:
        preset = module.load_preset(
            config.preset, dict(config.preset_overrides), group_size=config.rollout.group_size
        )
        weighed = {n for one in preset.rewards for n in one.parameters.get("weights", {})}
        yield from weight_problems(config, weighed)
    except ConfigError as error:
        yield from (Problem(key="preset", text=line) for line in str(error).splitlines())
    if config.optim.device is Device.CUDA and not _has_gpu():
        yield Problem(key="optim.device", text="'optim.device' is cuda, but torch sees no GPU")


def _warmstart_problems(config: RunConfig) -> list[Problem]:
    """Return what is wrong with the folder that a run begins from."""
    path = config.warmstart.path
    if path is None:
        return []
    return [
        Problem(key="warmstart.path", text=f"'warmstart.path': {problem.text}")
        for problem in folder_problems(Path(path).expanduser(), path)
    ]


def _engine_problems(config: RunConfig) -> Iterator[Problem]:
    is_wanted = config.rollout.engine is SamplingEngine.VLLM
    if is_wanted and importlib.util.find_spec("vllm") is None:
        text = "'rollout.engine' vllm needs vLLM: pip install 'agentgym-rl-kit[vllm]'"
        yield Problem(key="rollout.engine", text=text)


def _has_gpu() -> bool:
    torch: Any = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


def _run_dir_problems(run_dir: Path | None) -> Iterator[Problem]:
    if run_dir is None:
        return
    parent = run_dir.absolute().parent
    while not os.path.lexists(parent) and parent != parent.parent:
        parent = parent.parent
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)) or _is_of_kernel(parent):
        text = f"'run_dir' must be in a folder that can be written to (got {str(run_dir)!r}; "
        yield Problem(key="run_dir", text=f"{text}{parent} is none)")
        return
    try:
        refuse_used(run_dir)
    except ConfigError as error:
        yield Problem(key="run_dir", text=str(error))


def _is_of_kernel(folder: Path) -> bool:
    """Return whether a folder is the kernel's, which takes no files whatever its rights say."""
    return any(folder.resolve().is_relative_to(root) for root in ("/proc", "/sys"))


def _leak_problems(config: RunConfig) -> list[Problem]:
    if not evaluates(config) or config.allow_leak:
        return []
    try:
        leaks(config)
    except (LeakError, AgentGymError) as error:
        return [Problem(key="envs", text=_one_line(error))]
    return []


def leaks(config: RunConfig, *, allow: bool = False) -> tuple[str, ...]:
    """Return the held-out tasks of a run that are among its training tasks, by id or content.

    Raises:
        LeakError: If there are any, unless `allow`.
    """
    return check_leaks(training_tasks(config), _held_out(config), allow=allow)


def first_looks(config: RunConfig) -> FirstLooks:
    """Return how far the held-out tasks of a run were compared with what training shows."""
    return compare_first_looks(training_tasks(config), _held_out(config))


def _held_out(config: RunConfig) -> tuple[Task, ...]:
    return choose_tasks(
        evaluation_sources(config),
        split=config.eval.split,
        count=config.eval.tasks,
        seed=config.eval.seed,
    )


def training_tasks(config: RunConfig) -> Iterator[Task]:
    """Yield the tasks that a run may train on; of a split without end, or a vast one, the first.

    Every draw of the run is checked again when it is made, so no leak depends on this bound.
    """
    drawn = config.steps * config.rollout.groups_per_step
    for source in config.envs:
        kwargs = cast("dict[str, Json]", dict(source.kwargs))
        suite = load_suite(source.name, env_kwargs=kwargs)
        yield from _first_tasks(suite, source.split, min(drawn, _MOST_TRAINING_TASKS))


def _first_tasks(suite: Suite, split: str, count: int) -> Iterable[Task]:
    size = suite.size(split)
    whole = size is not None and size <= _MOST_TRAINING_TASKS
    return (suite.task(split, index) for index in range(size if size and whole else count))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
