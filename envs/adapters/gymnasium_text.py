"""Any Gymnasium environment whose observations and actions are text, behind our contract.

`make_text_env("some-package/Env-v0")` is what `agentgym.make` falls back to for an id which it does
not know and Gymnasium does.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import random
import sys
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
from gymnasium import spaces

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.envs.adapters.foreign import ForeignEnv, OutcomeRule
from agentgym.errors import EnvError, RegistryError, nearest
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits

RENDER_MODE = "ansi"
"""Our own mode of rendering, the last observation: a foreign environment need not know it."""

TEXT_KEYS = ("text", "observation", "obs", "prompt")
"""Entries of an observation that is a dictionary, in the order in which they are looked for."""


class GymnasiumTextEnv(ForeignEnv):
    """A foreign environment. Its tasks are seeds; its rewards are passed on as they are.

    What it declares of ours (`system_prompt`, `limits`, `null_score`) is taken over. An action that
    is not in its action space is the agent's mistake and is not passed on.

    Args:
        env: The environment, or its id for `gymnasium.make`.
        outcome: Rule by which the outcome follows: `return` (sum of the rewards, within 0 and 1),
            `solved` (1 if the sum reaches 1), or `success` (what the last step's info says).
        render_mode: `ansi` for the last observation, or a mode of the foreign environment, if it
            was made with that one.
        env_kwargs: Further arguments for `gymnasium.make`.

    Raises:
        EnvError: If its observations or actions are not text.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | str,
        *,
        outcome: str = OutcomeRule.RETURN,
        render_mode: str | None = None,
        **env_kwargs: Any,
    ) -> None:
        super().__init__(outcome=outcome, render_mode=render_mode)
        if isinstance(env, str):
            env = _make(env, render_mode, env_kwargs)
        self._foreign = env
        self._name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._key = _text_key(env.observation_space)
        if not _is_text(env.action_space):
            raise EnvError(f"actions must be text (got the space {env.action_space!r})")
        inner = env.unwrapped
        modes = [mode for mode in env.metadata.get("render_modes") or () if mode != RENDER_MODE]
        self.metadata = {**TextEnv.metadata, **env.metadata, "render_modes": [RENDER_MODE, *modes]}
        self.system_prompt = str(getattr(inner, "system_prompt", ""))
        self.limits = _limits(env)
        self.null_score = float(getattr(inner, "null_score", 0.0))

    @property
    def foreign(self) -> gymnasium.Env[Any, Any]:
        """The environment behind this one."""
        return self._foreign

    @property
    def env_id(self) -> str:
        """Id of the foreign environment."""
        return self.spec.id if self.spec is not None else self._name

    def start(self, task: Task, rng: random.Random) -> str:
        """Reset it with the task's seed."""
        self.begin()
        observation, _ = self._foreign.reset(seed=int(str(task.payload["seed"])))
        return self._text(observation)

    def respond(self, action: Action) -> Reply:
        """Pass the action on."""
        text = action.spoken
        if not self._foreign.action_space.contains(text):
            text = text.strip()
        if not self._foreign.action_space.contains(text):
            return Reply(
                observation=f"This is not an action of {self._foreign.action_space!r}.",
                error_kind=ErrorKind.FORMAT,
            )
        observation, reward, terminated, truncated, info = self._foreign.step(text)
        self.count(float(reward), info)
        is_over = terminated or truncated
        return Reply(
            observation=self._text(observation),
            outcome=self.outcome() if is_over else None,
            rewards={"reward": float(reward)},
            is_truncated=bool(truncated and not terminated),
        )

    def render(self) -> Any:
        """Return the last observation, or in a mode of its own what the foreign one draws."""
        if self.render_mode in (None, RENDER_MODE):
            return super().render()
        return self._foreign.render()

    def close(self) -> None:
        """Close the foreign environment too."""
        super().close()
        self._foreign.close()

    def _text(self, observation: Any) -> str:
        text = observation if self._key is None else observation[self._key]
        return str(text)


