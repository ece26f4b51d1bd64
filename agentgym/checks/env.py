"""`check_env`: does an environment keep the contract, and can it be solved without solving it?

In order: `check_env`, the checks of the contract, their pieces. What is measured by playing
(scores, probes, visible answers) is in `agentgym.checks.reward_hacking`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import random
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.utils import env_checker

from agentgym import seeding
from agentgym.checks import reward_hacking
from agentgym.checks.env_under_test import Subject
from agentgym.checks.report import Findings, Report, Verdict, require
from agentgym.env import players
from agentgym.env.contract import TextEnv
from agentgym.env.players import Episode
from agentgym.records import ErrorKind, Json, Task
from agentgym.tool_formats.tools import Tool

_TASKS_TO_REPEAT = 3
"""Tasks whose episodes are played again and again; enough to differ, and quick."""
_SEEDS = range(10)


def check_env(
    env: str | Callable[[], Any],
    *,
    env_kwargs: Mapping[str, Json] | None = None,
    tasks: Sequence[Task] | None = None,
    episodes_each: int = 24,
    seed: int = 0,
    raise_errors: bool = False,
    on_check: Callable[[str], None] | None = None,
) -> Report:
    """Return what was found about an environment.

    Args:
        env: A registered id, or a function that makes an instance.
        env_kwargs: Arguments of its constructor, for an id.
        tasks: Tasks to play; by default the environment draws its own.
        episodes_each: Episodes of each way to play; more of them find smaller leaks.
        seed: Seed of everything that is drawn.
        raise_errors: Raise instead of returning a report with failures.
        on_check: Called with the name of each check when it begins.

    Raises:
        RegistryError: If the id is unknown.
        ContractError: With `raise_errors`, if anything failed.
    """
    subject = Subject.of(env, env_kwargs or {}, tasks, episodes_each=episodes_each, seed=seed)
    findings = Findings(on_check=on_check)
    scores: dict[str, float] = {}
    for name, check in _CHECKS.items():
        with findings.check(name):
            check(subject)
    # What cannot be played cannot be measured, and would only repeat the first finding.
    if findings.found[0].verdict is Verdict.PASSED:
        reward_hacking.run(subject, findings, scores)
    report = findings.report(subject.name, scores)
    return report.raise_if_failed() if raise_errors else report


# -- the contract ------------------------------------------------------------------------------


def _plays(subject: Subject) -> None:
    """An episode of random actions runs and keeps the types of the contract."""
    with subject.instance() as env:
        observation, info = env.reset(seed=subject.seed)
        _require_text(observation, "the observation of reset")
        require(env.observation_space.contains(observation), "the observation is not in its space")
        if isinstance(env.unwrapped, TextEnv):
            require(isinstance(info.get("task"), Task), "reset's info must hold the 'task'")
        for task in subject.tasks[:_TASKS_TO_REPEAT]:
            episode = players.play(
                env, players.random_well_formed((), ()), task=task, seed=subject.seed
            )
            _check_types(episode)


def _check_types(episode: Episode) -> None:
    require(
        math.isfinite(episode.total_reward), f"rewards are finite (got {episode.total_reward!r})"
    )
    require(0 <= episode.outcome <= 1, f"an outcome is in [0, 1] (got {episode.outcome!r})")
    for observation, info in zip(episode.observations[1:], episode.infos, strict=True):
        _require_text(observation, "the observation of step")
        role = info.get("role", "user")
        require(role in {"user", "tool"}, f"info['role'] is 'user' or 'tool' (got {role!r})")
        for name, value in info.get("rewards", {}).items():
            require(
                isinstance(name, str) and math.isfinite(value),
                f"info['rewards'] has finite numbers by name (got {name!r}: {value!r})",
            )


def _gymnasium(subject: Subject) -> None:
    """Gymnasium's own checker."""
    with subject.instance() as env, warnings.catch_warnings():
        # It advises by warnings on spaces that are not boxes; its errors are exceptions.
        warnings.simplefilter("ignore")
        env_checker.check_env(env.unwrapped, skip_render_check=True)


