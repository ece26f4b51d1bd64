from __future__ import annotations

import importlib
import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("textarena")

from agentgym.checks.env import check_env
from agentgym.env import registry
from agentgym.envs.adapters.foreign import PrivateRandomness
from agentgym.envs.adapters.textarena_env import ENV_ID
from agentgym.errors import EnvError
from agentgym.records import ErrorKind


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
        ({"game": 5}, r"'game' must be the id of a game of textarena \(got 5\)"),
        ({"max_turns": "abc"}, r"'max_turns' must be an integer in \[1, 10000\] \(got 'abc'\)"),
        ({"max_turns": 0}, r"'max_turns' must be an integer in \[1, 10000\] \(got 0\)"),
        ({"max_turns": True}, r"'max_turns' must be an integer in .* \(got True\)"),
    ],
)
def test_arguments_are_checked_first(kwargs: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        _env(**kwargs)


# In textarena 0.7.4 these games give the sentence as the score of an invalid move, and the score as
# its reason. After no valid move: no letter of a Cryptarithm is mapped (0), and Slitherlink's board
# satisfies its clues "0" alone; Countdown's score is 1 - distance / 1000 of the nearest number.
@pytest.mark.parametrize(
    ("game", "reason"),
    [
        ("Countdown-v0", "Invalid action format. Use `[i j op]`"),
        ("Cryptarithm-v0", "Bad action format. Use `[A 5]`."),
        ("Slitherlink-v0", "Bad action format. Use [h row col] or [v row col]."),
    ],
)
@pytest.mark.parametrize("rule", ["solved", "return"])
def test_two_malformed_moves_are_the_agents_loss(game: str, reason: str, rule: str) -> None:
    env = _env(game=game, outcome=rule)
    env.reset(seed=1)
    assert env.step("x")[2] is False
    observation, reward, terminated, truncated, info = env.step("x")
    assert (terminated, truncated) == (True, False)
    assert f"Invalid Move: {reason}" in observation
    assert info["error_kind"] is ErrorKind.FORMAT
    assert 0 <= reward < 1
    assert info["outcome"] == (0.0 if rule == "solved" else reward)
    if game == "Cryptarithm-v0":
        assert reward == 0.0


class _Ends:
    """A game that ends at the first move as it is told."""

    def __init__(self, score: object, facts: dict[str, object]) -> None:
        self.score, self.facts = score, facts
        self.state = SimpleNamespace(current_player_id=0)

    def reset(self, *, num_players: int, seed: int) -> None:
        assert num_players == 1

    def step(self, action: str) -> tuple[bool, dict]:
        return True, {}

    def close(self) -> tuple[dict, dict]:
        return {0: self.score}, {0: self.facts}

    def get_observation(self) -> tuple[int, list]:
        return 0, []


@pytest.mark.parametrize(
    ("score", "facts", "reward", "outcome", "kind", "observation"),
    [
        (1.0, {"reason": "You won."}, 1.0, 1.0, None, "You won."),
        # All clues of a Slitherlink satisfied, no loop, then nonsense: a full score is not solved.
        ("bad", {"reason": "Invalid Move: 1.0", "invalid_move": True}, 1.0, 0.0, ErrorKind.FORMAT,
         "Invalid Move: bad"),
        ("bad", {"reason": "Invalid Move: 0.25", "invalid_move": True}, 0.25, 0.0,
         ErrorKind.FORMAT, "Invalid Move: bad"),
        ("bad", {"reason": "Invalid Move: worse", "invalid_move": True}, 0.0, 0.0,
         ErrorKind.FORMAT, "Invalid Move: worse"),
        (None, {"invalid_move": True}, 0.0, 0.0, ErrorKind.FORMAT, ""),
    ],
)  # fmt: skip
def test_ends_of_a_game(
    score: object, facts: dict, reward: float, outcome: float, kind: object, observation: str
) -> None:
    env = _env()
    env._game = _Ends(score, facts)
    env.reset(seed=0)
    seen = env.step("x")
    assert seen[:3] == (observation, reward, True)
    assert (seen[4]["outcome"], seen[4]["error_kind"]) == (outcome, kind)


def test_score_that_is_no_number_is_a_fault_of_the_game_where_no_move_was_invalid() -> None:
    env = _env()
    env._game = _Ends("well done", {"reason": "You won."})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="gave no number as its score"):
        env.step("x")


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "GermanWhist-v0"])
def test_game_for_several_is_refused_before_any_episode(game: str) -> None:
    for _ in range(2):  # nothing is remembered of a game that cannot be begun
        with pytest.raises(EnvError, match=rf"^{game} (is not a game for one|cannot be begun)"):
            _env(game=game)


def test_missing_data_of_nltk_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    textarena = importlib.import_module("textarena")

    def fail(_: str) -> None:
        raise LookupError("\n***\n  Resource 'words' not found.\n  >>> nltk.download('words')\n***")

    monkeypatch.setattr(textarena, "make", fail)
    with pytest.raises(EnvError) as caught:
        _env(game="Wordle-v0")
    assert str(caught.value) == (
        "Wordle-v0 needs NLTK's data 'words': python -m nltk.downloader words"
    )


def test_randomness_needs_a_seed_first() -> None:
    with pytest.raises(EnvError, match="no seed yet"), PrivateRandomness()():
        pass