def is_known(env_id: str) -> bool:
    """Return whether Gymnasium knows an id.

    Args:
        env_id: As for `gymnasium.make`; of `module:id` the module is imported first. Of an unknown
            `some-package/Env-v0` the package `some_package` is imported, which may register it.

    Raises:
        RegistryError: If there is such a module or package, and importing it fails.
    """
    module, _, name = env_id.rpartition(":")
    if not module and name not in gymnasium.registry and "/" in name:
        module = name.split("/", 1)[0].replace("-", "_")
    if _is_installed(module):
        _import(module, env_id)
    return name in gymnasium.registry


def make_text_env(env_id: str, **kwargs: Any) -> TextEnv:
    """Return an environment that Gymnasium knows, behind our contract.

    One of ours, which somebody registered with Gymnasium, comes as it is; a lower
    `max_episode_steps` bounds its turns.

    Args:
        env_id: As for `is_known`.
        kwargs: `outcome`, `render_mode`, and arguments for `gymnasium.make`.

    Raises:
        RegistryError: If Gymnasium does not know it, or its module cannot be imported.
        EnvError: If its observations or actions are not text, or an `outcome` is given for one of
            ours, which has its own.
    """
    if not is_known(env_id):
        name = env_id.rpartition(":")[2]
        raise RegistryError(
            f"unknown environment {env_id!r}{nearest(name, gymnasium.registry)}: "
            "Gymnasium does not know it"
        )
    outcome = kwargs.pop("outcome", None)
    render_mode = kwargs.pop("render_mode", None)
    env = _make(env_id, render_mode, kwargs)
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        rule = OutcomeRule.RETURN if outcome is None else outcome
        return GymnasiumTextEnv(env, outcome=rule, render_mode=render_mode)
    if outcome is not None:
        env.close()
        raise EnvError(
            f"'outcome' is for environments that give rewards alone (got {outcome!r}): "
            f"{type(inner).__name__} says itself how far a task is solved"
        )
    inner.limits = _limits(env)
    inner.render_mode = render_mode
    return inner


def _make(
    env_id: str, render_mode: str | None, kwargs: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    """Return what `gymnasium.make` does; our own mode of rendering is none of its business."""
    name = env_id.rpartition(":")[2]
    target = gymnasium.registry[name].entry_point if name in gymnasium.registry else None
    if isinstance(target, str):
        _import(target.partition(":")[0], env_id)
    mode = {} if render_mode in (None, RENDER_MODE) else {"render_mode": render_mode}
    try:
        # Our own checks stand in for the passive checker's warnings.
        return gymnasium.make(name, disable_env_checker=True, **mode, **kwargs)
    except gymnasium.error.Error as error:
        raise EnvError(_one_line(error)) from error


def _is_installed(module: str) -> bool:
    """Return whether there is a module to import, or the package that it would be in."""
    top = module.split(".", 1)[0]
    # What is loaded may have no spec to be found, such as `__main__`.
    return bool(top) and (top in sys.modules or importlib.util.find_spec(top) is not None)


def _import(module: str, env_id: str) -> None:
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except Exception as error:  # another's module may raise anything
        reason = _one_line(error)
        raise RegistryError(
            f"{env_id}: cannot import {module!r} ({type(error).__name__}: {reason})"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "no reason given"


def _is_text(space: spaces.Space[Any]) -> bool:
    # Any space of strings, whoever wrote it.
    return isinstance(space.sample(), str)


def _text_key(space: spaces.Space[Any]) -> str | None:
    """Return the entry of an observation that is its text; None if it is text itself."""
    if isinstance(space, spaces.Dict):
        entries = cast("Mapping[str, spaces.Space[Any]]", space.spaces)
        texts = [key for key, entry in entries.items() if _is_text(entry)]
        known = [key for key in TEXT_KEYS if key in texts]
        if known or len(texts) == 1:
            return (known or texts)[0]
    elif _is_text(space):
        return None
    raise EnvError(f"observations must be text (got the space {space!r})")


def _limits(env: gymnasium.Env[Any, Any]) -> Limits:
    """Return the bounds that an environment declares, or ours, and no more turns than its
    `max_episode_steps`.
    """
    steps = env.spec.max_episode_steps if env.spec is not None else None
    declared = getattr(env.unwrapped, "limits", None)
    if not isinstance(declared, Limits):
        return Limits() if steps is None else Limits(max_turns=steps)
    if steps is None:
        return declared
    turns = steps if declared.max_turns is None else min(steps, declared.max_turns)
    return dataclasses.replace(declared, max_turns=turns)
