"""`VllmPolicy`: one vLLM server or several that serve the same weights, as a `Policy`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentgym import seeding
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.vllm.fleet import Admit, Fleet, Member
from agentgym.policies.vllm.gate import Gate
from agentgym.policies.vllm.handshake import probe_ids, score
from agentgym.policies.vllm.server import Retries, Server, ServerLostError
from agentgym.policies.vllm.wire import (
    CUT,
    Answer,
    Ask,
    completion_body,
    parse_completion,
)
from agentgym.policy import GenerateRequest
from agentgym.records import Completion, FinishReason, Sampling, TokenTrace, VersionRun
from agentgym.renderer.base import Renderer

_MOST_CUTS = 64
"""Cuts of one completion at most: a server that cuts without end is at fault."""
_SAME_WEIGHTS = 1e-2
"""Nats, on average, within which a restarted server's probe is that of the same weights."""


class Partial(StrEnum):
    """What becomes of a completion that a change of weights cuts."""

    KEEP = "keep"
    """It goes on under the new weights; each id keeps the version that sampled it."""
    DROP = "drop"
    """It begins again: no completion mixes versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How a `VllmPolicy` behaves."""

    timeout_s: float = 600.0
    """Longest wait for one answer of a server."""
    patience_s: float = 300.0
    """How long a lost server is waited for before its episodes fail."""
    is_seeded: bool = True
    """Send each request's seed. On a GPU a seeded request costs a kernel of its own for each id."""
    partial: Partial = Partial.KEEP
    """What becomes of completions that a change of weights cuts."""
    retries: Retries = field(default_factory=Retries)
    """For requests whose connection broke."""


