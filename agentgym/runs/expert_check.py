"""Whether a policy can begin to learn: from a scripted expert and guesses, or by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agentgym.config.schema import RunConfig
from agentgym.config.validation import Problem
from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.env.suites import load_suite
from agentgym.errors import AgentGymError
from agentgym.records import Json, Task
from agentgym.runs.policies import PolicyKind, read_policy
from agentgym.tool_formats.plain import PlainText

_READERS = "a policy that can read already: smollm2 or a model folder"


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
            is_blank = read_policy(config.policy).kind is PolicyKind.TINY
            fix = "train without one (warmstart.steps=0), or write an expert()"
            if is_blank and config.warmstart.path is None and _form_of(task) is not None:
                fix = f"write an expert(), or take {_READERS}"
            text = (
                f"{source.name} has no expert that a warm start could learn from ({reason}): {fix}"
            )
            yield Problem(key="warmstart.steps", text=text)
        elif config.warmstart.guess_share > 0 and not _has_guess(task):
            text = (
                f"{source.name} has no guess(rng), which 'warmstart.guess_share' above 0 needs "
                f"(got {config.warmstart.guess_share!r})"
            )
            yield Problem(key="warmstart.guess_share", text=text)


def blank_policy_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem for each source that a policy which knows nothing could never act in.

    Without a warm start a new model writes tokens at random. Where an action is any text it may be
    rewarded by chance; a call or an answer in a form that it has never seen it does not hit.
    """
    if read_policy(config.policy).kind is not PolicyKind.TINY:
        return
    if config.warmstart.steps > 0 or config.warmstart.path is not None:
        return
    for source in config.envs:
        kwargs = cast("Mapping[str, Json]", source.kwargs)
        task = load_suite(source.name, env_kwargs=kwargs).task(source.split, 0)
        form = _form_of(task)
        if form is None:
            continue
        has_expert = lack_of_expert(task) is None
        fix = "leave 'warmstart.steps' at its default" if has_expert else "write an expert()"
        text = (
            f"{source.name} cannot be learned by a new {config.policy!r} model without a warm "
            f"start: it knows nothing, and an action there has a form ({form}) that it never hits; "
            f"{fix}, or take {_READERS}"
        )
        yield Problem(key="policy", text=text)


def _form_of(task: Task) -> str | None:
    """Return the name of the form that actions of a task must have; None if any text is one."""
    env: Any = registry.make(task.env_id, **task.env_kwargs).unwrapped
    try:
        protocol = getattr(env, "protocol", None)
        return None if protocol is None or protocol.id == PlainText().id else str(protocol.id)
    finally:
        env.close()


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
