"""The Python interface: `rollout`, `evaluate`, `train`. The command line goes through it too.

What lives in `agentgym.trainers` is reached by name when it is needed: the core imports no part,
and `import agentgym` loads no torch.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from agentgym import seeding
from agentgym.concurrency.interruption import run_interruptible
from agentgym.concurrency.threads import run_coroutine
from agentgym.config.consistency import contradictions
from agentgym.config.loading import load_config
from agentgym.config.schema import EvalConfig, RunConfig
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.env import registry
from agentgym.env.suites import list_suites, load_suite
from agentgym.env.task_files import TRAIN
from agentgym.evaluation.evaluator import OnEpisode, choose_tasks, evaluate_policy
from agentgym.evaluation.result import EvaluationResult
from agentgym.records import Json, Sampling, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.redaction import REDACTED
from agentgym.renderer.base import History
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.runs.folder import RunFolder, read_config
from agentgym.runs.inputs import (
    Asked,
    AskedEnvs,
    AskedPolicy,
    asked_evaluation,
    asked_rollout,
    form_problems,
    policy_of,
)
from agentgym.runs.load_policy import acting_problems, load_part, open_policy
from agentgym.runs.policies import PolicyKind
from agentgym.runs.preflight import argument_problems, checked_config, run_path, split_problems
from agentgym.runs.progress import ProgressSink, Silent

RESUMABLE = frozenset(
    {
        "steps",
        "run_dir",
        "allow_leak",
        "rollout.max_concurrent",
        "rollout.retries",
        "optim.micro_batch_tokens",
        "optim.device",
    }
)
"""Settings that a resumed run may change, beside the sections `eval`, `budget`, `checkpoint`."""
_RESUMABLE_SECTIONS = ("eval.", "budget.", "checkpoint.")


# ---------------------------------------------------------------------------------- rollout


def rollout(
    env: str,
    policy: AskedPolicy,
    *,
    tasks: Sequence[Task] | int = 1,
    group_size: int = 1,
    split: str = TRAIN,
    env_kwargs: Mapping[str, Json] | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    max_concurrent: int = 64,
    seed: int = 0,
) -> tuple[Trajectory, ...]:
    """Run episodes of an environment or a suite and return their records.

    If the policy is of a run, what is None is as in that run's training.

    Args:
        env: Id of an environment, or name of a suite, with arguments as on the command line.
        policy: A policy, its name as on the command line, or a function of the request.
        tasks: What to ask, or how many tasks to take from `split`.
        group_size: Episodes of each task, from the same start.
        split: Which split of the suite.
        env_kwargs: Arguments of the environment's constructor, over those in `env`.
        sampling: How each turn is drawn.
        limits: Bounds, beside the environment's own.
        max_concurrent: Live episodes at most.
        seed: Seed of the episodes.

    Raises:
        ConfigError: If the environment, the suite or the policy is unknown.

    Example:
        rollout("math/arithmetic-v0", "expert", tasks=3)[0].outcome
    """
    name, kwargs, stored = asked_rollout(env, policy, env_kwargs)
    chosen = tasks
    if isinstance(chosen, int):
        chosen = load_suite(name, env_kwargs=kwargs).tasks(split, limit=chosen)
    _check_rollout(name, chosen, group_size, kwargs)
    specs = [
        GroupSpec(
            id=f"rollout-{number}",
            task=task,
            size=group_size,
            seed=seeding.derive("rollout", seed, task.id),
            env_kwargs=kwargs,
            sampling=sampling if sampling is not None else stored.rollout.sampling(),
            limits=limits if limits is not None else stored.limits.to_limits(),
        )
        for number, task in enumerate(chosen)
    ]
    opened = policy_of(policy, history=stored.rollout.history)

    async def run_them() -> tuple[Trajectory, ...]:
        async with Engine(opened, max_concurrent=_live(policy, max_concurrent)) as engine:
            groups = await engine.run_groups(specs)
        if opened is not policy:
            await opened.aclose()
        return tuple(trajectory for group in groups for trajectory in group.trajectories)

    return run_coroutine(run_them())


def _live(policy: AskedPolicy, asked: int) -> int:
    """Return how many episodes may be live: a person plays one after the other."""
    return 1 if policy == PolicyKind.HUMAN else asked


def _check_rollout(
    env: str, tasks: Sequence[Task], group_size: int, kwargs: Mapping[str, Json]
) -> None:
    """Raise where every episode would fail, there would be none, or another environment played."""
    problems: list[Problem] = []
    if group_size < 1:
        text = f"'group_size' must be at least 1 (got {group_size!r})"
        problems.append(Problem(key="group_size", text=text))
    is_env = env not in list_suites() and registry.is_known(env)
    env_id = registry.spec(env).id if is_env else load_suite(env, env_kwargs=kwargs).env_id
    others = sorted({task.env_id for task in tasks} - {env_id})
    if others:
        text = (
            f"{env_id} cannot pose tasks of {', '.join(others)}: name the environment they are of"
        )
        problems.append(Problem(key="tasks", text=text))
    problems.extend(p for p in argument_problems(env_id, kwargs) if "takes no" in p.text)
    if problems:
        raise InvalidInputError(problems)


# --------------------------------------------------------------------------------- evaluate


def evaluate(
    env: AskedEnvs,
    policy: AskedPolicy,
    *,
    settings: EvalConfig | Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    history: History | None = None,
    max_concurrent: int = 64,
    retries: int = 2,
    name: str = "evaluation",
    on_episode: OnEpisode | None = None,
) -> EvaluationResult:
    """Evaluate a policy on held-out tasks and return means with intervals, and pass@k.

    If the policy is of a run, its environments have the run's arguments, and sampling, limits,
    history and seed are those of the run's own evaluations, unless something else is given.

    Args:
        env: An environment or a suite, with arguments as on the command line; several as a list, or
            as a mapping to the arguments of their environments.
        policy: A policy, its name as on the command line, or a function of the request.
        settings: Tasks, attempts, split, seed and evaluation's own sampling.
        limits: Bounds, beside the environment's own.
        history: How earlier turns enter the next prompt; verbatim by default.
        max_concurrent: Live episodes at most.
        retries: Further tries of an episode whose infrastructure failed.
        name: Names the result.
        on_episode: Called with each record when its episode ends.

    Raises:
        ConfigError: If something that is named is unknown.

    Example:
        evaluate("math/arithmetic", "runs/first", settings={"attempts": 4}).outcome.low
    """
    asked = asked_evaluation(env, policy, settings=settings, limits=limits, history=history)
    return run_evaluation(
        asked,
        policy,
        max_concurrent=max_concurrent,
        retries=retries,
        name=name,
        on_episode=on_episode,
    )


def run_evaluation(
    asked: Asked,
    policy: AskedPolicy,
    *,
    max_concurrent: int,
    retries: int,
    name: str = "evaluation",
    on_episode: OnEpisode | None = None,
) -> EvaluationResult:
    """Evaluate what `asked` says, and nothing of a run beside it."""
    settings = asked.settings
    check_evaluation(asked, policy)
    tasks = choose_tasks(
        asked.sources, split=settings.split, count=settings.tasks, seed=settings.seed
    )
    opened = policy_of(policy, history=asked.history)

    async def run() -> EvaluationResult:
        live = _live(policy, max_concurrent)
        async with Engine(opened, max_concurrent=live, retries=retries) as engine:
            result = await evaluate_policy(
                engine,
                tasks,
                settings,
                name=name,
                limits=asked.limits,
                suites=tuple(asked.sources),
                on_episode=on_episode,
            )
        if opened is not policy:
            await opened.aclose()
        return result

    return run_coroutine(run())


def check_evaluation(asked: Asked, policy: AskedPolicy) -> None:
    """Raise what would make an evaluation fail, before anything is loaded.

    Raises:
        InvalidInputError: With one line for each problem.
    """
    problems = [
        problem
        for source, kwargs in asked.sources.items()
        for problem in split_problems(source, dict(kwargs), asked.settings.split)
    ]
    problems += acting_problems(policy) if isinstance(policy, str) else form_problems(policy)
    if problems:
        raise InvalidInputError(problems)


# ------------------------------------------------------------------------------------ train


def train(
    settings: object = None,
    *,
    config_file: str | Path | None = None,
    resume: str | Path | None = None,
    progress: ProgressSink | None = None,
    **options: Any,
) -> Any:
    """Train an agent and return a summary: the run's folder, steps, the last evaluation.

    Args:
        settings: A `RunConfig`, a mapping (nested or with dotted keys) or a dataclass.
        config_file: A YAML or TOML file; `settings` win over it.
        resume: Folder of a run to go on with; other settings may then only change what a resumed
            run may change.
        progress: Who is told how it goes.
        **options: Further settings; a dot is written as two underscores.

    Raises:
        InvalidInputError: With everything that is wrong with the input; nothing has started then.
        KeyboardInterrupt: If it is interrupted; the state after the last whole step is saved.

    Example:
        train({"envs": ["math/arithmetic"], "steps": 50}, optim__learning_rate=1e-4)
    """
    extra = {key.replace("__", "."): value for key, value in options.items()}
    if resume is not None:
        config = resumed_config(Path(resume), settings=settings, extra=extra)
        return run_training(config, Path(resume), is_resumed=True, progress=progress)
    config = checked_config(file=config_file, settings=settings, extra=extra)
    return run_training(config, run_path(config), is_resumed=False, progress=progress)


def resumed_config(
    path: Path,
    *,
    assignments: Sequence[str] = (),
    settings: object = None,
    extra: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the config of the run in a folder, with what a resumed run may change changed.

    Raises:
        ConfigError: If the folder holds no run.
        InvalidInputError: If another setting differs from the stored one.
    """
    stored = read_config(path)
    wanted = load_config(
        file=path / "config.yaml",
        settings=settings,
        extra=extra,
        assignments=assignments,
        is_training=False,
    )
    before, after = _flat(stored), _flat(wanted)
    problems = contradictions(wanted)
    for key, old in before.items():
        is_secret = REDACTED in str(old)
        if is_secret and REDACTED in str(after[key]):
            text = f"{key!r} holds a secret, which is not stored: give it again"
            problems.append(Problem(key=key, text=text))
        elif old != after[key] and not (is_secret or _may_change(key)):
            text = (
                f"{key!r} cannot change in a resumed run (it is {old!r}, got {after[key]!r}); "
                "start a new run for it"
            )
            problems.append(Problem(key=key, text=text))
    if problems:
        raise InvalidInputError(problems)
    return wanted


