from __future__ import annotations

import random

import pytest

from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.env.suites import load_suite
from agentgym.envs.games import guess_number
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task


def _task(low: int, secret: int, high: int) -> Task:
    payload = {"low": low, "high": high, "secret": secret}
    return Task(id="t", env_id=guess_number.ENV_ID, answers=(str(secret),), payload=payload)


def _env() -> TextEnv:
    return registry.make(guess_number.ENV_ID)


def _outcome(env: TextEnv, task: Task) -> float:
    """Return the outcome of the expert."""
    env.reset(seed=0, options={"task": task})
    while True:
        _, _, terminated, _, info = env.step(env.expert())
        if terminated:
            return info["outcome"]


# Bisection of n numbers leaves at most floor(n / 2): 50, 25, 12, 6, 3, 1 are six guesses.
@pytest.mark.parametrize(
    ("size", "guesses"), [(1, 1), (2, 2), (3, 2), (4, 3), (50, 6), (100, 7), (1000, 10)]
)
def test_optimal_guesses_is_what_bisection_needs_at_worst(size: int, guesses: int) -> None:
    assert guess_number.optimal_guesses(size) == guesses


def test_replies_say_where_the_secret_is() -> None:
    env = _env()
    # 50 numbers, 101 to 150: six guesses.
    first, _ = env.reset(seed=1, options={"task": _task(100, 137, 151)})
    assert first == (
        "Find the hidden whole number. It is greater than 100 and less than 151. 6 guesses left."
    )
    assert env.step("125")[0] == "125: higher. 5 guesses left."
    assert env.step("I say 140.")[0] == "140: lower. 4 guesses left."
    observation, reward, terminated, truncated, info = env.step("137")
    assert (observation, reward, terminated, truncated) == ("137 is right.", 1.0, True, False)
    assert info["outcome"] == 1.0


def test_budget_ends_the_episode_unsolved() -> None:
    env = _env()
    env.reset(seed=1, options={"task": _task(100, 137, 151)})
    replies = [env.step("101") for _ in range(6)]
    assert [reply[2] for reply in replies] == [False] * 5 + [True]
    assert replies[-1][0] == "101: higher. No guess left."
    assert replies[-1][4]["outcome"] == 0.0


@pytest.mark.parametrize("text", ["", "seven", "101 102", "1.5", "１３７", "9" * 5000])
def test_anything_but_one_number_is_a_format_error_and_costs_a_guess(text: str) -> None:
    env = _env()
    env.reset(seed=1, options={"task": _task(100, 137, 151)})
    observation, reward, terminated, _, info = env.step(text)
    assert observation == "Write exactly one whole number. 5 guesses left."
    assert (reward, terminated, info["error_kind"]) == (0.0, False, ErrorKind.FORMAT)


@pytest.mark.parametrize("level", guess_number.LEVELS)
def test_expert_finds_the_extremes_within_the_budget(level: int) -> None:
    # Bisection's worst cases lie anywhere; the ends of the interval are the usual off-by-one.
    size = guess_number.SIZES[level]
    rng = random.Random(level)
    for secret in (501, 500 + size, *(501 + rng.randrange(size) for _ in range(50))):
        env = _env()
        assert _outcome(env, _task(500, secret, 501 + size)) == 1.0


def test_expert_solves_200_held_out_tasks() -> None:
    env = _env()
    for task in load_suite("games/guess-number").tasks("held_out", limit=200):
        assert _outcome(env, task) == 1.0, task.id


def test_reset_forgets_the_last_episode_j1() -> None:
    env = _env()
    env.reset(seed=1, options={"task": _task(100, 137, 151)})
    env.step("101")
    first, _ = env.reset(seed=1, options={"task": _task(100, 137, 151)})
    assert first.endswith("6 guesses left.")
    assert env.expert() == "125"  # (100 + 151) // 2


def test_seeded_reset_repeats_whatever_ran_before_j4() -> None:
    env = _env()
    first, info = env.reset(seed=7)
    random.random()
    env.step("5")
    again, info_again = env.reset(seed=7)
    assert (first, info["task"]) == (again, info_again["task"])
    assert len({env.reset(seed=seed)[1]["task"].id for seed in range(10)}) >= 2


def test_splits_are_disjoint_by_content_m6() -> None:
    train = {guess_number.generate_task(i, levels=(1,)).content_hash for i in range(3000)}
    held_out = {
        guess_number.generate_task(i, split="held_out", levels=(1,)).content_hash
        for i in range(1000)
    }
    assert len(train) > 2500  # of some 34,000 tasks of level 1, few are drawn twice
    assert train.isdisjoint(held_out)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"levels": ()}, "'levels' must be some of"),
        ({"levels": (1, 9)}, r"\(got \(1, 9\)\)"),
        ({"split": "test"}, r"'split' must be one of .* \(got 'test'\)"),
        ({"index": -1}, r"'index' must be >= 0 \(got -1\)"),
    ],
)
def test_generator_refuses_what_it_does_not_know(kwargs: dict, message: str) -> None:
    arguments = {"index": 0, **kwargs}
    with pytest.raises(EnvError, match=message):
        guess_number.generate_task(arguments.pop("index"), **arguments)


# Distinct guesses without feedback: 6/50 = 0.12, 7/100 = 0.07; their mean is 0.095.
@pytest.mark.parametrize(("levels", "score"), [((1,), 0.12), ((2,), 0.07), ((1, 2), 0.095)])
def test_null_score_is_the_chance_of_distinct_guesses(levels: tuple, score: float) -> None:
    assert registry.make(guess_number.ENV_ID, levels=levels).null_score == score
