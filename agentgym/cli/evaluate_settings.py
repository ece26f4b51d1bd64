"""The settings of `agentgym eval`: which it takes, and those that a run's own evaluations had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym.config import Problem, RunConfig

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens")
_ACCEPTED = (
    *("eval.attempts", "eval.tasks", "eval.split", "eval.seed"),
    *(f"eval.{name}" for name in _SAMPLING),
    *("limits.*", "rollout.history", "rollout.max_concurrent", "rollout.retries"),
)
_INSTEAD = {
    "policy": "; the policy is given with --policy",
    "eval.suites": "; environments and suites are given before the settings",
    "envs": "; environments and suites are given before the settings",
}


def settings_of(
    words: Sequence[str],
    file: Path | None,
    *,
    policy: str,
    attempts: int | None,
    tasks: int | None,
) -> RunConfig:
    """Return what an evaluation is asked to do.

    Where the policy is the folder of a run and no file is given, episodes are drawn and bounded as
    in that run's own evaluations, unless `words` say something else.

    Args:
        words: Environments and suites, and `key=value` settings.
        file: A YAML or TOML file, such as a run's.
        policy: Name of the policy.
        attempts: Attempts at each task; None leaves it to the settings.
        tasks: Tasks at most; None leaves it to the settings.

    Raises:
        InvalidInputError: With one line for each problem, settings that an evaluation does not
            read among them.
    """
    from agentgym.config import InvalidInputError, Problem, load_config
    from agentgym.config.command_line import is_assignment

    names = [word for word in words if not is_assignment(word)]
    if not names:
        raise InvalidInputError([Problem(key="envs", text="name an environment or a suite")])
    settings = [word for word in words if is_assignment(word)]
    problems = [*_unread_settings(settings), *_unread_of_sources(names)]
    if problems:
        raise InvalidInputError(problems)
    extra: dict[str, Any] = {"envs": ",".join(names), "policy": policy}
    extra |= {"eval.attempts": attempts} if attempts is not None else {}
    extra |= {"eval.tasks": tasks} if tasks is not None else {}
    return load_config(
        file=file,
        settings=_of_run(Path(policy)) if file is None else None,
        extra=extra,
        assignments=settings,
        is_training=False,
    )


def is_run(path: Path) -> bool:
    """Return whether a policy is named by the folder of a run."""
    return (path / "config.yaml").is_file()


def _of_run(path: Path) -> dict[str, Any] | None:
    """Return how a run's own evaluations draw and bound episodes; None if it is no run."""
    from agentgym.runs.folder import read_config

    if not is_run(path):
        return None
    stored = read_config(path)
    sampling = asdict(stored.eval.sampling())
    found: dict[str, Any] = {f"eval.{name}": sampling[name] for name in _SAMPLING}
    found |= {f"limits.{name}": value for name, value in stored.limits.model_dump().items()}
    return found | {
        "eval.seed": stored.eval.seed,
        "rollout.history": stored.rollout.history.value,
    }


def _unread_settings(settings: Sequence[str]) -> Iterator[Problem]:
    from agentgym.config import Problem

    for setting in settings:
        key = setting.partition("=")[0]
        if key in _ACCEPTED or key.startswith("limits."):
            continue
        text = (
            f"{key!r} is no setting of an evaluation{_INSTEAD.get(key, '')}; accepted are "
            f"{', '.join(_ACCEPTED)}"
        )
        yield Problem(key=key, where="command line", text=text)


def _unread_of_sources(names: Sequence[str]) -> Iterator[Problem]:
    from agentgym.config import Problem
    from agentgym.config.command_line import parse_sources

    for source in parse_sources(",".join(names)):
        name = source["name"]
        if "split" in source:
            fix = f"all sources are evaluated on one split: eval.split={source['split']}"
            yield Problem(key="envs", text=f"{name}: 'split' has no effect here; {fix}")
        if "weight" in source:
            fix = "leave it out: tasks come from all sources in equal parts"
            yield Problem(key="envs", text=f"{name}: 'weight' has no effect here; {fix}")
