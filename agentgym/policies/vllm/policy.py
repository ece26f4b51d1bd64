"""`VllmPolicy`: one vLLM server or several that serve the same weights, as a `Policy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentgym.concurrency.limiter import PolicyLoad
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import Retries, ServerFaultError, ServerLostError, room_for
from agentgym.policies.base import require_prompts
from agentgym.policies.vllm.control import EngineControl, HttpControl
from agentgym.policies.vllm.engine_policy import CONTINUED, EnginePolicy, Partial, Pause
from agentgym.policies.vllm.fleet import Admit, Fleet, Member
from agentgym.policies.vllm.handshake import score
from agentgym.policies.vllm.server import Server
from agentgym.policies.vllm.wire import CUT, Answer, completion_body, parse_completion
from agentgym.records import Sampling
from agentgym.renderer.base import Renderer

_SAME_WEIGHTS = 1e-2
"""Nats, on average, within which a restarted server's probe is that of the same weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How a `VllmPolicy` behaves."""

    timeout_s: float = 600.0
    """Longest wait for one answer of a server."""
    patience_s: float = 300.0
    """How long a lost server is waited for before its episodes fail."""
    trust_s: float = 2.0
    """Seconds without a word after which a server is looked at before its next request: it may be
    another process by then. No server starts sooner."""
    is_seeded: bool = True
    """Send each request's seed. On a GPU a seeded request costs a kernel of its own for each id."""
    partial: Partial = Partial.KEEP
    """What becomes of completions that a change of weights cuts."""
    pause: Pause = Pause.CUT
    """What a change of weights does to requests under way."""
    retries: Retries = field(default_factory=Retries)
    """For requests whose connection broke."""


class VllmPolicy(EnginePolicy):
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
        self.options = options if options is not None else VllmOptions()
        self.on_restart: Admit | None = None
        """Called with a server that came back as another process, in place of comparing probes:
        it must give the server the present weights, and prove them."""
        super().__init__(
            renderer,
            model=model,
            policy_id=policy_id,
            version=version,
            max_context_tokens=max_context_tokens,
            partial=self.options.partial,
            pause=self.options.pause,
            seed=seed,
        )
        self._fleet = Fleet(
            servers,
            admit=self._admit,
            patience_s=self.options.patience_s,
            trust_s=self.options.trust_s,
        )
        self._proven: tuple[float, ...] | None = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers, in the order given."""
        return tuple(member.server for member in self._fleet.members)

    @property
    def controls(self) -> tuple[HttpControl, ...]:
        """What weights change through, one for each server."""
        return tuple(self.control(server) for server in self.servers)

    def control(self, server: Server) -> HttpControl:
        """Return what weights of one server change through."""
        return HttpControl(
            server,
            probe=lambda: self.probe(server),
            continued=lambda: self.continued(server),
            is_frozen=self.options.pause is Pause.FREEZE,
        )

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
        require_prompts(pairs)
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

    async def continued(self, server: Server) -> Answer:
        """Return what one server samples after the fixed text, at temperature 1."""
        body = completion_body(
            self.ask(), self.probe_ids, Sampling(), max_tokens=CONTINUED, seed=None
        )
        payload = await server.post(
            "/v1/completions", body, timeout_s=self.options.timeout_s, is_repeatable=True
        )
        return parse_completion(payload, is_greedy=False)

    async def load(self) -> PolicyLoad:
        """Return how busy the servers are together; one that is lost is named.

        Raises:
            InfrastructureError: If none of them answers.
        """
        running, waiting, shares, problems = 0.0, 0.0, list[float](), list[str]()
        for member in self._fleet.members:
            try:
                load = await member.server.load()
            except InfrastructureError as error:
                problems.append(str(error))
                continue
            running += load.running
            waiting += load.waiting
            shares.append(load.cache_usage)
            if member.is_doubtful:
                problems.append(f"{member.server.url} was lost and is not let in again yet")
        if not shares:
            raise InfrastructureError(f"no server answers: {'; '.join(problems)}")
        return PolicyLoad(
            running=int(running),
            waiting=int(waiting),
            cache_share=max(shares),
            problems=tuple(problems),
        )

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

    async def revive(self, control: EngineControl) -> bool:
        """Wait for a server that was lost; return whether it is another process than before.

        Raises:
            InfrastructureError: If it does not come back in time.
        """
        return await self._fleet.revive(control.name)

    async def note_change(self) -> None:
        """Take the weights that the servers have now as the right ones."""
        self._proven = None
        await self._fleet.note_births()

    async def answer(self, episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """Return a server's answer. A request whose connection broke is sent again.

        Sending it again is safe: it changes nothing on the server, and the first answer, if there
        ever is one, reaches nobody. After a change of weights it is not sent again as it was, but
        given back as cut: its record would name the weights before.
        """
        ask, version = self.ask(), self.version
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
                member = await self._fleet.member_for(episode_id)
                if self.version != version:
                    return Answer(ids=(), logprobs=(), reason=CUT)
                body = completion_body(
                    ask,
                    prompt,
                    sampling,
                    max_tokens=sampling.max_new_tokens,
                    seed=sampling.seed if self.options.is_seeded else None,
                )
                payload = await self._post(member, body)
                return parse_completion(payload, is_greedy=sampling.temperature == 0)
        raise AssertionError("the last attempt returns or raises")

    async def _post(self, member: Member, body: Mapping[str, Any]) -> Any:
        """Return a server's reply; an error of one that is about to end counts as its loss."""
        server = member.server
        try:
            with self._fleet.talking_to(member):
                return await server.post(
                    "/v1/completions",
                    body,
                    timeout_s=self.options.timeout_s,
                    is_repeatable=False,
                    most_bytes=room_for(body["max_tokens"]),
                )
        except ServerFaultError as error:
            if await server.is_healthy():
                raise
            member.is_doubtful = True
            raise ServerLostError(f"{server.url} is ending: {error}") from error

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


def _mean_distance(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / max(len(left), 1)


__all__ = ["VllmOptions", "VllmPolicy"]
