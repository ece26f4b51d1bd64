"""What the adapters share: outcome rules, rewards passed on unchanged, private randomness."""

from __future__ import annotations

import contextlib
import importlib
import math
import random
import threading
from collections.abc import Generator, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from agentgym.env.contract import Reply, TextEnv
from agentgym.errors import EnvError


class OutcomeRule(StrEnum):
    """How the outcome follows from what a foreign environment gives, always within [0, 1]."""

    RETURN = "return"
    """The sum of the rewards."""
    SOLVED = "solved"
    """1 if the sum of the rewards reaches 1, else 0."""
    SUCCESS = "success"
    """`info["success"]`, `info["is_success"]` or `info["won"]` of the last step."""


SUCCESS_KEYS = ("success", "is_success", "won")
_TOLERANCE = 1e-9
"""How far below 1 a sum may lie and still be solved: seven rewards of 1/7 need not give 1."""


def outcome_rule(name: str) -> OutcomeRule:
    """Return the rule of a name.

    Raises:
        EnvError: If there is none.
    """
    try:
        return OutcomeRule(name)
    except ValueError:
        known = tuple(str(rule) for rule in OutcomeRule)
        raise EnvError(f"'outcome' must be one of {known} (got {name!r})") from None


class ForeignEnv(TextEnv):
    """An environment whose rewards come from elsewhere.

    `step` gives the foreign reward as it is; its part is named `reward`. The outcome follows from
    a rule, at the end and where a limit of the engine ends the episode.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(self, *, outcome: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._rule = outcome_rule(outcome)
        self._received: list[float] = []
        self._is_success = False

    def outcome(self) -> float:
        """Return the outcome by the rule, from the rewards so far."""
        # Added one by one, ten rewards of 0.1 give less than 1.
        total = math.fsum(self._received)
        match self._rule:
            case OutcomeRule.RETURN:
                return min(max(total, 0.0), 1.0)
            case OutcomeRule.SOLVED:
                return float(total >= 1.0 - _TOLERANCE)
            case OutcomeRule.SUCCESS:
                return float(self._is_success)

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return a reply as Gymnasium's five values, the reward as it came."""
        observation, _, terminated, truncated, info = super().pack(reply)
        return observation, float(reply.rewards.get("reward", 0.0)), terminated, truncated, info

    def begin(self) -> None:
        """Forget the rewards of the last episode."""
        self._received, self._is_success = [], False

    def count(self, reward: float, info: dict[str, Any]) -> None:
        """Add one step's reward, and note whether it says that the task is solved.

        Raises:
            EnvError: If the reward is not a finite number.
        """
        if not math.isfinite(reward):
            raise EnvError(f"a reward must be a finite number (got {reward!r})")
        self._received.append(reward)
        self._is_success = any(bool(info.get(key)) for key in SUCCESS_KEYS)


class PrivateRandomness:
    """Gives each environment its own state of the global generators of Python and numpy.

    Some packages draw from them. While a call runs, they hold this environment's state and nobody
    else's; afterwards they are as before. Calls of all environments that need this wait for each
    other, which costs little where they take microseconds.
    """

    _lock = threading.RLock()

    def __init__(self) -> None:
        self._states: tuple[Any, Any] | None = None
        self._numpy: Any = importlib.import_module("numpy.random")

    def seed(self, seed: int) -> None:
        """Begin anew from a seed."""
        python = random.Random(seed).getstate()
        numpy = self._numpy.RandomState(seed % 2**32).get_state()
        self._states = (python, numpy)

    @contextlib.contextmanager
    def __call__(self) -> Generator[None]:
        """Run a block with this environment's state."""
        if self._states is None:
            raise EnvError("the randomness has no seed yet: reset the environment first")
        with self._lock:
            before = (random.getstate(), self._numpy.get_state())
            random.setstate(self._states[0])
            self._numpy.set_state(self._states[1])
            try:
                yield
            finally:
                self._states = (random.getstate(), self._numpy.get_state())
                random.setstate(before[0])
                self._numpy.set_state(before[1])
