"""`EnginePolicy`: what all policies on vLLM share: prompts, cuts, versions, and the gate between.

A subclass says how one request is answered, and through which controls weights change.
"""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agentgym import seeding
from agentgym.concurrency.limiter import PolicyLoad
from agentgym.errors import InfrastructureError
from agentgym.policies.base import GenerateRequest, require_prompt_ids
from agentgym.policies.vllm.control import EngineControl
from agentgym.policies.vllm.gate import Gate
from agentgym.policies.vllm.handshake import probe_ids
from agentgym.policies.vllm.wire import CUT, Answer, Ask
from agentgym.records import Completion, FinishReason, Sampling, TokenTrace, VersionRun
from agentgym.renderer.base import Renderer

CONTINUED = 48
"""Ids sampled after the fixed text, where that proves weights."""
_MOST_CUTS = 64
"""Cuts of one completion at most: a server that cuts without end is at fault."""


_SETTLE_S = 0.5
"""Seconds that engines have to give back what a pause has cut."""


class Partial(StrEnum):
    """What becomes of a completion that a change of weights cuts."""

    KEEP = "keep"
    """It goes on under the new weights; each id keeps the version that sampled it."""
    DROP = "drop"
    """It begins again: no completion mixes versions."""


class Pause(StrEnum):
    """What a change of weights does to requests under way."""

    CUT = "cut"
    """They are given back with what they have and go on as new ones: versions are exact."""
    FREEZE = "freeze"
    """The engine keeps them and goes on by itself. It does not say where the change fell, so all
    ids of such a completion are recorded under the version that it began with, the oldest."""


