"""An id that only Gymnasium knows works wherever an id of ours does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from agentgym import registry
from agentgym.envs.adapters.gymnasium_text import GymnasiumTextEnv
from agentgym.errors import EnvError, RegistryError
from agentgym.suites import load_suite

ENV_ID = "some-package/Parrot-v0"


class Parrot(gymnasium.Env[str, str]):
    """Say the word; knows three."""

    observation_space = action_space = spaces.Text(max_length=9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.word = str(self.np_random.integers(10**6))
        return self.word, {}

    def step(self, action: str) -> Any:
        return "bye", float(action == self.word), True, False, {}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register(id=ENV_ID, entry_point=lambda **kwargs: Parrot(**kwargs))
    yield
    registry.unregister_env(ENV_ID)
    del gymnasium.registry[ENV_ID]


def test_make_falls_back_to_gymnasium() -> None:
    env = registry.make(ENV_ID, outcome="solved")
    assert isinstance(env, GymnasiumTextEnv)
    assert env.spec is not None
    assert env.spec.id == env.env_id == ENV_ID
    observation, info = env.reset(seed=4)
    assert info["task"].env_id == ENV_ID
    _, reward, terminated, _, info = env.step(observation)
    assert (reward, terminated, info["outcome"]) == (1.0, True, 1.0)


def test_suite_of_a_foreign_id_has_disjoint_splits_m6() -> None:
    suite = load_suite(ENV_ID)
    train, held_out = (suite.tasks(split, limit=40) for split in ("train", "held_out"))
    assert {t.content_hash for t in train}.isdisjoint({t.content_hash for t in held_out})
    env = registry.make(ENV_ID)
    first, _ = env.reset(seed=1, options={"task": held_out[0]})
    assert first == env.reset(seed=2, options={"task": held_out[0]})[0]  # the task is the seed


def test_unknown_id_is_still_unknown() -> None:
    assert not registry.is_known("nobody-has-this/Env-v0")
    with pytest.raises(RegistryError, match="unknown environment 'nobody-has-this/Env-v0'"):
        registry.make("nobody-has-this/Env-v0")


def test_foreign_env_without_text_says_so() -> None:
    with pytest.raises(EnvError, match="observations must be text"):
        registry.make("CartPole-v1")
    registry.unregister_env("CartPole-v1")
    assert "CartPole-v1" in gymnasium.registry  # it was not ours to take away
    assert "CartPole-v1" not in registry.list_envs()
