"""What a turn over HTTP costs the client: CPU milliseconds with 64 and with 512 live episodes.

    python tests/bench/http_turns.py

A server in a process of its own answers each chat completion after 0.05 s, so that every live
episode holds a connection. Beside the policy, in the same rounds: bare asyncio streams that write
and read as much. Prints medians of three rounds of process time, which waiting does not count in.
Exit code 1 if a turn of the policy with 512 live episodes costs more than 1.3 times one with 64.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date

from agentgym.policies.base import GenerateRequest
from agentgym.policies.openai_compatible import OpenAICompatiblePolicy
from agentgym.records import Sampling
from agentgym.records.messages import Message

SIZES = (64, 512)
CALLS = 1_024
ROUNDS = 3
ANSWER_S = 0.05
MOST_RATIO = 1.3
ANSWER = json.dumps(
    {"choices": [{"message": {"content": "17" * 100}, "finish_reason": "stop"}]}
).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
REQUEST = GenerateRequest(
    episode_id="e",
    turn=0,
    messages=(Message(role="user", content="What is 37*48? " * 40),),
    prompt_ids=None,
    sampling=Sampling(max_new_tokens=256, seed=1),
)

Turn = Callable[[], Awaitable[object]]
Way = Callable[[int], AbstractAsyncContextManager[Callable[[], Turn]]]


async def serve() -> None:
    """Answer on a free port, which is printed, until the input ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                await asyncio.sleep(ANSWER_S)
                writer.write(HEAD % len(ANSWER) + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


@asynccontextmanager
async def policy_turns(port: int) -> AsyncGenerator[Callable[[], Turn]]:
    """Yield what makes the turn of an episode: a call of the policy."""
    policy = OpenAICompatiblePolicy(f"http://127.0.0.1:{port}/v1", model="m")
    yield lambda: lambda: policy.generate(REQUEST)
    await policy.aclose()


@asynccontextmanager
async def bare_turns(port: int) -> AsyncGenerator[Callable[[], Turn]]:
    """Yield what makes the turn of an episode: bytes through a stream of its own."""
    body = json.dumps({"messages": [{"role": "user", "content": REQUEST.messages[0].content}]})
    content = body.encode()
    sent = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(content)
    writers: list[asyncio.StreamWriter] = []

    def make() -> Turn:
        streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def turn() -> object:
            if not streams:
                streams.append(await asyncio.open_connection("127.0.0.1", port))
                writers.append(streams[0][1])
            reader, writer = streams[0]
            writer.write(sent + content)
            await reader.readuntil(b"\r\n\r\n")
            return json.loads(await reader.readexactly(len(ANSWER)))

        return turn

    yield make
    for writer in writers:
        writer.close()


async def cpu_ms(way: Way, port: int, live: int) -> float:
    """Return CPU milliseconds of this process for each turn, with so many episodes at once."""
    async with way(port) as make:

        async def episode(turns: int) -> None:
            turn = make()
            for _ in range(turns):
                await turn()

        await asyncio.gather(*(episode(1) for _ in range(live)))  # connections are there
        began = time.process_time()
        await asyncio.gather(*(episode(CALLS // live) for _ in range(live)))
        return (time.process_time() - began) * 1_000 / CALLS


async def measure(port: int) -> dict[tuple[str, int], float]:
    """Return the median for each way and size, the ways in turn in each round."""
    ways = {"policy": policy_turns, "bare streams": bare_turns}
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            for live in SIZES:
                found.setdefault((name, live), []).append(await cpu_ms(way, port, live))
    return {key: statistics.median(values) for key, values in found.items()}


def main() -> int:
    """Measure, print a table, and return 1 if the bound is missed."""
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
        return 0
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        found = asyncio.run(measure(int(server.stdout.readline())))
    few, many = SIZES
    print(f"{platform.platform()}, Python {platform.python_version()}, {date.today()}")
    print(f"CPU ms a turn: {few} live, {many} live, ratio")
    ratios: dict[str, float] = {}
    for name in dict.fromkeys(name for name, _ in found):
        ratios[name] = found[name, many] / found[name, few]
        print(f"{name}: {found[name, few]:.3f}, {found[name, many]:.3f}, {ratios[name]:.2f}")
    return int(ratios["policy"] > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
