from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("textarena")

from agentgym import registry
from agentgym.checks.env import check_env
from agentgym.envs.adapters.foreign import PrivateRandomness
from agentgym.envs.adapters.textarena_env import ENV_ID
from agentgym.errors import EnvError


def _env(**kwargs: Any) -> Any:
    return registry.make(ENV_ID, **kwargs)


def test_game_is_shown_and_answered_without_repeating_itself() -> None:
    env = _env()
    first, _ = env.reset(seed=3)
    assert "guess the number between 1 and 50 within 10 turns" in first
    observation, reward, terminated, _, _ = env.step("[1]")
    assert observation == "The target number is higher."
    assert (reward, terminated) == (0.0, False)


def test_expert_wins_by_the_package_own_score() -> None:
    for seed in range(20):
        env = _env()
        env.reset(seed=seed)
        for _ in range(10):
            _, reward, terminated, _, info = env.step(env.expert())
            if terminated:
                assert (reward, info["rewards"], info["outcome"]) == (1.0, {"reward": 1.0}, 1.0)
                break
        else:
            raise AssertionError(f"seed {seed} was not solved in ten guesses")


def test_part_of_the_score_is_no_success() -> None:
    # Two invalid moves lose the game; the package scores how near the last guess was.
    for rule, expected in (("solved", 0.0), ("return", None)):
        env = _env(outcome=rule)
        env.reset(seed=3)
        env.step("[25]")
        env.step("x")
        observation, reward, terminated, _, info = env.step("x")
        assert terminated
        assert "Invalid Move" in observation
        assert 0 < reward < 1
        assert info["outcome"] == (reward if expected is None else expected)


def test_game_depends_on_its_seed_alone_j4() -> None:
    def play(seed: int, disturb: bool) -> list[str]:
        env = _env(game="2048-v0-easy")
        seen = [env.reset(seed=seed)[0]]
        for move in ("[up]", "[left]", "[down]", "[right]", "[up]", "[left]"):
            if disturb:
                random.random()
                other = _env(game="2048-v0-easy")
                other.reset(seed=seed + 1)
                other.step("[left]")
            seen.append(env.step(move)[0])
        return seen

    state = random.getstate()
    assert play(5, disturb=False) == play(5, disturb=False)
    assert random.getstate() == state  # nobody else's generator was touched
    assert play(5, disturb=True) == play(5, disturb=False)
    assert play(5, disturb=False) != play(6, disturb=False)


@pytest.mark.parametrize(
    "game",
    [
        "2048-v0-easy",
        "Bandit-v0",
        "Blackjack-v0",
        "FifteenPuzzle-v0",
        "FrozenLake-v0",
        "LightsOut-v0",
        "Mastermind-v0",
        "Minesweeper-v0",
        "RushHour-v0",
        "Sokoban-v0",
        "Sudoku-v0",
        "TowerOfHanoi-v0",
    ],
)
def test_single_player_games_are_played(game: str) -> None:
    env = _env(game=game, max_turns=8)
    first, _ = env.reset(seed=1)
    assert first
    for _ in range(8):
        observation, _, terminated, _, info = env.step("[1 1]")
        assert isinstance(observation, str)
        if terminated:
            assert 0 <= info["outcome"] <= 1
            break


def test_contract_holds() -> None:
    check_env(ENV_ID, raise_errors=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"game": "GuessTheNumbr-v0"}, r"no game 'GuessTheNumbr-v0' \(did you mean 'GuessTheN"),
        ({"outcome": "success"}, "'outcome' must be 'solved' or 'return'"),
        ({"outcome": "luck"}, "'outcome' must be one of"),
    ],
)
def test_arguments_are_checked_first(kwargs: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        _env(**kwargs)


def test_score_that_is_no_number_is_a_fault_of_the_game() -> None:
    # In textarena 0.7.4 this game gives the reason of a lost game where the score belongs.
    env = _env(game="Countdown-v0")
    env.reset(seed=1)
    env.step("x")
    with pytest.raises(EnvError, match="Countdown-v0 gave no number as its score"):
        env.step("x")


def test_game_for_two_is_refused() -> None:
    env = _env(game="TicTacToe-v0")
    with pytest.raises(EnvError, match="TicTacToe-v0 is not a game for one player"):
        env.reset(seed=0)


def test_randomness_needs_a_seed_first() -> None:
    with pytest.raises(EnvError, match="no seed yet"), PrivateRandomness()():
        pass
