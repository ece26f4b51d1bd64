"""`games/textarena-v0`: single-player games of the package textarena, scored by that package."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym.env.contract import Action, Reply
from agentgym.envs.adapters.foreign import ForeignEnv, OutcomeRule, PrivateRandomness
from agentgym.envs.splits import check_int
from agentgym.errors import EnvError, MissingExtraError, nearest
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits

ENV_ID = "games/textarena-v0"
DEFAULT_GAME = "GuessTheNumber-v0-hardcore"
_RAW = "-raw"
"""Ending of the ids without the package's own wrappers: those repeat the whole history each turn,
which a policy that keeps its context has read already."""
MOST_TURNS = 10_000
"""Bound of `max_turns`; the longest games of the package end by themselves long before."""
_INVALID = "Invalid Move:"
"""How the package begins the reason of a game that ended by a move against its rules."""
_NLTK_DATA = re.compile(r"nltk\.download\(['\"]([\w-]+)['\"]\)")
# What the package's games raise where they cannot be begun: a game for several players, a key or a
# file that is not there, a module that this Python cannot read.
_CANNOT_BEGIN = (AssertionError, ValueError, LookupError, ImportError, OSError, SyntaxError)
_BOUNDS = re.compile(r"between (-?\d+) and (-?\d+)")
_HINT = re.compile(r"is (higher|lower)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """How a game ended."""

    score: float
    """The package's score of the player."""
    reason: str
    """Why, in the package's words; empty if it says nothing."""
    is_lost: bool
    """True if a move against the rules ended it."""
    error_kind: ErrorKind | None = None
    """`format` if the game did not score that move as such."""

    @classmethod
    def of(cls, score: object, facts: Mapping[str, object], *, name: str) -> _Verdict:
        """Return what the package's two values mean.

        Some games (Countdown, Cryptarithm, Slitherlink in 0.7.4) give the reason of an invalid move
        where the score belongs, and the score as the reason: then they are put right.

        Raises:
            EnvError: If a game that ended otherwise has no number as its score.
        """
        reason = str(facts.get("reason") or "")
        is_lost = bool(facts.get("invalid_move"))
        if isinstance(score, int | float):
            return cls(score=float(score), reason=reason, is_lost=is_lost)
        if not is_lost:
            raise EnvError(f"{name} gave no number as its score (got {score!r})")
        try:
            found = float(reason.removeprefix(_INVALID))
        except ValueError:
            found = 0.0
        else:
            reason = f"{_INVALID} {score}"
        return cls(score=found, reason=reason, is_lost=True, error_kind=ErrorKind.FORMAT)


