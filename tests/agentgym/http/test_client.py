"""A server that answers anything at all costs a call, and no more: F16, F17.

The class: trust in a peer. Each client of this package speaks through `HttpClient`, so the servers
below are asked through it; what their JSON may hold is drawn, not listed. Their full size is in
`tests/attack/test_servers.py`.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import (
    AnswerError,
    Call,
    HttpClient,
    Reply,
    Retries,
    ServerFaultError,
    ServerLostError,
    SpreadTransport,
    room_for,
)
from agentgym.policies.base import GenerateRequest
from agentgym.policies.openai_compatible import OpenAICompatiblePolicy
from agentgym.policies.vllm import Server
from agentgym.policies.vllm.handshake import describe
from agentgym.policies.vllm.wire import parse_completion, parse_scores
from agentgym.records import Sampling
from agentgym.records.messages import Message

KEY = "sk-1234567890abcdef"
QUICK = Retries(attempts=2, first_wait_s=0.001)
MOVED = b"HTTP/1.1 302 F\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def serving(
    parts: Callable[[], Iterable[bytes]], *, pause_s: float = 0.0
) -> AsyncGenerator[tuple[str, list[int]]]:
    """Answer each request with the same bytes, part for part; also give how many were sent."""
    sent: list[int] = []
    at_work: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts():
                writer.write(part)
                await writer.drain()
                sent.append(len(part))
                await asyncio.sleep(pause_s)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(answer(reader, writer))
        at_work.add(task)
        task.add_done_callback(at_work.discard)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", sent
    finally:
        server.close()
        # Several rounds: one that was being accepted is met later, and aborted transports close
        # in the loop's next rounds.
        for _ in range(10):
            for task in tuple(at_work):
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)
            await asyncio.sleep(0)


def whole(body: bytes, *headers: bytes) -> list[bytes]:
    lines = [HEAD, *(header + b"\r\n" for header in headers)]
    return [b"".join(lines) + b"Content-Length: %d\r\n\r\n" % len(body) + body]


async def get(url: str, *, timeout_s: float = 20.0, most_bytes: int = 1 << 20) -> Reply:
    client = HttpClient(url, key=KEY, retries=QUICK)
    call = Call(method="GET", path="/x", timeout_s=timeout_s, most_bytes=most_bytes)
    try:
        return await client.send(call, is_repeatable=True)
    finally:
        await client.aclose()


# ------------------------------------------------------------------------ time and size: F16


@pytest.mark.parametrize(
    "start", [HEAD + b"Content-Length: 9000\r\n\r\n", HEAD, b"HTTP/1.1 100 Continue\r\n\r\n", b""]
)
async def test_f16_a_byte_now_and_then_does_not_keep_a_call_alive(start: bytes) -> None:
    def drip() -> Iterable[bytes]:
        yield start
        yield from itertools.repeat(b"x")

    async with serving(drip, pause_s=0.02) as (url, _):
        with pytest.raises(InfrastructureError, match=r"no answer within 0\.3 s"):
            await get(url, timeout_s=0.3)


async def test_f16_further_tries_share_the_time_of_the_first() -> None:
    async with serving(lambda: [b""], pause_s=0.2) as (url, _):
        client = HttpClient(url, retries=Retries(attempts=100, first_wait_s=0.01))
        with pytest.raises(InfrastructureError, match=r"no answer within 0\.5 s"):
            await client.send(Call(method="GET", path="/x", timeout_s=0.5), is_repeatable=True)
        await client.aclose()


@pytest.mark.parametrize("length", [b"Content-Length: 700000000", b"Transfer-Encoding: chunked"])
async def test_f16_a_body_is_read_up_to_its_bound_and_no_further(length: bytes) -> None:
    block = b"x" * 65_536

    def endless() -> Iterable[bytes]:
        yield HEAD + length + b"\r\n\r\n"
        yield from itertools.repeat(b"10000\r\n" + block + b"\r\n" if b"ch" in length else block)

    async with serving(endless) as (url, sent):
        with pytest.raises(AnswerError, match="more than the 1048576 bytes"):
            await get(url)
        # What the two ends buffer comes on top: some megabytes, of 700.
        assert sum(sent) < 30_000_000


async def test_f16_a_compressed_body_has_the_same_bound() -> None:
    bomb = gzip.compress(bytes(50_000_000))  # 48 kB
    async with serving(lambda: whole(bomb, b"Content-Encoding: gzip")) as (url, _):
        with pytest.raises(AnswerError, match="more than the 1048576 bytes"):
            await get(url)
    text = b'{"a": 1}'
    exact = gzip.compress(text)
    async with serving(lambda: whole(exact, b"Content-Encoding: gzip")) as (url, _):
        assert (await get(url, most_bytes=len(exact))).json() == {"a": 1}


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        (whole(b"x", b"Content-Encoding: br"), AnswerError, "compressed as 'br'"),
        (whole(b"no gzip", b"Content-Encoding: gzip"), AnswerError, "damaged"),
        (whole(gzip.compress(b"{}")[:-9], b"Content-Encoding: gzip"), AnswerError, "cut short"),
        ([HEAD + b"X: y\r\n" * 40_000 + b"\r\n"], ServerLostError, "cannot be reached"),
        ([b"\x00\xff\r\n\r\n"], ServerLostError, "cannot be reached"),
        (
            [b"HTTP/1.1 302 F\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"],
            PolicyError,
            "302",
        ),
        ([b"HTTP/1.1 304 F\r\n\r\n"], PolicyError, "304"),
        ([b"HTTP/1.1 529 F\r\nContent-Length: 4\r\n\r\nbusy"], ServerFaultError, "529: busy"),
        ([b"HTTP/1.1 400 F\r\nContent-Length: 6\r\n\r\na\x1b[2Jb"], PolicyError, r"a\\x1b\[2Jb"),
        ([HEAD + b"Content-Length: 5\r\n\r\nab"], ServerLostError, "cannot be reached"),
    ],
)
async def test_f16_what_is_no_answer_is_typed(
    parts: list[bytes], kind: type[Exception], message: str
) -> None:
    async with serving(lambda: parts) as (url, _):
        with pytest.raises(kind, match=message):
            await get(url)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[" * 200_000,
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a": "\xff"}',
        b"",
    ],
)
def test_f16_what_is_no_json_is_typed(body: bytes) -> None:
    reply = Reply(address="http://a/x", content_type="application/json", body=body)
    with pytest.raises(AnswerError, match="http://a/x answered without JSON"):
        reply.json()


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://[", "http://a b"])
def test_f16_an_address_that_is_none_is_refused_before_a_call(url: str) -> None:
    with pytest.raises(PolicyError, match="address"):
        HttpClient(url)


@pytest.mark.parametrize("key", ["a b", "a\nb", "schlüssel"])
def test_f16_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(PolicyError, match="printable ASCII") as caught:
        HttpClient("http://a", key=key)
    assert key not in str(caught.value)


async def test_f18_a_key_that_a_server_echoes_is_shown_nowhere() -> None:
    for status, kind in ((b"401", PolicyError), (b"503", ServerFaultError)):
        text = b"who is %s? %s" % (KEY.encode(), KEY.encode())
        head = b"HTTP/1.1 %s X\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
        async with serving(lambda answer=head + text: [answer]) as (url, _):
            with pytest.raises(kind, match="who is <redacted>") as caught:
                await get(url)
            assert KEY not in str(caught.value)
    content = json.dumps({"choices": [{"message": {"content": f"it is {KEY}"}}]}).encode()
    async with serving(lambda: whole(content)) as (url, _):
        assert KEY.encode() not in (await get(url)).body


def test_f17_connections_lie_in_pools_of_their_own() -> None:
    # One pool of httpx looks at all of its connections for each change of one of them.
    async def run() -> list[Any]:
        policy = OpenAICompatiblePolicy("http://127.0.0.1:9", model="m", retries=QUICK)
        with pytest.raises(ServerLostError):
            await policy.generate(request())
        return [policy._http._own, Server("http://127.0.0.1:9")._http._transport()]

    assert all(isinstance(own, SpreadTransport) for own in asyncio.run(run()))


async def test_f16_a_client_outlives_the_loop_that_it_began_in() -> None:
    async with serving(lambda: whole(b"{}", b"Connection: close")) as (url, _):
        client = HttpClient(url)
        call = Call(method="GET", path="/x", timeout_s=20)

        async def once() -> Any:
            return (await client.send(call, is_repeatable=False)).json()

        assert await once() == {}
        assert await asyncio.to_thread(lambda: asyncio.run(once())) == {}
        await client.aclose()


def test_a_proxy_of_the_environment_is_used_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "127.0.0.1:3128")
    monkeypatch.setenv("no_proxy", "inside")
    assert SpreadTransport(connections=1, proxy_for="http://a")._proxy == "http://127.0.0.1:3128"
    assert SpreadTransport(connections=1, proxy_for="http://inside/v1")._proxy is None
    assert SpreadTransport(connections=1)._proxy is None


# ----------------------------------------------------------------------- wrong JSON types: F16

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "finish_reason",
                    "logprobs",
                    "tokens",
                    "data",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def near(whole_answer: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for an answer of which one part, at any depth, is something else."""
    places: list[tuple[Any, ...]] = []

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        places.append(path)
        if isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in inner:
                walk(part, (*path, key))

    walk(whole_answer, ())

    def put(path: tuple[Any, ...], junk: Any) -> Any:
        if not path:
            return junk
        answer = json.loads(json.dumps(whole_answer))
        spot = answer
        for key in path[:-1]:
            spot = spot[key]
        spot[path[-1]] = junk
        return answer

    return st.builds(put, st.sampled_from(places), JUNK)


