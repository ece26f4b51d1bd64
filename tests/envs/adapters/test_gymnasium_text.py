from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from agentgym.checks.env import check_env
from agentgym.env import TextEnv
from agentgym.envs.adapters.gymnasium_text import GymnasiumTextEnv, is_known, make_text_env
from agentgym.errors import EnvError, RegistryError
from agentgym.records import ErrorKind


class Countdown(gymnasium.Env[str, str]):
    """Say the number after the one that is shown, three times; each right one gives a third."""

    def __init__(self, *, steps: int = 3, as_dict: bool = False) -> None:
        text = spaces.Text(max_length=20)
        self.observation_space: Any = (
            spaces.Dict({"text": text, "turn": spaces.Discrete(9)}) if as_dict else text
        )
        self.action_space = spaces.Text(max_length=3)
        self.steps, self.as_dict = steps, as_dict

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = self.steps
        return self._show(), {}

    def step(self, action: str) -> Any:
        reward = 1 / 3 if action == str(self.number + 1) else 0.0
        self.left -= 1
        return self._show(), reward, self.left == 0, False, {"success": reward > 0}

    def _show(self) -> Any:
        self.number = int(self.np_random.integers(100))
        return {"text": str(self.number), "turn": self.left} if self.as_dict else str(self.number)


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register(
        id="third-party/Countdown-v0",
        entry_point=lambda **kwargs: Countdown(**kwargs),
        max_episode_steps=9,
    )
    yield "third-party/Countdown-v0"
    gymnasium.registry.pop("third-party/Countdown-v0")


@pytest.mark.parametrize("as_dict", [False, True])
def test_foreign_env_is_played_through_the_contract(registered: str, as_dict: bool) -> None:
    env = make_text_env(registered, as_dict=as_dict)
    observation, info = env.reset(seed=5)
    assert info["task"].env_id == registered
    ends = []
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(f" {int(observation) + 1}\n")
        ends.append((reward, terminated, truncated))
    third = 1 / 3  # as it came: no outcome is added
    assert ends == [(third, False, False), (third, False, False), (third, True, False)]
    assert info["rewards"] == {"reward": 1 / 3}
    assert info["outcome"] == pytest.approx(1.0)
    assert env.limits.max_turns == 9


# Right, wrong, wrong: return 1/3; not solved; the last step's info says no success.
# Wrong, right, right: return 2/3; not solved; success.
@pytest.mark.parametrize(
    ("rule", "right", "outcome"),
    [
        ("return", (1, 0, 0), 1 / 3),
        ("return", (0, 1, 1), 2 / 3),
        ("solved", (0, 1, 1), 0.0),
        ("solved", (1, 1, 1), 1.0),
        ("success", (1, 0, 0), 0.0),
        ("success", (0, 1, 1), 1.0),
    ],
)
def test_outcome_follows_the_rule(
    registered: str, rule: str, right: tuple[int, ...], outcome: float
) -> None:
    env = make_text_env(registered, outcome=rule)
    observation, _ = env.reset(seed=1)
    info: dict[str, Any] = {}
    for is_right in right:
        observation, _, _, _, info = env.step(str(int(observation) + 1) if is_right else "no")
    assert info["outcome"] == pytest.approx(outcome)
    env.reset(seed=1)
    assert env.outcome() == 0.0  # J1: nothing of the last episode is left


def test_action_outside_the_space_is_the_agents_mistake_and_is_not_passed_on(
    registered: str,
) -> None:
    env = make_text_env(registered)
    observation, _ = env.reset(seed=1)
    answer, reward, terminated, _, info = env.step("far too long for it")
    assert answer.startswith("This is not an action of Text(")
    assert (reward, terminated, info["error_kind"]) == (0.0, False, ErrorKind.FORMAT)
    assert env.step(str(int(observation) + 1))[1] == 1 / 3  # still the first number


def test_truncation_stays_truncation(registered: str) -> None:
    env = make_text_env(registered, steps=99, max_episode_steps=2)
    env.reset(seed=1)
    env.step("no")
    _, _, terminated, truncated, info = env.step("no")
    assert (terminated, truncated, info["outcome"]) == (False, True, 0.0)


def test_contract_holds_for_a_foreign_env(registered: str) -> None:
    check_env(lambda: make_text_env(registered, outcome="solved"), raise_errors=True)


def test_package_of_the_id_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_tests.py").write_text(
        textwrap.dedent("""
            import gymnasium
            from gymnasium import spaces

            class Echo(gymnasium.Env):
                observation_space = action_space = spaces.Text(max_length=9)
                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    return "go", {}
                def step(self, action):
                    return action, 1.0, True, False, {}

            gymnasium.register(id="shop-of-tests/Echo-v0", entry_point=Echo)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        env = make_text_env("shop-of-tests/Echo-v0")
        env.reset(seed=0)
        assert env.step("go")[:3] == ("go", 1.0, True)
        assert is_known("shop_of_tests:shop-of-tests/Echo-v0")
    finally:
        gymnasium.registry.pop("shop-of-tests/Echo-v0", None)
        sys.modules.pop("shop_of_tests", None)


def test_our_own_envs_come_as_they_are() -> None:
    assert type(make_text_env("games/guess-number-v0")).__name__ == "GuessNumberEnv"


@pytest.mark.parametrize("env_id", ["nobody-has-this/Env-v0", "CartPoll-v1", "no.such.module:E-v0"])
def test_id_that_nobody_knows_is_refused(env_id: str) -> None:
    assert not is_known(env_id)
    with pytest.raises(RegistryError, match="Gymnasium does not know it"):
        make_text_env(env_id)


def test_env_without_text_is_refused() -> None:
    with pytest.raises(EnvError, match=r"CartPole-v1: observations must be text"):
        make_text_env("CartPole-v1")

    class Half(Countdown):
        def __init__(self) -> None:
            super().__init__()
            self.action_space: Any = spaces.Discrete(2)

    with pytest.raises(EnvError, match=r"Half: actions must be text \(got the space Discrete"):
        GymnasiumTextEnv(Half())


def test_unknown_rule_is_refused(registered: str) -> None:
    with pytest.raises(EnvError, match=r"'outcome' must be one of .*\(got 'best'\)"):
        make_text_env(registered, outcome="best")


def test_close_closes_the_foreign_env_and_may_be_repeated() -> None:
    closed: list[int] = []

    class Closing(Countdown):
        def close(self) -> None:
            closed.append(1)

    env: TextEnv = GymnasiumTextEnv(Closing())
    env.close()
    env.close()
    assert len(closed) == 2