def _may_change(key: str) -> bool:
    return key in RESUMABLE or key.startswith(_RESUMABLE_SECTIONS)


def _flat(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict) and name != "preset_overrides":
            inner = cast("dict[str, Any]", value)
            flat |= {f"{name}.{key}": content for key, content in inner.items()}
        else:
            flat[name] = value
    return flat


def run_training(
    config: RunConfig, path: Path, *, is_resumed: bool, progress: ProgressSink | None = None
) -> Any:
    """Train what `config` says in the folder `path`, which `preflight` has looked at."""
    setup, loop = (
        load_part("agentgym.trainers.loop.setup"),
        load_part("agentgym.trainers.loop.train"),
    )
    sink = progress if progress is not None else Silent()
    inputs = setup.check_inputs(config)

    async def run(folder: RunFolder) -> Any:
        session = await setup.open_session(inputs, folder, progress=sink, is_resumed=is_resumed)
        sink.on_phase("train", config.steps - session.state.next_step)
        return await loop.run_loop(session)

    with (
        _open_folder(path, config, is_resumed=is_resumed) as folder,
        _without_trace(folder, is_new=not is_resumed),
    ):
        summary = run_interruptible(run(folder))
        if int(os.environ.get("RANK", "0")) == 0:
            write_report(folder.path)
        return summary


@contextmanager
def _without_trace(folder: RunFolder, *, is_new: bool) -> Generator[None]:
    """Take the folder of a new run away if the run ends before it has anything to keep."""
    try:
        yield
    except BaseException:
        if is_new and int(os.environ.get("RANK", "0")) == 0 and not folder.has_work:
            folder.remove()
        raise


def _open_folder(path: Path, config: RunConfig, *, is_resumed: bool) -> RunFolder:
    if int(os.environ.get("RANK", "0")) > 0:
        return RunFolder.follow(path, config)
    return RunFolder.open(path, config) if is_resumed else RunFolder.create(path, config)


def write_report(path: Path) -> None:
    """Write `report.md` and the curves of a run's folder, as far as it has got."""
    from agentgym.runs.folder import write_atomic
    from agentgym.runs.plots import draw_if_any
    from agentgym.runs.report import report_text

    draw_if_any(path)
    write_atomic(path / "report.md", report_text(path))


__all__ = ["evaluate", "open_policy", "rollout", "train"]