CHAT = {"choices": [{"message": {"content": "17"}, "finish_reason": "stop"}]}
COMPLETION = {
    "choices": [
        {
            "finish_reason": "stop",
            "logprobs": {"tokens": ["token_id:4"], "token_logprobs": [-1.0]},
        }
    ],
    "usage": {"completion_tokens": 1},
}
SCORES = {"choices": [{"prompt_logprobs": [None, {"7": {"logprob": -1.5}}]}]}
MODELS = {"data": [{"id": "m", "root": "/m", "parent": None, "max_model_len": 64}]}


def request() -> GenerateRequest:
    return GenerateRequest(
        episode_id="e",
        turn=0,
        messages=(Message(role="user", content="he"),),
        prompt_ids=None,
        sampling=Sampling(max_new_tokens=8),
    )


def openai_of(payload: Any) -> OpenAICompatiblePolicy:
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json=payload))
    return OpenAICompatiblePolicy("http://server/v1", model="m", transport=answer)


async def typed(work: Awaitable[Any]) -> Any:
    """Return what a client makes of an answer, or None where it refuses it as it should."""
    try:
        return await work
    except PolicyError as error:
        is_short = len(str(error)) < 1_000
    assert is_short
    return None


class Fixed:
    """A server that gives the same value to every GET."""

    url = "http://server"

    def __init__(self, payload: Any) -> None:
        self.payload = payload

    async def get(self, path: str, **_: Any) -> Any:
        return self.payload


