from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from agentgym.checks.env import check_env
from agentgym.env.contract import Reply, TextEnv
from agentgym.envs.adapters.gymnasium_text import GymnasiumTextEnv, is_known, make_text_env
from agentgym.errors import EnvError, RegistryError
from agentgym.records import ErrorKind
from agentgym.records.limits import Limits


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


def test_package_of_the_id_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_echo: Callable[[Path, str], None]
) -> None:
    write_echo(tmp_path / "shop_of_tests.py", "shop-of-tests/Echo-v0")
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
    with pytest.raises(EnvError, match=r"^observations must be text \(got the space Box"):
        make_text_env("CartPole-v1")

    class Half(Countdown):
        def __init__(self) -> None:
            super().__init__()
            self.action_space: Any = spaces.Discrete(2)

    with pytest.raises(EnvError, match=r"^actions must be text \(got the space Discrete"):
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


class Tenth(gymnasium.Env[str, str]):
    """Gives a tenth for each of ten steps, and the last one more or less as it is told."""

    observation_space = action_space = spaces.Text(max_length=3)

    def __init__(self, *, last: float = 0.1) -> None:
        self.last = last

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = 10
        return "go", {}

    def step(self, action: str) -> Any:
        self.left -= 1
        return "go", 0.1 if self.left else self.last, self.left == 0, False, {}


# 0.1 ten times, added one by one, is 0.9999999999999999.
@pytest.mark.parametrize(
    ("rule", "last", "outcome"),
    [
        ("solved", 0.1, 1.0),
        ("return", 0.1, 1.0),
        ("solved", 0.1 - 1e-10, 1.0),
        ("solved", 0.1 - 1e-8, 0.0),
        ("solved", 0.0, 0.0),
        ("return", 0.0, 0.9),
    ],
)
def test_ten_tenths_are_one(rule: str, last: float, outcome: float) -> None:
    env = GymnasiumTextEnv(Tenth(last=last), outcome=rule)
    for _ in range(2):  # nothing is left of the last episode
        env.reset(seed=1)
        steps = [env.step("go") for _ in range(10)]
        assert [step[2] for step in steps] == [False] * 9 + [True]
        assert steps[-1][4]["outcome"] == outcome


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_reward_that_is_no_finite_number_is_a_fault_of_the_env(reward: float) -> None:
    env = GymnasiumTextEnv(Tenth(last=reward))
    env.reset(seed=1)
    for _ in range(9):
        env.step("go")
    with pytest.raises(EnvError, match="a reward must be a finite number"):
        env.step("go")


class Ours(TextEnv):
    limits = Limits(max_turns=16, max_tokens=77)

    def start(self, task: object, rng: object) -> str:
        return "go"

    def respond(self, action: str) -> Reply | str:
        return "on"


# Never raised: the env's own bound is 16.
@pytest.mark.parametrize(
    ("registered_steps", "kwargs", "turns"),
    [
        (4, {}, 4),
        (40, {}, 16),
        (None, {}, 16),
        (9, {"max_episode_steps": 4}, 4),
        (9, {"max_episode_steps": -1}, 16),
    ],
)
def test_max_episode_steps_bounds_the_turns_of_our_own_j7(
    registered_steps: int | None, kwargs: dict[str, int], turns: int
) -> None:
    env_id = "third-party/Ours-v0"
    gymnasium.register(
        id=env_id, entry_point=lambda **kwargs: Ours(**kwargs), max_episode_steps=registered_steps
    )
    try:
        env = make_text_env(env_id, **kwargs)
        assert type(env) is Ours
        assert env.limits == Limits(max_turns=turns, max_tokens=77)
        assert Ours.limits.max_turns == 16  # of this instance alone
        with pytest.raises(EnvError, match=r"'outcome' is for .*\(got 'solved'\): Ours says"):
            make_text_env(env_id, outcome="solved")
    finally:
        gymnasium.registry.pop(env_id)


def test_max_episode_steps_bounds_the_limits_that_a_foreign_env_declares() -> None:
    env_id = "third-party/Declares-v0"

    class Declares(Tenth):
        limits = Limits(max_turns=8, max_tokens=55)

    gymnasium.register(
        id=env_id, entry_point=lambda **kwargs: Declares(**kwargs), max_episode_steps=3
    )
    try:
        assert make_text_env(env_id).limits == Limits(max_turns=3, max_tokens=55)
    finally:
        gymnasium.registry.pop(env_id)


BROKEN = {
    "boom_of_tests": "raise RuntimeError('boom\\n  twice')",
    "lacks_of_tests": "import package_that_is_not_there",
    "late_of_tests": "import gymnasium; gymnasium.register(id='late-of-tests/X-v0', "
    "entry_point='late_of_tests.nothing:Env')",
}


@pytest.mark.parametrize(
    ("env_id", "module", "reason"),
    [
        ("boom-of-tests/X-v0", "boom_of_tests", "RuntimeError: boom twice"),
        (
            "lacks_of_tests:X-v0",
            "lacks_of_tests",
            "ModuleNotFoundError: No module named 'package_that_is_not_there'",
        ),
        ("json.nosub:Env", "json.nosub", "ModuleNotFoundError: No module named 'json.nosub'"),
        ("late-of-tests/X-v0", "late_of_tests.nothing", "ModuleNotFoundError: No module named .*"),
    ],
)
def test_import_that_fails_names_the_id_the_module_and_the_reason(
    env_id: str, module: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(
            RegistryError, match=rf"^{env_id}: cannot import '{module}' \({reason}\)$"
        ):
            make_text_env(env_id)
    finally:
        gymnasium.registry.pop("late-of-tests/X-v0", None)
        sys.modules.pop("late_of_tests", None)


@pytest.mark.parametrize("env_id", [".x:Env-v0", ":Env-v0", "/Env-v0", "__main__:Nobodys-v0"])
def test_odd_id_is_unknown_rather_than_an_internal_failure(env_id: str) -> None:
    assert not is_known(env_id)


def test_refusal_of_gymnasium_itself_is_an_env_error() -> None:
    env_id = "third-party/Refuses-v0"

    def refuse(**kwargs: Any) -> gymnasium.Env[str, str]:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    gymnasium.register(id=env_id, entry_point=refuse)
    try:
        with pytest.raises(EnvError, match=r"^Box2D is not installed$"):
            make_text_env(env_id)
    finally:
        gymnasium.registry.pop(env_id)
