"""Runs a policy on held-out tasks and scores it: `choose_tasks`, `evaluate_policy`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from agentgym import seeding
from agentgym.config.schema import EvalConfig, RunConfig
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.env.suites import load_suite
from agentgym.errors import ConfigError
from agentgym.evaluation.result import Attempt, EvaluationResult
from agentgym.evaluation.summary import attempts_of, summarise, task_key
from agentgym.records import Group, Json, Score, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.scoring import Rubric, score_all

OnEpisode = Callable[[Trajectory], None]


def choose_tasks(
    sources: Mapping[str, Mapping[str, Json]], *, split: str, count: int, seed: int
) -> tuple[Task, ...]:
    """Return the tasks to evaluate on, the same ones for equal arguments.

    Args:
        sources: Suite or environment -> arguments of its environment.
        split: Which split.
        count: Tasks of each source at most; one with fewer gives all.
        seed: Seed of the choice, which is independent of training's.

    Raises:
        ConfigError: If there is no source.
        TaskError: If a source is unknown or has no such split.
    """
    if not sources:
        raise ConfigError("an evaluation needs one suite or environment or more (got none)")
    return tuple(
        task
        for name, kwargs in sources.items()
        for task in load_suite(name, env_kwargs=dict(kwargs)).tasks(split, limit=count, seed=seed)
    )


def evaluation_sources(config: RunConfig) -> dict[str, Mapping[str, Json]]:
    """Return what a run is evaluated on: `eval.suites`, or its own sources.

    A suite of `eval.suites` which the run has once has the run's arguments, otherwise its own.

    Raises:
        InvalidInputError: If the run has a source more than once with other arguments, and
            `eval.suites` does not say what is meant.
    """
    if not config.eval.suites:
        return own_sources(config)
    own = {name: kwargs[0] for name, kwargs in _by_name(config).items() if len(kwargs) == 1}
    return {name: own.get(name, {}) for name in config.eval.suites}


def own_sources(config: RunConfig) -> dict[str, Mapping[str, Json]]:
    """Return a run's sources with their arguments, each name once.

    Raises:
        InvalidInputError: If a name is given again with other arguments.
    """
    grouped = _by_name(config)
    problems = [
        Problem(
            key="envs",
            text=f"{name!r} is given twice for evaluation, with {_shown(kwargs[0])} and with "
            f"{_shown(kwargs[1])}; give it once, such as {name}:levels=[1,4], or name what to "
            "evaluate on in a run's eval.suites",
        )
        for name, kwargs in grouped.items()
        if len(kwargs) > 1
    ]
    if problems:
        raise InvalidInputError(problems)
    return {name: kwargs[0] for name, kwargs in grouped.items()}


def _by_name(config: RunConfig) -> dict[str, list[Mapping[str, Json]]]:
    """Return name -> the different arguments that it is given with."""
    found: dict[str, list[Mapping[str, Json]]] = {}
    for source in config.envs:
        of_name = found.setdefault(source.name, [])
        kwargs = cast("Mapping[str, Json]", source.kwargs)
        if kwargs not in of_name:
            of_name.append(kwargs)
    return found


def _shown(kwargs: Mapping[str, Json]) -> str:
    return ", ".join(f"{key}={value}" for key, value in kwargs.items()) or "no arguments"


async def evaluate_policy(
    engine: Engine,
    tasks: Sequence[Task],
    settings: EvalConfig,
    *,
    name: str = "evaluation",
    step: int | None = None,
    limits: Limits | None = None,
    rubric: Rubric | None = None,
    suites: Sequence[str] = (),
    on_episode: OnEpisode | None = None,
    on_score: Callable[[Score], None] | None = None,
) -> EvaluationResult:
    """Run every task `settings.attempts` times with the engine's policy and summarise.

    Failures of infrastructure are tried again by the engine within its bounds; those that remain
    count 0 and are shown beside the headline. Episodes that a limit ends have the environment's own
    outcome.

    Args:
        engine: Has the policy; stays open.
        tasks: What to evaluate on.
        settings: Attempts, split, seed and evaluation's own sampling.
        name: Names the result and the ids of its episodes.
        step: Training step after which it is made.
        limits: Bounds of an episode, beside the environment's own.
        rubric: Scores the episodes; the environment's outcome by default.
        suites: What the tasks were taken from, for the record.
        on_episode: Called with each record when its episode ends.
        on_score: Called with each score.

    Raises:
        ConfigError: If there is no task, or a task stands twice.
    """
    keys = [task_key(task) for task in tasks]
    if not keys or len(set(keys)) < len(keys):
        raise ConfigError(f"an evaluation needs tasks, each once (got {len(keys)} tasks)")
    began = time.monotonic()
    specs = [_group_spec(task, settings, name, limits or Limits()) for task in tasks]
    groups = await engine.run_groups(specs, on_episode)
    rubric = rubric if rubric is not None else Rubric()
    attempts: list[Attempt] = []
    for task, group in zip(tasks, groups, strict=True):
        scores = await score_all(group.trajectories, rubric)
        attempts.extend(_attempts(task, group, scores, settings.attempts, on_score))
    result = summarise(
        attempts,
        tasks,
        name=name,
        step=step,
        policy_id=engine.policy.id,
        policy_version=engine.policy.version,
        suites=suites or sorted({task.suite or task.env_id for task in tasks}),
        split=settings.split,
        attempts_per_task=settings.attempts,
        sampling=settings.sampling(),
        seed=settings.seed,
        scorer_id=rubric.id,
    )
    return dataclasses.replace(result, seconds=time.monotonic() - began)


def _attempts(
    task: Task,
    group: Group,
    scores: Sequence[Score],
    size: int,
    on_score: Callable[[Score], None] | None,
) -> tuple[Attempt, ...]:
    if on_score is not None:
        for score in scores:
            on_score(score)
    return attempts_of(task, group, {score.trajectory_id: score for score in scores}, size=size)


def _group_spec(task: Task, settings: EvalConfig, name: str, limits: Limits) -> GroupSpec:
    seed = seeding.derive("evaluation", settings.seed, task_key(task))
    return GroupSpec(
        id=f"{name}-{task_key(task)}",
        task=task,
        size=settings.attempts,
        seed=seed,
        sampling=dataclasses.replace(settings.sampling(), seed=seed),
        limits=limits,
    )
