"""`games/textarena-v0`: single-player games of the package textarena, scored by that package."""

from __future__ import annotations

import importlib
import random
import re
from typing import Any

from agentgym.env import Action, Reply
from agentgym.envs.adapters.foreign import ForeignEnv, OutcomeRule, PrivateRandomness
from agentgym.errors import EnvError, MissingExtraError, nearest
from agentgym.limits import Limits
from agentgym.records import Task

ENV_ID = "games/textarena-v0"
DEFAULT_GAME = "GuessTheNumber-v0-hardcore"
_RAW = "-raw"
"""Ending of the ids without the package's own wrappers: those repeat the whole history each turn,
which a policy that keeps its context has read already."""
_BOUNDS = re.compile(r"between (-?\d+) and (-?\d+)")
_HINT = re.compile(r"is (higher|lower)")


class TextArenaEnv(ForeignEnv):
    """One game of textarena. The task is a seed.

    The part `reward` of the last turn is the package's own score of the player. The outcome
    follows from it: `solved` gives 1 for a full score only, since several games give part of it
    for any guess; `return` gives the score itself, within 0 and 1.

    Args:
        game: Id of a single-player game, such as `GuessTheNumber-v0`.
        outcome: `solved` or `return`.
        max_turns: Actions of one episode.
    """

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
        self.limits = Limits(max_turns=max_turns)
        self._name = game
        self._randomness = PrivateRandomness()
        self._game = self._make(game)

    def start(self, task: Task, rng: random.Random) -> str:
        """Deal a game by the task's seed."""
        self.begin()
        seed = int(str(task.payload["seed"]))
        self._randomness.seed(seed)
        with self._randomness():
            try:
                self._game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise EnvError(f"{self._name} is not a game for one player: {error}") from error
            text = self._read()
        bounds = _BOUNDS.search(text)
        # Of a number that is guessed; the expert alone uses them.
        self._low, self._high = (int(bounds[1]), int(bounds[2])) if bounds else (0, 0)
        return text

    def respond(self, action: Action) -> Reply:
        """Make the move."""
        with self._randomness():
            is_over, info = self._game.step(str(action))
            text = self._read()
            rewards, facts = self._game.close() if is_over else ({}, {})
        self._learn(str(action), text)
        if not is_over:
            return Reply(observation=text)
        reward = (rewards or {}).get(0, 0.0)
        if not isinstance(reward, int | float):
            raise EnvError(f"{self._name} gave no number as its score (got {reward!r})")
        self.count(float(reward), dict(info))
        reason = str(facts.get(0, {}).get("reason") or "")
        return Reply(
            observation="\n".join(part for part in (text, reason) if part),
            outcome=self.outcome(),
            rewards={"reward": float(reward)},
        )

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
        with self._randomness():
            return textarena.make(wanted)

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
