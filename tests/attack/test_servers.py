"""F16: servers that answer without end, in their full size, against every client of this package.

The clients run in a child, whose memory is looked at when it ends. Each attack is made on a chat
completion, on a completion of ids, on a control call and on the handshake.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator

import pytest

pytestmark = pytest.mark.attack

MOST_MEMORY_BYTES = 400_000_000
"""Of the child, which has about 100 MB of imports. A body would have 700 MB, and a bomb 3 GB."""
TIMEOUT_S = 1.0
MIB = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

CHILD = """
import asyncio, json, resource, sys
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import Retries
from agentgym.policies.openai_compatible import OpenAICompatiblePolicy
from agentgym.policies.vllm import HttpControl, Server
from agentgym.policies.vllm.handshake import describe
from agentgym.policies.base import GenerateRequest
from agentgym.records.messages import Message
from agentgym.records import Sampling

once = Retries(attempts=2, first_wait_s=0.01)
request = GenerateRequest(episode_id="e", turn=0, messages=(Message(role="user", content="a"),),
                          prompt_ids=None, sampling=Sampling())

async def attack(url, timeout_s):
    policy = OpenAICompatiblePolicy(url, model="m", timeout_s=timeout_s, retries=once)
    server = Server(url, retries=once)

    async def completion():
        return await server.post("/v1/completions", {}, timeout_s=timeout_s, is_repeatable=True)

    async def control():
        async with asyncio.timeout(2 * timeout_s):  # its own limit is minutes
            await HttpControl(server, probe=None, continued=None).pause()

    async def handshake():
        async with asyncio.timeout(2 * timeout_s):
            await describe(server)

    found = {}
    for name, work in {"chat": policy.generate(request), "completion": completion(),
                       "control": control(), "handshake": handshake()}.items():
        try:
            await work
            found[name] = "answered"
        except (InfrastructureError, PolicyError, TimeoutError) as error:
            found[name] = "refused" if len(str(error)) < 2000 else "long"
    await policy.aclose()
    await server.aclose()
    return found

async def main():
    for line in sys.stdin:
        name, url, timeout_s = json.loads(line)
        found = await attack(url, timeout_s)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([name, found, peak]), flush=True)

asyncio.run(main())
"""


def endless(start: bytes, block: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([start], itertools.repeat(block))


def bomb() -> Iterator[bytes]:
    """Yield 3 GB of zeros as gzip, in 3 MB."""
    packer = zlib.compressobj(wbits=31)
    yield HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    yield packer.compress(bytes(64 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = packer.compress(bytes(64 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    yield from itertools.repeat(rest, 47)


def body(content: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: [HEAD + b"Content-Length: %d\r\n\r\n" % len(content), content]


CLOSE = b"Connection: close\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
ATTACKS: dict[str, tuple[Callable[[], Iterable[bytes]], float]] = {
    "a byte every 0.25 s": (endless(HEAD + CLOSE, b"x"), 0.25),
    "a header every 0.25 s": (endless(HEAD, b"X: y\r\n"), 0.25),
    "a body without end": (endless(HEAD + CLOSE, b" " * MIB), 0.0),
    "700 MB, as it says": (endless(HEAD + b"Content-Length: 700000000\r\n\r\n", b" " * MIB), 0.0),
    "chunks without end": (endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK), 0.0),
    "headers without end": (endless(HEAD, b"X: y\r\n" * 10_000), 0.0),
    "one header without end": (endless(HEAD + b"X: ", b"y" * MIB), 0.0),
    "a status line without end": (endless(b"HTTP/1.1 200 ", b"y" * MIB), 0.0),
    "continue without end": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000), 0.0),
    "a bomb": (bomb, 0.0),
    "deep": (body(b"[" * MIB), 0.0),
    "wide": (body(b"[" + b"[]," * (MIB // 3 - 2) + b"[]]"), 0.0),
    "a number of a million digits": (body(b"9" * MIB), 0.0),
    "keys": (body(b"{" + b",".join(b'"%d":0' % i for i in range(80_000)) + b"}"), 0.0),
}


class Hostile:
    """Answers every request with the bytes of the attack of the hour."""

    def __init__(self) -> None:
        self.attack: tuple[Callable[[], Iterable[bytes]], float] = (list, 0.0)
        self.at_work: set[asyncio.Task[None]] = set()

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self.answer(reader, writer))
        self.at_work.add(task)
        task.add_done_callback(self.at_work.discard)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts, pause_s = self.attack
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            if not writer.is_closing():
                writer.transport.abort()


async def attack_all() -> dict[str, tuple[dict[str, str], int]]:
    """Return what each call came to under each attack, and the child's memory by then."""
    hostile = Hostile()
    server = await asyncio.start_server(hostile.meet, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert child.stdin is not None
    assert child.stdout is not None
    found: dict[str, tuple[dict[str, str], int]] = {}
    for name, attack in ATTACKS.items():
        hostile.attack = attack
        child.stdin.write(json.dumps([name, url, TIMEOUT_S]).encode() + b"\n")
        line = await child.stdout.readline()
        told, outcomes, peak = json.loads(line or b'["", {}, 0]')
        assert told == name, f"the child ended under {name!r}"
        found[name] = (outcomes, peak)
    child.stdin.close()
    assert await child.wait() == 0
    server.close()
    for task in tuple(hostile.at_work):
        task.cancel()
    await asyncio.gather(*hostile.at_work, return_exceptions=True)
    return found


async def test_f16_no_server_costs_more_than_a_call() -> None:
    found = await attack_all()
    for name, (outcomes, peak) in found.items():
        assert set(outcomes) == {"chat", "completion", "control", "handshake"}
        # A raw completion is any JSON: who asked takes it apart.
        sound = {"wide", "keys"}
        for call, outcome in outcomes.items():
            may_answer = call == "completion" and name in sound
            assert outcome == "refused" or (may_answer and outcome == "answered"), (name, call)
        assert peak < MOST_MEMORY_BYTES, f"{name}: {peak / 1e6:.0f} MB"