class EnginePolicy(abc.ABC):
    """A policy whose engine takes ids and gives ids.

    Args:
        renderer: The renderer of the model's tokenizer.
        model: Name of the model for the engine.
        policy_id: Name, for records.
        version: Learner updates behind the weights.
        max_context_tokens: Prompt and completion together.
        partial: What becomes of completions that a change of weights cuts.
        pause: What a change of weights does to requests under way.
        seed: Seed of the stream behind requests that bring no seed.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        model: str,
        policy_id: str,
        version: int,
        max_context_tokens: int | None,
        partial: Partial,
        pause: Pause,
        seed: int,
    ) -> None:
        self.model = model
        self._renderer = renderer
        self._id = policy_id
        self._max_context_tokens = max_context_tokens
        self._token = secrets.token_hex(4)
        self._partial = partial
        self._pause = pause
        self._requests: set[asyncio.Timeout] = set()
        self._is_idle = asyncio.Event()
        self._gate = Gate(version)
        self._end_ids = tuple(sorted(renderer.end_ids))
        self._stream = seeding.rng(seed, "policy")
        room = None if max_context_tokens is None else max_context_tokens - CONTINUED
        self._probe = probe_ids(renderer, most=room)

    @property
    def id(self) -> str:
        """Name, for records."""
        return self._id

    @property
    def renderer(self) -> Renderer:
        """Turns conversations into ids."""
        return self._renderer

    @property
    def version(self) -> int:
        """Learner updates behind the weights that sample now."""
        return self._gate.version

    @property
    def max_context_tokens(self) -> int | None:
        """Ids that prompt and completion may have together; None if not known."""
        return self._max_context_tokens

    @property
    def probe_ids(self) -> tuple[int, ...]:
        """[time] ids of the fixed text, of which all but the first have a log-probability."""
        return self._probe

    @property
    @abc.abstractmethod
    def controls(self) -> tuple[EngineControl, ...]:
        """What weights change through, one for each engine."""

    @abc.abstractmethod
    async def answer(self, episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """Return what the engine samples after `prompt`."""

    @abc.abstractmethod
    async def begin_episode(self, episode_id: str) -> None:
        """Announce an episode, before its first call."""

    @abc.abstractmethod
    async def end_episode(self, episode_id: str) -> None:
        """Free whatever is kept for an episode. May be called for an unknown one."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Free everything. May be called more than once."""

    @abc.abstractmethod
    async def load(self) -> PolicyLoad:
        """Return how busy the engines are."""

    @abc.abstractmethod
    async def revive(self, control: EngineControl) -> bool:
        """Wait for an engine that was lost; return whether it is a new one, without new weights."""

    @abc.abstractmethod
    async def note_change(self) -> None:
        """Take what the engines have now as the right weights."""

    def ask(self) -> Ask:
        """Return what all requests of the present version have in common."""
        # A salt for each version of each run: keys computed by other weights are never found again,
        # even where a server kept them.
        salt = f"agentgym-{self._token}-{self.version}"
        return Ask(model=self.model, end_ids=self._end_ids, cache_salt=salt)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the completion of one prompt.

        Raises:
            InfrastructureError: If no server can be reached, or none answers in time.
            PolicyError: If the request has no ids, its prompt fills the context, or a server
                refuses it.
        """
        prompt = require_prompt_ids(
            request, policy_id=self._id, max_context_tokens=self._max_context_tokens
        )
        sampling = request.sampling
        budget = self._budget(prompt, sampling)
        seed = sampling.seed if sampling.seed is not None else self._stream.getrandbits(63)
        parts = _Parts()
        for _ in range(_MOST_CUTS):
            version = await self._gate.enter()
            left = replace(
                sampling, max_new_tokens=budget - len(parts.ids), seed=_seed_at(seed, parts)
            )
            answer = await self._answered(request.episode_id, (*prompt, *parts.ids), left)
            if answer.reason == CUT and self._partial is Partial.DROP:
                parts = _Parts()
                continue
            reason = parts.add(answer, version, stops=self._stops(sampling))
            if reason is None and len(parts.ids) >= budget:
                reason = FinishReason.LENGTH
            if reason is not None:
                return self._completion(request, parts, reason)
        raise InfrastructureError(f"a completion was cut {_MOST_CUTS} times by its server")

    @asynccontextmanager
    async def change_to(self, version: int) -> AsyncGenerator[None]:
        """Hold requests back while the engines get new weights; `version` holds afterwards.

        A body that raises leaves the policy shut: nothing samples with weights that are not known.
        """
        async with self._gate.change_to(version):
            yield
            # Inside: an engine that restarts from now on is compared with these weights.
            await self.note_change()

    async def settle(self) -> None:
        """Wait, in a pause, until no request is under way; what is not given back begins anew.

        A request may have passed the gate and not have reached its engine: it would be sampled by
        weights that it is not recorded under. Where engines keep requests, nothing is waited for.
        """
        if self._pause is Pause.FREEZE or not self._requests:
            return
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self._is_idle.wait()
        except TimeoutError:
            for scope in self._requests:
                if scope.when() is None:  # else another engine's pause has ended it
                    scope.reschedule(asyncio.get_running_loop().time())
            await self._is_idle.wait()

    async def _answered(self, episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """Return an answer: an empty one, cut, if a change of weights overtook the request."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._requests.add(scope)
                self._is_idle.clear()
                try:
                    return await self.answer(episode_id, prompt, sampling)
                finally:
                    self._requests.discard(scope)
                    if not self._requests:
                        self._is_idle.set()
        except TimeoutError:
            if not scope.expired():
                raise
            return Answer(ids=(), logprobs=(), reason=CUT)

    def _budget(self, prompt: Sequence[int], sampling: Sampling) -> int:
        """Return how many ids may follow the prompt."""
        if self._max_context_tokens is None:
            return sampling.max_new_tokens
        return min(sampling.max_new_tokens, self._max_context_tokens - len(prompt))

    def _stops(self, sampling: Sampling) -> _Stops | None:
        return _Stops(self._renderer, sampling.stop) if sampling.stop else None

    def _completion(
        self, request: GenerateRequest, parts: _Parts, reason: FinishReason
    ) -> Completion:
        return Completion(
            text=self._renderer.decode(parts.ids),
            finish_reason=reason,
            sampling=request.sampling,
            policy_id=self._id,
            tokens=TokenTrace(
                ids=tuple(parts.ids),
                behavior_logprobs=tuple(parts.logprobs),
                versions=tuple(parts.versions),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=False)
class _Stops:
    """Strings that end a completion, looked for where a server cannot: across a cut."""

    renderer: Renderer
    strings: tuple[str, ...]

    def end(self, ids: Sequence[int], begin: int) -> int | None:
        """Return how many ids stay if a string is complete at place `begin` or later."""
        for count in range(begin + 1, len(ids) + 1):
            text = self.renderer.decode(ids[:count])
            if any(string in text for string in self.strings):
                return count
        return None


@dataclass(slots=True, kw_only=True)
class _Parts:
    """A completion that grows, by one answer for each stretch between two cuts."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[VersionRun] = field(default_factory=list[VersionRun])

    def add(self, answer: Answer, version: int, *, stops: _Stops | None) -> FinishReason | None:
        """Append an answer and return why the completion ends, None if it was cut."""
        begin = len(self.ids)
        ids, logprobs = list(answer.ids), list(answer.logprobs)
        reason = None if answer.reason == CUT else FinishReason(answer.reason)
        if begin and stops is not None:
            kept = stops.end(self.ids + ids, begin)
            if kept is not None:
                ids, logprobs = ids[: kept - begin], logprobs[: kept - begin]
                reason = FinishReason.STOP
        self.ids += ids
        self.logprobs += logprobs
        if ids:
            if self.versions and self.versions[-1].version == version:
                run = self.versions.pop()
                self.versions.append(VersionRun(version=version, count=run.count + len(ids)))
            else:
                self.versions.append(VersionRun(version=version, count=len(ids)))
        return reason


def _seed_at(seed: int, parts: _Parts) -> int:
    """Return the seed of what follows `parts`: the same numbers must not be drawn twice."""
    return seeding.derive(seed, "cut", len(parts.ids)) if parts.ids else seed


__all__ = ["EnginePolicy", "Partial", "Pause"]