class TextArenaEnv(ForeignEnv):
    """One game of textarena. The task is a seed.

    The part `reward` of the last turn is the package's own score of the player. The outcome
    follows from it: `solved` gives 1 for a full score only, since several games give part of it
    for any guess; `return` gives the score itself, within 0 and 1.

    Args:
        game: Id of a single-player game, such as `GuessTheNumber-v0`.
        outcome: `solved` or `return`.
        max_turns: Actions of one episode, 1 to 10,000.

    Raises:
        EnvError: If an argument is not one of these, or the game cannot be played by one player
            here; the message says what it lacks.
        MissingExtraError: If the package is not installed.
    """

    _can_begin: ClassVar[set[str]] = set()
    """Games that were begun once in this process: some take seconds to deal."""

    # One of the 50 numbers of the default game, always guessed.
    null_score = 0.02
    system_prompt = "Play the game. Write your move as the rules ask, in brackets where they do."

    def __init__(
        self,
        *,
        game: str = DEFAULT_GAME,
        outcome: str = OutcomeRule.SOLVED,
        max_turns: int = 32,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(outcome=outcome, render_mode=render_mode)
        if self._rule is OutcomeRule.SUCCESS:
            raise EnvError("textarena says no 'success': 'outcome' must be 'solved' or 'return'")
        if not isinstance(game, str):
            raise EnvError(f"'game' must be the id of a game of textarena (got {game!r})")
        most = check_int("max_turns", max_turns, low=1, high=MOST_TURNS)
        self.limits = Limits(max_turns=most)
        self._name = game
        self._is_lost = False
        self._randomness = PrivateRandomness()
        self._game = self._make(game)

    def start(self, task: Task, rng: random.Random) -> str:
        """Deal a game by the task's seed."""
        self.begin()
        seed = int(str(task.payload["seed"]))
        self._randomness.seed(seed)
        self._is_lost = False
        with self._randomness():
            self._game.reset(num_players=1, seed=seed)
            text = self._read()
        bounds = _BOUNDS.search(text)
        # Of a number that is guessed; the expert alone uses them.
        self._low, self._high = (int(bounds[1]), int(bounds[2])) if bounds else (0, 0)
        return text

    def respond(self, action: Action) -> Reply:
        """Make the move."""
        with self._randomness():
            is_over, info = self._game.step(action.spoken)
            text = self._read()
            rewards, facts = self._game.close() if is_over else ({}, {})
        self._learn(action.spoken, text)
        if not is_over:
            return Reply(observation=text)
        verdict = _Verdict.of((rewards or {}).get(0, 0.0), facts.get(0, {}), name=self._name)
        self._is_lost = verdict.is_lost
        self.count(verdict.score, dict(info))
        return Reply(
            observation="\n".join(part for part in (text, verdict.reason) if part),
            outcome=self.outcome(),
            rewards={"reward": verdict.score},
            error_kind=verdict.error_kind,
        )

    def outcome(self) -> float:
        """Return the outcome by the rule; a game lost by an invalid move is not solved."""
        # Slitherlink counts satisfied clues, which may be all of them without a loop.
        if self._is_lost and self._rule is OutcomeRule.SOLVED:
            return 0.0
        return super().outcome()

    def expert(self) -> str:
        """Return the middle of what is possible, in a game of guessing a number.

        Raises:
            NotImplementedError: In any other game.
        """
        if not self._name.startswith("GuessTheNumber"):
            raise NotImplementedError(f"there is no expert for {self._name}")
        return f"[{(self._low + self._high) // 2}]"

    def _make(self, game: str) -> Any:
        try:
            textarena: Any = importlib.import_module("textarena")
            registration: Any = importlib.import_module("textarena.envs.registration")
        except ImportError as error:
            raise MissingExtraError(ENV_ID, extra="games") from error
        known = registration.ENV_REGISTRY
        wanted = game if game.endswith(_RAW) else f"{game}{_RAW}"
        if wanted not in known:
            raise EnvError(f"textarena has no game {game!r}{nearest(game, known)}")
        self._randomness.seed(0)
        try:
            with self._randomness():
                made = textarena.make(wanted)
                if wanted not in self._can_begin:
                    made.reset(num_players=1, seed=0)
        except _CANNOT_BEGIN as error:
            raise EnvError(_why_not(game, error)) from error
        self._can_begin.add(wanted)
        return made

    def _read(self) -> str:
        """Return what the game has said since the last time, without the player's own words."""
        _, messages = self._game.get_observation()
        # Where a game swaps the arguments, the sender is something else than a player's number.
        own = self._game.state.current_player_id
        return "\n".join(str(text) for sender, text, *_ in messages if sender != own).strip()

    def _learn(self, action: str, text: str) -> None:
        """Narrow the bounds by what was said to a guess."""
        hint, guess = _HINT.search(text), re.search(r"\[(\d{1,9})\]", action)
        if hint is None or guess is None:
            return
        if hint[1] == "higher":
            self._low = max(self._low, int(guess[1]) + 1)
        else:
            self._high = min(self._high, int(guess[1]) - 1)


def _why_not(game: str, error: Exception) -> str:
    """Return in one line why a game cannot be begun."""
    data = _NLTK_DATA.search(str(error))
    if data is not None:
        name = data[1]
        return f"{game} needs NLTK's data {name!r}: python -m nltk.downloader {name}"
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, AssertionError):
        return f"{game} is not a game for one player: {reason}"
    return f"{game} cannot be begun: {reason}"
