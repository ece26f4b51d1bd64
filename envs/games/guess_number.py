"""`games/guess-number-v0`: find a hidden whole number; bisection is the optimum.

In order: the levels, the generator of tasks, the environment. A level with `n` numbers allows as
many guesses as bisection needs at worst, `floor(log2(n)) + 1`, so any waste may lose.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from agentgym import seeding
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.envs.games.splits import is_held_out
from agentgym.envs.splits import check_levels, check_request
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits

ENV_ID = "games/guess-number-v0"
SIZES = {1: 50, 2: 100, 3: 1_000, 4: 10_000, 5: 100_000}
"""Level -> how many numbers are possible."""
LEVELS = tuple(SIZES)
_LOWEST = range(100, 1000)
"""Where the interval may begin. Three digits and more: no number of guesses looks like a secret."""
# `[0-9]`, since `\d` matches digits of other scripts too; 12 digits bound the work on a flood.
_NUMBER = re.compile(r"(?<![0-9.])-?[0-9]{1,12}(?!\.?[0-9])")


def optimal_guesses(size: int) -> int:
    """Return how many guesses bisection needs at worst among `size` numbers."""
    return size.bit_length()


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; levels take turns.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels, LEVELS)
    check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    rng = seeding.rng("guess-number", level, split, number)
    size = SIZES[level]
    while True:
        low = rng.choice(_LOWEST)
        secret = low + 1 + rng.randrange(size)
        if is_held_out("guess-number", level, low, secret) == (split == "held_out"):
            break
    high = low + size + 1
    return Task(
        id=f"guess-number-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=_question(low, high, optimal_guesses(size)),
        answers=(str(secret),),
        payload={"low": low, "high": high, "secret": secret},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def _question(low: int, high: int, guesses: int) -> str:
    return (
        f"Find the hidden whole number. It is greater than {low} and less than {high}. "
        f"{guesses} guesses left."
    )


class GuessNumberEnv(TextEnv):
    """Guess a number; each answer is `higher` or `lower`. Every action costs a guess.

    Args:
        levels: Levels to draw tasks from.
    """

    system_prompt = "Guess the hidden number. Each reply is one whole number and nothing else."
    limits = Limits(max_turns=max(optimal_guesses(size) for size in SIZES.values()))

    def __init__(self, *, levels: Sequence[int] = LEVELS, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._levels = check_levels(levels, LEVELS)
        # Distinct guesses that ignore the replies: guesses / size, over the levels.
        chances = [optimal_guesses(SIZES[level]) / SIZES[level] for level in self._levels]
        self.null_score = round(sum(chances) / len(chances), 3)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return generate_task(rng.randrange(2**31), levels=self._levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Pose the interval."""
        low, high, secret = (int(str(task.payload[key])) for key in ("low", "high", "secret"))
        self._secret = secret
        # Bounds of what is still possible, both excluded; only the expert looks at them.
        self._low, self._high = low, high
        self._left = optimal_guesses(high - low - 1)
        return _question(low, high, self._left)

    def respond(self, action: Action) -> Reply:
        """Compare the guess with the secret."""
        self._left -= 1
        found = _NUMBER.findall(action.answer or "")
        if len(found) != 1:
            return self._next("Write exactly one whole number.", ErrorKind.FORMAT)
        guess = int(found[0])
        if guess == self._secret:
            return self.finish(f"{guess} is right.", outcome=1.0)
        if guess < self._secret:
            self._low = max(self._low, guess)
            return self._next(f"{guess}: higher.")
        self._high = min(self._high, guess)
        return self._next(f"{guess}: lower.")

    def expert(self) -> str:
        """Return the middle of what is still possible."""
        return str((self._low + self._high) // 2)

    def guess(self, rng: random.Random) -> str:
        """Return a number of the interval, whatever was said before."""
        assert self.task is not None
        low, high = int(str(self.task.payload["low"])), int(str(self.task.payload["high"]))
        return str(rng.randrange(low + 1, high))

    def _next(self, text: str, error_kind: ErrorKind | None = None) -> Reply:
        if self._left == 0:
            return Reply(observation=f"{text} No guess left.", outcome=0.0, error_kind=error_kind)
        return Reply(observation=f"{text} {self._left} guesses left.", error_kind=error_kind)
