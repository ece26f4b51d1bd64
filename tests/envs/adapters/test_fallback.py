"""An id that only Gymnasium knows works wherever an id of ours does."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.env.suites import load_suite
from agentgym.envs.adapters.gymnasium_text import GymnasiumTextEnv
from agentgym.errors import EnvError, RegistryError
from agentgym.records.limits import Limits

ENV_ID = "some-package/Parrot-v0"


class Parrot(gymnasium.Env[str, str]):
    """Say the word; knows three."""

    observation_space = action_space = spaces.Text(max_length=9)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012 - Gymnasium's type

    def __init__(self, *, volume: int = 1, render_mode: str | None = None) -> None:
        self.volume, self.render_mode = volume, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.word = str(self.np_random.integers(10**6))
        return self.word, {}

    def step(self, action: str) -> Any:
        return "bye", float(action == self.word), True, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((2, 2, 3), 9, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register(
        id=ENV_ID, entry_point=lambda **kwargs: Parrot(**kwargs), max_episode_steps=6
    )
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


def _play(env: Any) -> list[Any]:
    observation, info = env.reset(seed=4)
    step = env.step(observation)
    return [observation, info["task"], *step[:4], step[4]["outcome"]]


@pytest.mark.parametrize("kwargs", [{}, {"outcome": "solved", "volume": 3}])
def test_spec_of_an_adapted_env_makes_an_equal_one(kwargs: dict[str, Any]) -> None:
    env = registry.make(ENV_ID, **kwargs)
    assert env.spec.kwargs == kwargs
    assert env.spec.max_episode_steps == 6
    again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    inner: Any = again.unwrapped
    assert isinstance(inner, GymnasiumTextEnv)
    assert (inner.env_id, inner.limits, inner._rule) == (ENV_ID, env.limits, env._rule)
    foreign: Any = inner._foreign.unwrapped
    assert foreign.volume == kwargs.get("volume", 1)
    assert _play(again) == _play(env)
    # Gymnasium's own entry still makes the foreign environment.
    assert isinstance(gymnasium.make(ENV_ID).unwrapped, Parrot)


@pytest.mark.parametrize(("asked", "steps"), [(4, 4), (-1, None)])
def test_spec_of_an_adapted_env_has_the_bound_that_was_asked_for(
    asked: int, steps: int | None
) -> None:
    env = registry.make(ENV_ID, max_episode_steps=asked)
    assert env.spec.max_episode_steps == steps
    again: Any = gymnasium.make(env.spec).unwrapped
    assert again.limits == env.limits


def test_gymnasiums_own_check_passes_and_renders() -> None:
    env = registry.make(ENV_ID, outcome="solved")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    assert [str(w.message) for w in caught if "render" in str(w.message)] == []
    assert env.metadata["render_modes"] == ["ansi", "rgb_array"]
    shown = registry.make(ENV_ID, render_mode="ansi")
    first, _ = shown.reset(seed=4)
    assert shown.render() == first
    picture = registry.make(ENV_ID, render_mode="rgb_array")
    picture.reset(seed=4)
    assert int(picture.render().sum()) == 9 * 12


def test_spec_with_a_module_before_the_id_is_made_in_another_process(
    tmp_path: Path, write_echo: Callable[[Path, str], None]
) -> None:
    write_echo(tmp_path / "aviary_of_tests.py", "other-name/Echo-v0")
    stored = tmp_path / "spec"
    make = "pickle.dump(agentgym.make('aviary_of_tests:other-name/Echo-v0').spec, open(path, 'wb'))"
    remake = "print(gymnasium.make(pickle.load(open(path, 'rb'))).unwrapped.env_id)"
    head = f"import sys, pickle, gymnasium, agentgym; sys.path.insert(0, {str(tmp_path)!r}); "
    for line in (make, remake):
        done = subprocess.run(
            [sys.executable, "-c", f"{head}path = {str(stored)!r}; {line}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "other-name/Echo-v0\n"


class Ours(TextEnv):
    limits = Limits(max_turns=16)

    def start(self, task: object, rng: object) -> str:
        return "go"

    def respond(self, action: str) -> str:
        return "on"


def test_env_of_ours_that_others_registered_keeps_its_bound_through_its_spec_j7() -> None:
    env_id = "some-package/Ours-v0"
    gymnasium.register(id=env_id, entry_point=lambda **kwargs: Ours(**kwargs), max_episode_steps=4)
    try:
        env = registry.make(env_id)
        again: Any = gymnasium.make(env.spec).unwrapped
        assert type(env) is type(again) is Ours
        assert env.limits.max_turns == again.limits.max_turns == 4
        assert env.env_id == again.env_id == env_id
    finally:
        registry.unregister_env(env_id)
        del gymnasium.registry[env_id]
