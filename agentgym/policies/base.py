"""What a policy is: something that answers a prompt, asynchronously."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentgym.errors import PolicyError
from agentgym.records import Completion, Sampling
from agentgym.records.messages import Message

if TYPE_CHECKING:
    from agentgym.renderer.base import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One call of a policy.

    `prompt_ids` is the whole prompt, always: a policy that keeps a cache between the turns of
    `episode_id` finds the shared prefix itself.
    """

    episode_id: str
    """Which live episode asks; requests of one episode never overlap."""
    turn: int
    """Turn of the episode, from 0."""
    messages: tuple[Message, ...]
    """The conversation so far as text, for policies that work on text."""
    prompt_ids: tuple[int, ...] | None
    """[time] the whole prompt; None for policies without a renderer."""
    sampling: Sampling
    """How to draw; its seed is this call's own."""


@runtime_checkable
class Policy(Protocol):
    """Answers prompts. One object serves many live episodes at once.

    Errors: a call raises `InfrastructureError` for what may succeed when tried again, `PolicyError`
    for what may not. A cancelled call stops generating.
    """

    @property
    def id(self) -> str:
        """Name, for records."""
        ...

    @property
    def renderer(self) -> Renderer | None:
        """Turns conversations into ids; None if the policy works on text."""
        ...

    @property
    def version(self) -> int:
        """Learner updates behind the weights that sample now."""
        ...

    @property
    def max_context_tokens(self) -> int | None:
        """Ids that prompt and completion may have together; None if not known."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the completion of one prompt."""
        ...

    async def begin_episode(self, episode_id: str) -> None:
        """Announce an episode, before its first call."""
        ...

    async def end_episode(self, episode_id: str) -> None:
        """Free whatever is kept for an episode. May be called for an unknown one."""
        ...

    async def aclose(self) -> None:
        """Free everything. May be called more than once."""
        ...


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy whose weights a learner replaces while episodes are live."""

    async def update_weights(self, weights: Any, version: int) -> None:
        """Sample with new weights from the next id on; nothing cached under older ones stays.

        Args:
            weights: A torch module to copy from, named tensors, or None where the learner's own
                module, which the policy was made with, has changed.
            version: Learner updates behind them.

        Raises:
            PolicyError: If the new weights cannot be taken, or are not what samples afterwards.
        """
        ...


def require_renderer(policy: Policy, *, why: str) -> Renderer:
    """Return the policy's renderer.

    Raises:
        PolicyError: If it has none, which `why` needs it for.
    """
    if policy.renderer is None:
        raise PolicyError(f"{why} needs token ids, which the policy {policy.id!r} does not give")
    return policy.renderer


def require_prompt_ids(
    request: GenerateRequest, *, policy_id: str, max_context_tokens: int | None
) -> tuple[int, ...]:
    """Return [time] the ids that a policy on tokens goes on from.

    Raises:
        PolicyError: If the request has none, or they fill the context.
    """
    ids = request.prompt_ids
    if not ids:
        raise PolicyError(
            f"{policy_id!r} generates from ids, and the request has none (got {ids!r})"
        )
    if max_context_tokens is not None and len(ids) >= max_context_tokens:
        raise PolicyError(
            f"the prompt must leave room for one id in a context of {max_context_tokens} "
            f"(got {len(ids)} ids)"
        )
    return ids


def require_prompts(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    """Check pairs of prompt ids and target ids that are to be scored.

    Raises:
        PolicyError: If a prompt is empty: nothing would predict its target's first id.
    """
    if any(not prompt for prompt, _ in pairs):
        raise PolicyError("score needs at least one prompt id before each target (got none)")


def last_message(messages: Sequence[Message], role: str) -> str:
    """Return the text of the last message with that role, or an empty string."""
    return next((m.content for m in reversed(messages) if m.role == role), "")
