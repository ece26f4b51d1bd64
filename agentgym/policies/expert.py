"""Policies that look into the environment: the scripted expert, with a stated share of guesses.

They make demonstrations and show that an environment can be solved; they are never evaluated as
agents.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from agentgym import seeding
from agentgym.errors import EnvError, PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, Source


@runtime_checkable
class EnvAware(Protocol):
    """A policy which is handed the environment instead of a prompt."""

    def act(self, env: Any, request: GenerateRequest) -> Completion:
        """Return the next completion, from the environment's present state."""
        ...


class ExpertPolicy:
    """Plays the environment's own `expert()`; a share of episodes guesses at once instead.

    Args:
        guess_share: Share of episodes, in [0, 1], that begin with `env.guess(rng)`.
        seed: Which episodes guess, and what, derives from it and the episode's id.
    """

    def __init__(self, *, guess_share: float = 0.0, seed: int = 0) -> None:
        if not 0 <= guess_share <= 1:
            raise PolicyError(f"'guess_share' must be in [0, 1] (got {guess_share!r})")
        self.id = "expert"
        self.renderer = None
        self.version = 0
        self.max_context_tokens = None
        self._guess_share = guess_share
        self._seed = seed

    def act(self, env: Any, request: GenerateRequest) -> Completion:
        """Return the expert's action, or the episode's guess."""
        rng = seeding.rng(self._seed, request.episode_id)
        is_guess = rng.random() < self._guess_share
        text = self._guess(env, rng) if is_guess else env.expert()
        return Completion(text=text, source=Source.EXPERT, policy_id=self.id)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Refuse: an expert needs the environment."""
        raise PolicyError("the expert acts on the environment itself; run it through the rollout")

    async def begin_episode(self, episode_id: str) -> None:
        """Do nothing: an expert keeps nothing."""

    async def end_episode(self, episode_id: str) -> None:
        """Do nothing: an expert keeps nothing."""

    async def aclose(self) -> None:
        """Do nothing: an expert keeps nothing."""

    @staticmethod
    def _guess(env: Any, rng: Any) -> str:
        guess = getattr(env, "guess", None)
        if guess is None:
            raise EnvError(f"{env.env_id} has no guess(rng), which a 'guess_share' above 0 needs")
        return guess(rng)
