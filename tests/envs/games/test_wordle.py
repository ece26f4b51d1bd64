from __future__ import annotations

import pytest

from agentgym import seeding
from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.env.suites import load_suite
from agentgym.envs.games import wordle
from agentgym.envs.games.words import WORDS
from agentgym.records import ErrorKind, Task


# Working: letters in the right place first, then the spare letters of the secret from the left.
@pytest.mark.parametrize(
    ("guess", "secret", "signs"),
    [
        ("crane", "crane", "GGGGG"),
        # ocean holds c, a, n and e, all elsewhere, and no r
        ("crane", "ocean", "YXYYY"),
        # the 3rd letter of crepe is e: G; its 5th is a spare e for the 4th of sheep: Y; p: Y
        ("sheep", "crepe", "XXGYY"),
        # the secret has one e, and it is right: the earlier e is not marked
        ("eagle", "whole", "XXXGG"),
        # one o in robot's place: robot = r o b o t; floor = f l o o r: f X, l X, o(3rd) Y (the
        # spare o of the 2nd place), o(4th) G, r Y
        ("floor", "robot", "XXYGY"),
        # two t and two e written, one of each hidden, none right: the left ones are marked
        ("teeth", "extra", "YYXXX"),
    ],
)
def test_pattern_matches_hand_value(guess: str, secret: str, signs: str) -> None:
    assert wordle.pattern(guess, secret) == signs


@pytest.mark.parametrize("length", WORDS)
def test_words_are_sorted_unique_and_of_their_length(length: int) -> None:
    words = WORDS[length]
    assert list(words) == sorted(set(words))
    assert {len(word) for word in words} == {length}
    assert len(words) >= 200


def _env() -> TextEnv:
    return registry.make(wordle.ENV_ID)


def _outcome(env: TextEnv, task: Task) -> float:
    """Return the outcome of the expert."""
    env.reset(seed=0, options={"task": task})
    while True:
        _, _, terminated, _, info = env.step(env.expert())
        if terminated:
            return info["outcome"]


def _task(secret: str, opening: str) -> Task:
    payload = {"secret": secret, "opening": opening}
    return Task(id="t", env_id=wordle.ENV_ID, answers=(secret,), payload=payload)


def test_episode_shows_the_opening_and_answers_each_guess() -> None:
    env = _env()
    first, _ = env.reset(seed=0, options={"task": _task("robot", "floor")})
    assert first == (
        f"Find the hidden word of 5 letters, one of {len(WORDS[5])} words. "
        "floor: XXYGY. 6 guesses left."
    )
    assert env.step("Crane")[0] == "crane: XYXXX. 5 guesses left."
    assert env.step("qqqqq")[0] == "qqqqq is not one of the words. 4 guesses left."
    observation, reward, terminated, _, _ = env.step("robot.")
    assert (observation, reward, terminated) == ("robot is right.", 1.0, True)


@pytest.mark.parametrize("text", ["", "12345", "crane crown"])
def test_anything_but_one_word_is_a_format_error_and_costs_a_guess(text: str) -> None:
    env = _env()
    env.reset(seed=0, options={"task": _task("robot", "floor")})
    observation, _, _, _, info = env.step(text)
    assert observation == "Write exactly one word. 5 guesses left."
    assert info["error_kind"] is ErrorKind.FORMAT


def test_budget_ends_the_episode_unsolved() -> None:
    env = _env()
    env.reset(seed=0, options={"task": _task("robot", "floor")})
    ends = [env.step("crane") for _ in range(wordle.GUESSES)]
    assert [end[2] for end in ends] == [False] * 5 + [True]
    assert ends[-1][4]["outcome"] == 0.0


# Among band, land and sand a word that holds two of b, l, s tells all three apart: log2(3) = 1.585
# bits; a candidate tells one from two: 0.918 bits.
def test_best_guess_splits_all_candidates() -> None:
    candidates = ("band", "land", "sand")
    guess = wordle.best_guess(candidates)
    assert len({wordle.pattern(guess, word) for word in candidates}) == 3
    assert guess not in candidates


def _worst(candidates: tuple[str, ...]) -> int:
    """Return how many guesses the expert needs at worst, over the whole tree of answers."""
    guess = wordle.best_guess(candidates)
    rest: dict[str, list[str]] = {}
    for word in candidates:
        rest.setdefault(wordle.pattern(guess, word), []).append(word)
    rest.pop("G" * len(guess), None)
    return 1 + max((_worst(tuple(words)) for words in rest.values()), default=0)


# (length, the most guesses that were needed over ALL secrets and openings)
@pytest.mark.parametrize(("length", "most", "openings"), [(4, 5, 8), (5, 4, 3), (6, 4, 8)])
def test_expert_needs_fewer_guesses_than_allowed(length: int, most: int, openings: int) -> None:
    words = WORDS[length]
    worst = 0
    for opening in seeding.rng("openings", length).sample(words, openings):
        answers: dict[str, list[str]] = {}
        for secret in words:
            if secret != opening:
                answers.setdefault(wordle.pattern(opening, secret), []).append(secret)
        worst = max(worst, *(_worst(tuple(group)) for group in answers.values()))
    assert worst <= most < wordle.GUESSES


def test_expert_solves_200_held_out_tasks() -> None:
    env = _env()
    for task in load_suite("games/wordle").tasks("held_out", limit=200):
        assert _outcome(env, task) == 1.0, task.id


def test_secrets_of_the_splits_are_disjoint_m6() -> None:
    secrets = {
        split: {
            str(wordle.generate_task(index, split=split).payload["secret"]) for index in range(3000)
        }
        for split in ("train", "held_out")
    }
    assert len(secrets["held_out"]) > 150
    assert secrets["train"].isdisjoint(secrets["held_out"])


def test_split_size_counts_different_tasks() -> None:
    size = wordle.split_size("held_out", levels=(1,))
    hashes = {
        wordle.generate_task(i, split="held_out", levels=(1,)).content_hash for i in range(size)
    }
    assert len(hashes) == size
    assert wordle.generate_task(size, split="held_out", levels=(1,)).content_hash in hashes