def _gymnasium_make(subject: Subject) -> None:
    """`gymnasium.make` gives the same environment, and its step limit reaches it (J7)."""
    if subject.env_id is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kwargs: dict[str, Any] = dict(subject.env_kwargs)
        env = gymnasium.make(subject.env_id, max_episode_steps=1, **kwargs)
    with contextlib.closing(env):
        env.reset(seed=subject.seed)
        _, _, terminated, truncated, _ = env.step("")
        require(terminated or truncated, "a limit of 1 step given to gymnasium.make has no effect")


def _seeds(subject: Subject) -> None:
    """The same seed gives the same task, other seeds others (J4)."""
    with subject.instance() as env:
        first = [_start(env, seed) for seed in _SEEDS]
        with _disturbed_globals():
            again = [_start(env, seed) for seed in _SEEDS]
    for seed, one, two in zip(_SEEDS, first, again, strict=True):
        require(one == two, f"reset(seed={seed}) gave two different starts: {one!r} and {two!r}")
    require(len(set(first)) > 1, f"seeds 0 to 9 all gave one start: {first[0]!r}")


def _unseeded_resets(subject: Subject) -> None:
    """The episode after an unseeded reset does not depend on the length of the last one (J5)."""
    with subject.instance() as env:
        nexts: list[tuple[str, str]] = []
        for turns in (1, 2):
            env.reset(seed=3)
            _step_some(env, turns)
            nexts.append(_start(env, None))
    require(
        nexts[0] == nexts[1],
        f"the episode after an unseeded reset depends on how long the last one was: {nexts!r}",
    )


def _determinism(subject: Subject) -> None:
    """The same task, seed and actions give the same episode, whatever ran before (J1, J4)."""
    for task in subject.tasks[:_TASKS_TO_REPEAT]:
        actions = subject.actions(task)
        with subject.instance() as env:
            first = _trace(env, actions, task, subject.seed)
            env.reset(seed=subject.seed + 1)
            _step_some(env, 1)
            with _disturbed_globals():
                again = _trace(env, actions, task, subject.seed)
        with subject.instance() as env:
            fresh = _trace(env, actions, task, subject.seed)
        _require_equal(first, again, "after another episode in the same instance")
        _require_equal(first, fresh, "in a new instance")


def _isolation(subject: Subject) -> None:
    """Two instances that run at the same time do not touch each other."""
    if subject.max_instances == 1:
        return
    tasks = [*subject.tasks, *subject.tasks][:2]
    plans = [(task, subject.actions(task)) for task in tasks]
    alone: list[list[object]] = []
    for task, actions in plans:
        with subject.instance() as env:
            alone.append(_trace(env, actions, task, subject.seed))
    with subject.instance() as left, subject.instance() as right:
        runs = [
            _trace_steps(env, actions, task, subject.seed)
            for env, (task, actions) in zip((left, right), plans, strict=True)
        ]
        together = _interleaved(runs)
    for one, both in zip(alone, together, strict=True):
        _require_equal(one, both, "beside another instance")


def _close(subject: Subject) -> None:
    """`close` may be called before `reset`, and twice."""
    env = subject.make()
    env.close()
    env.close()
    env = subject.make()
    env.reset(seed=subject.seed)
    env.close()
    env.close()


def _cut_off(subject: Subject) -> None:
    """A turn cut off by length executes nothing (C4, C5)."""
    for task in subject.tasks[:_TASKS_TO_REPEAT]:
        with subject.instance() as env:
            if not isinstance(env.unwrapped, TextEnv):
                return
            action = players.as_cut_off(subject.actions(task)[0])
            env.reset(seed=subject.seed, options=subject.options(task))
            _, _, _, _, info = env.step(action)
            kind = info.get("error_kind")
            require(
                kind is ErrorKind.TRUNCATED,
                f"a cut-off turn must have the error kind 'truncated' (got {kind!r})",
            )
            require(not info.get("tool_results"), "a cut-off turn ran a tool")
            require(info.get("outcome", 0.0) == 0.0, "a cut-off turn solved the task")


def _declarations(subject: Subject) -> None:
    """System prompt, limits and tools are what the contract says."""
    with subject.instance() as env:
        inner = env.unwrapped
        if not isinstance(inner, TextEnv):
            return
        _require_text(inner.system_prompt, "'system_prompt'")
        require(inner.limits.max_turns is not None, "'limits.max_turns' must have a bound")
        names = [tool.name for tool in inner.tools]
        require(len(set(names)) == len(names), f"two tools have one name: {names!r}")
        for tool in inner.tools:
            require(bool(tool.description), f"the tool {tool.name!r} has no docstring")
            _require_schemas(tool)
        if getattr(inner, "tells_tools", False):
            observation, _ = env.reset(seed=subject.seed)
            _require_told(inner, names, f"{inner.system_prompt}\n{observation}")


