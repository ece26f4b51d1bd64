"""Whether environments have what a warm start learns from: a scripted expert, and guesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agentgym import registry
from agentgym.config.problems import Problem
from agentgym.config.schema import RunConfig
from agentgym.env import TextEnv
from agentgym.errors import AgentGymError
from agentgym.records import Json, Task
from agentgym.suites import load_suite


def demonstration_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem for each source that cannot show what the config's warm start asks for.

    The sources must be in order otherwise: a task is drawn from each of them.
    """
    if config.warmstart.steps == 0:
        return
    for source in config.envs:
        kwargs = cast("Mapping[str, Json]", source.kwargs)
        task = load_suite(source.name, env_kwargs=kwargs).task(source.split, 0)
        reason = lack_of_expert(task)
        if reason is not None:
            text = (
                f"{source.name} has no expert that a warm start could learn from ({reason}): "
                "train without one (warmstart.steps=0), or write an expert()"
            )
            yield Problem(key="warmstart.steps", text=text)
        elif config.warmstart.guess_share > 0 and not _has_guess(task):
            text = (
                f"{source.name} has no guess(rng), which 'warmstart.guess_share' above 0 needs "
                f"(got {config.warmstart.guess_share!r})"
            )
            yield Problem(key="warmstart.guess_share", text=text)


def lack_of_expert(task: Task) -> str | None:
    """Return why nobody scripted an expert for a task; None if somebody has.

    An environment may have experts for some of its tasks or variants alone, so one that has any is
    asked, in an episode of the task. What else is wrong with that shows when the task is played.
    """
    env: Any = registry.make(task.env_id, **task.env_kwargs).unwrapped
    try:
        expert = getattr(cast("type[object]", env.__class__), "expert", None)
        if expert is None:
            return f"{task.env_id} ships no scripted expert"
        if expert is not TextEnv.expert:
            env.reset(seed=0, options={"task": task})
        env.expert()
    except NotImplementedError as error:
        return " ".join(str(error).split()) or f"{task.env_id} ships no scripted expert"
    except (AgentGymError, OSError, TypeError, ValueError):
        return None
    finally:
        env.close()
    return None


def _has_guess(task: Task) -> bool:
    env: Any = registry.make(task.env_id, **task.env_kwargs).unwrapped
    try:
        return hasattr(env, "guess")
    finally:
        env.close()