@settings(max_examples=150, deadline=None)
@given(chat=near(CHAT), completion=near(COMPLETION), scores=near(SCORES), models=near(MODELS))
def test_f16_any_json_is_taken_apart_or_refused(
    chat: Any, completion: Any, scores: Any, models: Any
) -> None:
    async def run() -> None:
        answer = await typed(openai_of(chat).generate(request()))
        assert answer is None or isinstance(answer.text, str)

        async def complete() -> Any:
            return parse_completion(completion, is_greedy=False)

        async def score() -> Any:
            return parse_scores(scores, (5, 7))

        parsed = await typed(complete())
        assert parsed is None or all(value <= 1e-4 for value in parsed.logprobs)
        found = await typed(score())
        assert found is None or all(-9999 < value <= 1e-4 for value in found)
        server: Any = Fixed(models)
        await typed(describe(server))

    asyncio.run(run())


@pytest.mark.parametrize("content", [["17"], 17, 1.5, True, {"text": "17"}])
async def test_f16_content_that_is_no_text_does_not_become_one(content: Any) -> None:
    payload = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    with pytest.raises(PolicyError, match="content that is no text"):
        await openai_of(payload).generate(request())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([True], "True"),
        ([-9999.0], r"-9999\.0"),
        ([0.5], r"0\.5"),
        ([None], "None"),
        (["-1.0"], "'-1.0'"),
        (-1.0, "no completion with ids"),
    ],
)
def test_f14_log_probabilities_are_numbers_before_they_are_read(values: Any, message: str) -> None:
    payload = json.loads(json.dumps(COMPLETION))
    payload["choices"][0]["logprobs"]["token_logprobs"] = values
    with pytest.raises(PolicyError, match=message):
        parse_completion(payload, is_greedy=True)


def test_room_for_an_answer_grows_with_what_was_asked_for() -> None:
    assert room_for(0) == 1 << 20
    assert room_for(1_000) == (1 << 20) + 512_000
