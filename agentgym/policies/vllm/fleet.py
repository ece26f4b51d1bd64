"""`Fleet`: which server an episode speaks to, and when one that was lost is let in again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.server import Server

_POLL_S = 0.2
_SLOWEST_POLL_S = 2.0


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One server with what the fleet knows of it."""

    server: Server
    birth: float | None = None
    """When its process began, as it said when its weights were last known."""
    is_doubtful: bool = False
    """A connection broke since: it may be another process now, with other weights."""
    last_answer: float = 0.0
    """Clock at its last answer."""
    busy: int = 0
    """Requests under way: were it gone, they would say so."""
    episodes: int = 0
    """Live episodes that speak to it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


Admit = Callable[[Member], Awaitable[None]]


class Fleet:
    """One server or more that sample with the same weights.

    An episode stays with its server, whose cache holds its earlier turns, as long as that answers.

    Args:
        servers: At least one.
        admit: Called with a server that is another process than before, before it gets requests;
            raises if its weights are not the right ones.
        patience_s: How long a lost server is waited for.
        trust_s: Seconds since its last answer after which a server is looked at again: it may have
            been replaced while nobody spoke to it.
    """

    def __init__(
        self, servers: Sequence[Server], *, admit: Admit, patience_s: float, trust_s: float
    ) -> None:
        self.members = tuple(Member(server=server) for server in servers)
        self._admit = admit
        self._patience_s = patience_s
        self._trust_s = trust_s
        self._homes: dict[str, Member] = {}
        for member in self.members:
            member.server.on_break(_doubter(member))

    def begin(self, episode_id: str) -> None:
        """Choose the server of an episode: the one with the fewest."""
        if episode_id not in self._homes:
            sure = [m for m in self.members if not m.is_doubtful] or list(self.members)
            self._move(episode_id, min(sure, key=lambda member: member.episodes))

    def end(self, episode_id: str) -> None:
        """Forget an episode."""
        member = self._homes.pop(episode_id, None)
        if member is not None:
            member.episodes -= 1

    async def member_for(self, episode_id: str) -> Member:
        """Return the episode's server, once it is known to have the right weights.

        Where that server is lost and another one is not, the episode moves.

        Raises:
            InfrastructureError: If no server can be reached in time.
        """
        self.begin(episode_id)
        for _ in self.members:
            member = self._looked_at(episode_id)
            if not member.is_doubtful:
                return member
            if await member.server.is_healthy(timeout_s=2.0):
                break
            sure = [other for other in self.members if not other.is_doubtful]
            if not sure:
                break
            # It may have been lost, or replaced, too: the next round looks at it.
            self._move(episode_id, min(sure, key=lambda other: other.episodes))
        member = self._looked_at(episode_id)
        await self.readmit(member)
        return member

    def _looked_at(self, episode_id: str) -> Member:
        """Return the episode's server, doubtful where it has been silent for too long."""
        member = self._homes[episode_id]
        if time.monotonic() - member.last_answer > self._trust_s and not member.busy:
            member.is_doubtful = True
        return member

    @contextmanager
    def talking_to(self, member: Member) -> Generator[None]:
        """Note a request under way."""
        member.busy += 1
        try:
            yield
            member.last_answer = time.monotonic()
        finally:
            member.busy -= 1

    async def readmit(self, member: Member) -> None:
        """Wait until a lost server answers, and let it in if it may.

        Raises:
            InfrastructureError: If it does not answer in time.
        """
        async with member.lock:
            if not member.is_doubtful:
                return
            await self._wait_for(member.server)
            birth = await member.server.birth()
            if birth is None or birth != member.birth:
                await self._admit(member)
                member.birth = birth
            member.last_answer = time.monotonic()
            member.is_doubtful = False

    async def revive(self, url: str) -> bool:
        """Wait for a lost server without letting it in; return whether it is another process.

        Raises:
            InfrastructureError: If it does not answer in time.
        """
        member = next(member for member in self.members if member.server.url == url)
        await self._wait_for(member.server)
        birth = await member.server.birth()
        return birth is None or birth != member.birth

    async def note_births(self) -> None:
        """Remember which processes have the present weights."""
        for member in self.members:
            member.birth = await member.server.birth()
            member.last_answer = time.monotonic()
            member.is_doubtful = False

    async def aclose(self) -> None:
        """Close every connection."""
        for member in self.members:
            await member.server.aclose()

    async def _wait_for(self, server: Server) -> None:
        deadline = time.monotonic() + self._patience_s
        pause = _POLL_S
        while not await server.is_healthy():
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"{server.url} was lost and did not come back within {self._patience_s:g} s"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _SLOWEST_POLL_S)

    def _move(self, episode_id: str, member: Member) -> None:
        self.end(episode_id)
        self._homes[episode_id] = member
        member.episodes += 1


def _doubter(member: Member) -> Callable[[], None]:
    def doubt() -> None:
        member.is_doubtful = True

    return doubt


__all__ = ["Fleet", "Member"]
