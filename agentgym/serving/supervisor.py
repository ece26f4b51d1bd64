"""`Supervisor`: starts servers, starts them anew when they die or hang, and ends them.

A server that was started anew has the weights of its folder. Whoever changes weights notices that
it is another process, and sends it the present ones before it samples.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from agentgym.concurrency.limiter import first_error
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import Retries
from agentgym.policies.vllm.server import Server
from agentgym.policies.vllm.start_lock import gpu_turn, gpus_of
from agentgym.serving.launch import ServerDevice, ServerProcess, ServerSpec, log_tail

OnEvent = Callable[[str], None]


class ServerState(StrEnum):
    """How a server does."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    """It has not answered for a while."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How servers are looked after."""

    every_s: float = 2.0
    """Seconds between two looks."""
    answer_s: float = 5.0
    """Longest wait for the server's word that it is well."""
    engine_s: float = 60.0
    """Longest wait for its engine, which answers between two steps."""
    silences: int = 3
    """Looks in a row without an answer after which it counts as hung."""
    start_s: float = 900.0
    """Longest time to start."""
    restarts: int = 5
    """Restarts of one server within `window_s`; one more ends the watch."""
    window_s: float = 1_800.0
    """Seconds in which restarts are counted."""


@dataclass(slots=True, kw_only=True, eq=False)
class Watched:
    """One server with what is known of it."""

    spec: ServerSpec
    client: Server
    process: ServerProcess | None = None
    state: ServerState = ServerState.STARTING
    silences: int = 0
    restarts: deque[float] = field(default_factory=deque[float])


class Supervisor:
    """Looks after servers of this machine.

    Args:
        specs: Servers to start; none of them runs already.
        options: How they are looked after.
        on_event: Told of starts, deaths and restarts, one line each.

    Example:
        async with Supervisor(specs) as supervisor:
            await supervisor.watch()
    """

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        *,
        options: WatchOptions | None = None,
        on_event: OnEvent = lambda _: None,
    ) -> None:
        once = Retries(attempts=1)
        self.servers = tuple(
            Watched(spec=spec, client=Server(spec.url, key=spec.key, retries=once))
            for spec in specs
        )
        self._options = options if options is not None else WatchOptions()
        self._say = on_event
        self._is_closed = False

    async def __aenter__(self) -> Self:
        try:
            await self._for_each(self._start)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def watch(self) -> None:
        """Look after the servers until cancelled.

        Raises:
            InfrastructureError: If a server dies again and again; with the end of its log.
        """
        await self._for_each(self._watch)

    async def _watch(self, server: Watched) -> None:
        # A loop of its own: a server that takes long to start hides no other one.
        while True:
            await self.look(server)
            await asyncio.sleep(self._options.every_s)

    async def _for_each(self, work: Callable[[Watched], Coroutine[Any, Any, None]]) -> None:
        """Do something for every server at once; the first error ends it for all of them."""
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers:
                    group.create_task(work(server))
        except BaseExceptionGroup as failed:
            raise first_error(failed) from None

    async def look(self, server: Watched) -> None:
        """Look at one server, and start it anew if it is dead or hung.

        Raises:
            InfrastructureError: If it died too often.
        """
        process = server.process
        if process is None or self._is_closed:
            return
        if process.exit_code is not None:
            await self._start_anew(server, f"ended with code {process.exit_code}")
        elif await self._is_well(server.client):
            server.silences, server.state = 0, ServerState.READY
        else:
            server.silences += 1
            server.state = ServerState.SILENT
            if server.silences >= self._options.silences:
                await self._start_anew(server, f"gave no answer {server.silences} times")

    async def aclose(self) -> None:
        """End every server. May be called more than once."""
        self._is_closed = True  # first: a look that is under way starts nothing any more
        processes = [s.process for s in self.servers if s.process is not None]
        for server in self.servers:
            server.process, server.state = None, ServerState.ENDED
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes))
        for server in self.servers:
            await server.client.aclose()

    async def _start_anew(self, server: Watched, reason: str) -> None:
        process = server.process
        if process is None:  # closed meanwhile
            return
        self._say(f"{server.spec.url} {reason}; starting it anew")
        # Whatever is left of it: an engine without its parent still holds memory.
        await asyncio.to_thread(process.kill)
        if self._is_closed:
            return
        now = time.monotonic()
        server.restarts.append(now)
        while now - server.restarts[0] > self._options.window_s:
            server.restarts.popleft()
        if len(server.restarts) > self._options.restarts:
            raise InfrastructureError(
                f"{server.spec.url} was started anew {self._options.restarts} times within "
                f"{self._options.window_s:g} s and {reason}; the end of {server.spec.log}:\n"
                f"{log_tail(server.spec.log)}"
            )
        server.silences = 0
        await self._start(server)

    async def _start(self, server: Watched) -> None:
        """Start a server and wait until it answers, in turn with others on its GPU."""
        spec = server.spec
        gpus = gpus_of(spec.gpu) if spec.device is ServerDevice.CUDA else ()
        async with gpu_turn(gpus, patience_s=self._options.start_s, on_wait=self._say):
            if not self._is_closed:
                server.process = ServerProcess(spec)
                await self._wait_ready(server)

    async def _wait_ready(self, server: Watched) -> None:
        server.state = ServerState.STARTING
        began = time.monotonic()
        process = server.process
        assert process is not None
        while not await server.client.is_healthy(timeout_s=self._options.answer_s):
            if self._is_closed:
                return
            if process.exit_code is not None:
                raise InfrastructureError(
                    f"the server for {server.spec.url} ended with code {process.exit_code} before "
                    f"it answered; the end of {server.spec.log}:\n{log_tail(server.spec.log)}"
                )
            if time.monotonic() - began > self._options.start_s:
                raise InfrastructureError(
                    f"{server.spec.url} did not answer within {self._options.start_s:g} s; the end "
                    f"of {server.spec.log}:\n{log_tail(server.spec.log)}"
                )
            await asyncio.sleep(min(0.25, self._options.every_s))
        server.state = ServerState.READY
        self._say(f"{server.spec.url} is ready after {time.monotonic() - began:.0f} s")

    async def _is_well(self, client: Server) -> bool:
        """Return whether server and engine answer; the second is asked a trifle."""
        if not await client.is_healthy(timeout_s=self._options.answer_s):
            return False
        try:
            reply = await client.get("/is_paused", timeout_s=self._options.engine_s)
        except (InfrastructureError, PolicyError):
            return False
        return isinstance(reply, dict) and "is_paused" in reply


__all__ = ["ServerState", "Supervisor", "WatchOptions", "Watched"]
