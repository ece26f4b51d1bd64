"""Any Gymnasium environment whose observations and actions are text, behind our contract.

`make_text_env("some-package/Env-v0")` is what `agentgym.make` falls back to for an id which it does
not know and Gymnasium does.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
from gymnasium import spaces

from agentgym.env import Action, Reply, TextEnv
from agentgym.envs.adapters.foreign import ForeignEnv, OutcomeRule
from agentgym.errors import EnvError, RegistryError, nearest
from agentgym.limits import Limits
from agentgym.records import ErrorKind, Task

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
            # Our own checks stand in for the passive checker's warnings.
            env = gymnasium.make(env, disable_env_checker=True, **env_kwargs)
        self._foreign = env
        self._name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._key = _text_key(env.observation_space, self._name)
        if not _is_text(env.action_space):
            raise EnvError(
                f"{self._name}: actions must be text (got the space {env.action_space!r})"
            )
        inner = env.unwrapped
        self.system_prompt = str(getattr(inner, "system_prompt", ""))
        self.limits = getattr(inner, "limits", None) or Limits(max_turns=_steps(env))
        self.null_score = float(getattr(inner, "null_score", 0.0))

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
        text = str(action)
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
    """
    module, _, name = env_id.rpartition(":")
    if not module and name not in gymnasium.registry and "/" in name:
        module = name.split("/", 1)[0].replace("-", "_")
    if module and importlib.util.find_spec(module.split(".", 1)[0]) is not None:
        importlib.import_module(module)
    return name in gymnasium.registry


def make_text_env(env_id: str, **kwargs: Any) -> TextEnv:
    """Return an environment that Gymnasium knows, behind our contract.

    Args:
        env_id: As for `is_known`.
        kwargs: `outcome`, and arguments for `gymnasium.make`.

    Raises:
        RegistryError: If Gymnasium does not know it.
        EnvError: If its observations or actions are not text.
    """
    if not is_known(env_id):
        name = env_id.rpartition(":")[2]
        raise RegistryError(
            f"unknown environment {env_id!r}{nearest(name, gymnasium.registry)}: "
            "Gymnasium does not know it"
        )
    outcome = kwargs.pop("outcome", OutcomeRule.RETURN)
    env = gymnasium.make(env_id.rpartition(":")[2], disable_env_checker=True, **kwargs)
    if isinstance(env.unwrapped, TextEnv):
        return env.unwrapped
    return GymnasiumTextEnv(env, outcome=outcome)


def _is_text(space: spaces.Space[Any]) -> bool:
    # Any space of strings, whoever wrote it.
    return isinstance(space.sample(), str)


def _text_key(space: spaces.Space[Any], name: str) -> str | None:
    """Return the entry of an observation that is its text; None if it is text itself."""
    if isinstance(space, spaces.Dict):
        entries = cast("Mapping[str, spaces.Space[Any]]", space.spaces)
        texts = [key for key, entry in entries.items() if _is_text(entry)]
        known = [key for key in TEXT_KEYS if key in texts]
        if known or len(texts) == 1:
            return (known or texts)[0]
    elif _is_text(space):
        return None
    raise EnvError(f"{name}: observations must be text (got the space {space!r})")


def _steps(env: gymnasium.Env[Any, Any]) -> int:
    steps = env.spec.max_episode_steps if env.spec is not None else None
    return steps or Limits().max_turns or 1