class VllmPolicy:
    """Asks vLLM servers for completions of token ids.

    The whole prompt goes with each call; the server's prefix cache finds what it has seen. While
    weights change, requests wait; what was under way is given back by the server and goes on
    afterwards, so each id is recorded under the weights that sampled it.

    Args:
        servers: At least one; an episode stays with the one that it began on.
        renderer: The renderer of the model's tokenizer.
        model: Name of the model on the servers.
        policy_id: Name, for records.
        version: Learner updates behind the weights.
        max_context_tokens: Prompt and completion together, as the servers say.
        options: Deadlines, retries, seeds.
        seed: Seed of the stream behind requests that bring no seed.

    Raises:
        PolicyError: If no server is given.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        renderer: Renderer,
        *,
        model: str,
        policy_id: str = "vllm",
        version: int = 0,
        max_context_tokens: int | None = None,
        options: VllmOptions | None = None,
        seed: int = 0,
    ) -> None:
        if not servers:
            raise PolicyError("a vLLM policy needs one server at least (got none)")
        self.model = model
        self.options = options if options is not None else VllmOptions()
        self.on_restart: Admit | None = None
        """Called with a server that came back as another process, in place of comparing probes:
        it must give the server the present weights, and prove them."""
        self._renderer = renderer
        self._id = policy_id
        self._max_context_tokens = max_context_tokens
        self._gate = Gate(version)
        self._end_ids = tuple(sorted(renderer.end_ids))
        self._stream = seeding.rng(seed, "policy")
        self._fleet = Fleet(servers, admit=self._admit, patience_s=self.options.patience_s)
        self._probe = probe_ids(renderer)
        self._proven: tuple[float, ...] | None = None

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
    def servers(self) -> tuple[Server, ...]:
        """The servers, in the order given."""
        return tuple(member.server for member in self._fleet.members)

    def ask(self) -> Ask:
        """Return what all requests of the present version have in common."""
        # A salt for each version: keys computed by older weights are never found again, even where
        # a server kept them.
        return Ask(model=self.model, end_ids=self._end_ids, cache_salt=f"agentgym-{self.version}")

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the completion of one prompt.

        Raises:
            InfrastructureError: If no server can be reached, or none answers in time.
            PolicyError: If the request has no ids, its prompt fills the context, or a server
                refuses it.
        """
        prompt, budget = self._checked(request)
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else self._stream.getrandbits(63)
        parts = _Parts()
        for _ in range(_MOST_CUTS):
            version = await self._gate.enter()
            left = replace(
                sampling, max_new_tokens=budget - len(parts.ids), seed=_seed_at(seed, parts)
            )
            answer = await self._answer(request.episode_id, (*prompt, *parts.ids), left)
            if answer.reason == CUT and self.options.partial is Partial.DROP:
                parts = _Parts()
                continue
            reason = parts.add(answer, version, stops=self._stops(sampling))
            if reason is None and len(parts.ids) >= budget:
                reason = FinishReason.LENGTH
            if reason is not None:
                return self._completion(request, parts, reason)
        raise InfrastructureError(f"a completion was cut {_MOST_CUTS} times by its server")

    async def begin_episode(self, episode_id: str) -> None:
        """Choose the server that the episode stays with."""
        self._fleet.begin(episode_id)

    async def end_episode(self, episode_id: str) -> None:
        """Forget the episode. May be called for an unknown one."""
        self._fleet.end(episode_id)

    async def aclose(self) -> None:
        """Close the connections. The servers run on."""
        await self._fleet.aclose()

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[tuple[float, ...], ...]:
        """Return [pair][time] log-probabilities, at temperature 1, of target ids after prompt ids.

        Args:
            pairs: Prompt ids, at least one, and target ids.

        Raises:
            PolicyError: If a prompt is empty.
        """
        if any(not prompt for prompt, _ in pairs):
            raise PolicyError("score needs at least one prompt id before each target (got none)")
        found: list[tuple[float, ...]] = []
        for index, (prompt, target) in enumerate(pairs):
            server = self.servers[index % len(self.servers)]
            values = await score(
                server, self.ask(), (*prompt, *target), timeout_s=self.options.timeout_s
            )
            found.append(values[len(prompt) - 1 :])
        return tuple(found)

    async def probe(self, server: Server) -> tuple[float, ...]:
        """Return the log-probabilities that one server gives to the fixed text."""
        return await score(server, self.ask(), self._probe, timeout_s=self.options.timeout_s)

    @property
    def probe_ids(self) -> tuple[int, ...]:
        """[time] ids of the fixed text, of which all but the first have a log-probability."""
        return self._probe

    async def remember(self) -> None:
        """Take the weights that the servers have now as the right ones.

        Raises:
            PolicyError: If two servers have different weights.
        """
        probes = [await self.probe(server) for server in self.servers]
        for server, values in zip(self.servers, probes, strict=True):
            if (off := _mean_distance(values, probes[0])) > _SAME_WEIGHTS:
                raise PolicyError(
                    f"{server.url} and {self.servers[0].url} have different weights: the probe "
                    f"text's log-probabilities are {off:.4f} nats apart on average"
                )
        self._proven = probes[0]
        await self._fleet.note_births()

    @asynccontextmanager
    async def change_to(self, version: int) -> AsyncGenerator[None]:
        """Hold requests back while the servers get new weights; `version` holds afterwards.

        A body that raises leaves the policy shut: nothing samples with weights that are not known.
        """
        async with self._gate.change_to(version):
            yield
            # Inside: a server that restarts from now on is compared with these weights.
            self._proven = None
            await self._fleet.note_births()

    # -- one answer ----------------------------------------------------------------------------

    async def _answer(self, episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """Return a server's answer. A request whose connection broke is sent again.

        Sending it again is safe: it changes nothing on the server, and the first answer, if there
        ever is one, reaches nobody.
        """
        retries = self.options.retries
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(ServerLostError),
            stop=stop_after_attempt(retries.attempts),
            wait=wait_exponential(multiplier=retries.first_wait_s, max=retries.longest_wait_s)
            + wait_random(0, retries.first_wait_s),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                server = await self._fleet.server_for(episode_id)
                body = completion_body(
                    self.ask(),
                    prompt,
                    sampling,
                    max_tokens=sampling.max_new_tokens,
                    seed=sampling.seed if self.options.is_seeded else None,
                )
                payload = await server.post(
                    "/v1/completions",
                    body,
                    timeout_s=self.options.timeout_s,
                    is_repeatable=False,
                )
                return parse_completion(payload, is_greedy=sampling.temperature == 0)
        raise AssertionError("the last attempt returns or raises")

    async def _admit(self, member: Member) -> None:
        """Let a server in that is another process than before, if it has the right weights."""
        if self.on_restart is not None:
            await self.on_restart(member)
            return
        values = await self.probe(member.server)
        if self._proven is None:
            return
        off = _mean_distance(values, self._proven)
        if off > _SAME_WEIGHTS:
            raise PolicyError(
                f"{member.server.url} came back with other weights: the probe text's "
                f"log-probabilities are {off:.4f} nats off on average"
            )

    def _checked(self, request: GenerateRequest) -> tuple[tuple[int, ...], int]:
        """Return the prompt and how many ids may follow it."""
        if not request.prompt_ids:
            raise PolicyError(
                f"{self._id!r} generates from ids, and the request has none "
                f"(got {request.prompt_ids!r})"
            )
        budget = request.sampling.max_new_tokens
        if self._max_context_tokens is not None:
            budget = min(budget, self._max_context_tokens - len(request.prompt_ids))
        if budget < 1:
            raise PolicyError(
                "the prompt must leave room for one id in a context of "
                f"{self._max_context_tokens} (got {len(request.prompt_ids)} ids)"
            )
        return request.prompt_ids, budget

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


def _mean_distance(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / max(len(left), 1)


__all__ = ["Partial", "VllmOptions", "VllmPolicy"]