_SAYS_WHAT = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref")


def _require_schemas(tool: Tool) -> None:
    """An argument that may be anything, or whose order does not count, is no help to an agent."""
    for name, schema in tool.parameters.get("properties", {}).items():
        require(
            any(key in schema for key in _SAYS_WHAT),
            f"the tool {tool.name!r} does not say what {name!r} is: give it a type such as str",
        )
        require(
            not schema.get("uniqueItems"),
            f"the argument {name!r} of the tool {tool.name!r} is a set, which JSON has not: take a "
            "list",
        )


def _require_told(inner: TextEnv, names: Sequence[str], told: str) -> None:
    """Nobody calls a tool or answers in a format that was never told."""
    mark = "your answer"
    form = inner.protocol.format_answer(mark).partition(mark)[0].strip()
    require(
        any(name in told for name in names) or (bool(form) and form in told),
        f"the prompt names no tool ({', '.join(names)}) and no answer format ({form}): put "
        "{tools} into 'system_prompt', or set 'tells_tools = False' if the agent knows them",
    )


_CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "plays": _plays,
    "declarations": _declarations,
    "gymnasium checker": _gymnasium,
    "gymnasium.make": _gymnasium_make,
    "seeds": _seeds,
    "unseeded resets": _unseeded_resets,
    "determinism": _determinism,
    "isolation": _isolation,
    "close": _close,
    "cut-off turns": _cut_off,
}


def _require_text(value: object, what: str) -> None:
    require(isinstance(value, str), f"{what} must be text (got {value!r})")


# -- pieces ------------------------------------------------------------------------------------


def _start(env: Any, seed: int | None) -> tuple[str, str]:
    observation, info = env.reset(seed=seed)
    task = info.get("task")
    return observation, task.content_hash if isinstance(task, Task) else ""


def _step_some(env: Any, turns: int) -> None:
    for _ in range(turns):
        _, _, terminated, truncated, _ = env.step("")
        if terminated or truncated:
            return


def _trace(env: Any, actions: Sequence[str], task: Task | None, seed: int) -> list[object]:
    return list(_trace_steps(env, actions, task, seed))


def _trace_steps(
    env: Any, actions: Sequence[str], task: Task | None, seed: int
) -> Iterator[object]:
    """Yield what each call gives, without what may differ between equal runs."""
    options = {"task": task} if task is not None else None
    yield env.reset(seed=seed, options=options)[0]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        kept = ("rewards", "outcome", "role", "error_kind")
        results = tuple(result.text for result in info.get("tool_results", ()))
        facts = tuple((key, info[key]) for key in kept if key in info)
        yield observation, float(reward), bool(terminated), bool(truncated), results, facts
        if terminated or truncated:
            return


def _interleaved(runs: Sequence[Iterator[object]]) -> list[list[object]]:
    traces: list[list[object]] = [[] for _ in runs]
    live = dict(enumerate(runs))
    while live:
        for number, run in list(live.items()):
            item = next(run, None)
            if item is None:
                del live[number]
            else:
                traces[number].append(item)
    return traces


def _require_equal(one: Sequence[object], two: Sequence[object], where: str) -> None:
    for turn, (a, b) in enumerate(zip(one, two, strict=False)):
        require(a == b, f"call {turn} differs {where}: {a!r} and {b!r}")
    require(len(one) == len(two), f"the episode has another length {where}")


@contextlib.contextmanager
def _disturbed_globals() -> Generator[None]:
    """Give the global generators another state: an environment must not draw from them."""
    numpy_random: Any = importlib.import_module("numpy.random")
    python_state, numpy_state = random.getstate(), numpy_random.get_state()
    random.setstate(seeding.rng("disturbed").getstate())
    numpy_random.set_state(numpy_random.RandomState(1).get_state())
    try:
        yield
    finally:
        random.setstate(python_state)
        numpy_random.set_state(numpy_state)
