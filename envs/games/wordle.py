"""`games/wordle-v0`: find a hidden word from which letters of a guess are right.

In order: the answer to a guess, the best guess by information, the generator of tasks, the
environment. A game opens with one word played already, so that there are many tasks a secret.
"""

from __future__ import annotations

import array
import functools
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym import seeding
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.envs.games.splits import is_held_out
from agentgym.envs.games.words import WORDS
from agentgym.envs.splits import check_levels, check_request
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits

ENV_ID = "games/wordle-v0"
LENGTHS = {1: 4, 2: 5, 3: 6}
"""Level -> letters of a word."""
LEVELS = tuple(LENGTHS)
GUESSES = 6
"""Guesses after the opening word. The expert needs at most 5, 4 and 4 on the three levels, for any
secret and opening, which a test works out."""
RIGHT, ELSEWHERE, ABSENT = "G", "Y", "X"
_WORD = re.compile(r"[a-z]+")


def pattern(guess: str, secret: str) -> str:
    """Return one sign a letter: `G` right, `Y` elsewhere in the word, `X` not in it.

    A letter that the secret has once is marked once: first where it is right, then from the left.

    Example:
        pattern("sheep", "crepe") is "XXGYY".
    """
    spare = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    signs: list[str] = []
    for written, hidden in zip(guess, secret, strict=True):
        if written == hidden:
            signs.append(RIGHT)
        elif spare[written] > 0:
            spare[written] -= 1
            signs.append(ELSEWHERE)
        else:
            signs.append(ABSENT)
    return "".join(signs)


@functools.lru_cache(maxsize=4096)
def best_guess(candidates: tuple[str, ...]) -> str:
    """Return the word whose answer tells most about which candidate is hidden.

    Information is the entropy of the answer. Of equal words a candidate goes first, then the
    alphabet decides.
    """
    first = min(candidates)
    if len(candidates) <= 2:
        return first
    possible = set(candidates)
    table = _table(len(first))
    columns = [table.column[word] for word in candidates]
    return min(
        table.rows,
        key=lambda word: (-_entropy(table.rows[word], columns), word not in possible, word),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The answers to every guess for every secret of one length."""

    column: dict[str, int]
    """Secret -> its place in a row."""
    rows: dict[str, array.array[int]]
    """Guess -> [secret] number of the answer; equal answers have equal numbers."""


@functools.cache
def _table(length: int) -> _Table:
    words = WORDS[length]
    numbers: dict[str, int] = {}
    rows = {
        guess: array.array(
            "H", (numbers.setdefault(pattern(guess, word), len(numbers)) for word in words)
        )
        for guess in words
    }
    return _Table(column={word: place for place, word in enumerate(words)}, rows=rows)


def _entropy(row: array.array[int], columns: Sequence[int]) -> float:
    counts = Counter(map(row.__getitem__, columns))
    total = len(columns)
    # Rounded, so that the order of addition cannot break a tie.
    return round(-sum(n / total * math.log2(n / total) for n in counts.values()), 9)


def consistent(candidates: Sequence[str], guess: str, signs: str) -> tuple[str, ...]:
    """Return the candidates for which `guess` would have been answered with `signs`."""
    return tuple(word for word in candidates if pattern(guess, word) == signs)


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; levels take turns. Secrets of the splits are disjoint.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels, LEVELS)
    check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    words = WORDS[LENGTHS[level]]
    pairs = _pairs(level, split)
    secret, opening = pairs[number % len(pairs)]
    return Task(
        id=f"wordle-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=_question(secret, opening, len(words)),
        answers=(secret,),
        payload={"secret": secret, "opening": opening},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def split_size(split: str, *, levels: Sequence[int] = LEVELS) -> int:
    """Return how many tasks of a split are different from each other."""
    levels = check_levels(levels, LEVELS)
    return len(levels) * min(len(_pairs(level, split)) for level in levels)


@functools.cache
def _pairs(level: int, split: str) -> tuple[tuple[str, str], ...]:
    """Every secret of a split with every opening, in an order that mixes them."""
    words = WORDS[LENGTHS[level]]
    pairs = [
        (secret, opening)
        for secret in words
        if is_held_out("wordle", secret) == (split == "held_out")
        for opening in words
        if opening != secret
    ]
    seeding.rng("wordle", level, split).shuffle(pairs)
    return tuple(pairs)


def _question(secret: str, opening: str, count: int) -> str:
    return (
        f"Find the hidden word of {len(secret)} letters, one of {count} words. "
        f"{opening}: {pattern(opening, secret)}. {GUESSES} guesses left."
    )


class WordleEnv(TextEnv):
    """Guess a word; each letter is answered with G, Y or X. Every action costs a guess.

    Args:
        levels: Levels to draw tasks from.
    """

    system_prompt = (
        "Find the hidden word. Each reply is one word. Each letter of it is answered: "
        "G right place, Y elsewhere in the word, X not in the word."
    )
    limits = Limits(max_turns=GUESSES)

    def __init__(self, *, levels: Sequence[int] = LEVELS, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._levels = check_levels(levels, LEVELS)
        # Distinct words that ignore the answers.
        chances = [GUESSES / (len(WORDS[LENGTHS[level]]) - 1) for level in self._levels]
        self.null_score = round(sum(chances) / len(chances), 3)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return generate_task(rng.randrange(2**31), levels=self._levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Show the answer to the opening word."""
        self._secret, opening = str(task.payload["secret"]), str(task.payload["opening"])
        self._words = WORDS[len(self._secret)]
        self._candidates = consistent(self._words, opening, pattern(opening, self._secret))
        self._left = GUESSES
        return _question(self._secret, opening, len(self._words))

    def respond(self, action: Action) -> Reply:
        """Compare the guess with the secret."""
        self._left -= 1
        words = _WORD.findall((action.answer or "").lower())
        if len(words) != 1:
            return self._next("Write exactly one word.", ErrorKind.FORMAT)
        guess = words[0]
        if guess not in self._words:
            return self._next(f"{guess[: 2 * len(self._secret)]} is not one of the words.")
        if guess == self._secret:
            return self.finish(f"{guess} is right.", outcome=1.0)
        signs = pattern(guess, self._secret)
        self._candidates = consistent(self._candidates, guess, signs)
        return self._next(f"{guess}: {signs}.")

    def expert(self) -> str:
        """Return the guess that tells most."""
        return best_guess(self._candidates)

    def guess(self, rng: random.Random) -> str:
        """Return a random word of the list, whatever was answered before."""
        return rng.choice(self._words)

    def _next(self, text: str, error_kind: ErrorKind | None = None) -> Reply:
        if self._left == 0:
            return Reply(observation=f"{text} No guess left.", outcome=0.0, error_kind=error_kind)
        return Reply(observation=f"{text} {self._left} guesses left.", error_kind=error_kind)
