"""Scripted, OpenAI-compatible and human policies, and what `check_policy` catches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentgym.checks.policy import check_policy
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import Retries
from agentgym.policies.base import GenerateRequest, Policy
from agentgym.policies.human import HumanPolicy
from agentgym.policies.openai_compatible import OpenAICompatiblePolicy
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import Completion, FinishReason, Sampling, Source, TokenTrace, VersionRun
from agentgym.records.messages import Message
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.template import ChatTemplate
from agentgym.testing.toy_tokenizer import ToyTokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<S>' + m.content + '<E>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<S>' }}{% endif %}"
)
E = 9


def toy_renderer() -> ChatRenderer:
    return ChatRenderer(ToyTokenizer(), ChatTemplate(TEMPLATE))


def request(turn: int = 0, episode: str = "e", **sampling: Any) -> GenerateRequest:
    talk = [Message(role="user", content="he")]
    talk += [Message(role="assistant", content="x"), Message(role="tool", content="y")] * turn
    return GenerateRequest(
        episode_id=episode,
        turn=turn,
        messages=tuple(talk),
        prompt_ids=(8, 1, 9, 8),
        sampling=Sampling(**{"max_new_tokens": 8, "seed": 3, **sampling}),
    )


def chat_server(answer: Callable[[dict[str, Any]], httpx.Response]) -> httpx.MockTransport:
    def handle(call: httpx.Request) -> httpx.Response:
        return answer(json.loads(call.content))

    return httpx.MockTransport(handle)


def choice(text: str | None = "1776", reason: str = "stop") -> httpx.Response:
    body = {"choices": [{"message": {"content": text}, "finish_reason": reason}]}
    return httpx.Response(200, json=body)


def openai(answer: Callable[[dict[str, Any]], httpx.Response], **options: Any) -> Any:
    return OpenAICompatiblePolicy(
        "http://server/v1/", model="m", transport=chat_server(answer), **options
    )


CLIENTS: dict[str, Callable[[], Policy]] = {
    "script": lambda: ScriptedPolicy(["hello", "he"]),
    "script with ids": lambda: ScriptedPolicy(["hello", "he"], renderer=toy_renderer()),
    "function": lambda: ScriptedPolicy(lambda r: f"{r.turn}", renderer=toy_renderer()),
    "server": lambda: openai(lambda body: choice()),
    "person": lambda: HumanPolicy(ask=lambda prompt: "1776", show=lambda text: None),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_every_client_keeps_the_contract(name: str) -> None:
    report = await check_policy(CLIENTS[name]())
    assert not report.problems, str(report)
    assert len(report.outcomes) == 9


async def test_script_gives_ids_with_logprob_0_and_the_end() -> None:
    policy = ScriptedPolicy(["hello"], renderer=toy_renderer(), version=4)
    answer = await policy.generate(request())
    assert answer == Completion(
        text="hello",
        sampling=request().sampling,
        policy_id="scripted",
        tokens=TokenTrace(
            ids=(3, E),
            behavior_logprobs=(0.0, 0.0),
            versions=(VersionRun(version=4, count=2),),
        ),
    )


async def test_script_is_cut_by_the_bound() -> None:
    policy = ScriptedPolicy(["hehellohe"], renderer=toy_renderer())
    answer = await policy.generate(request(max_new_tokens=2))
    assert answer.tokens is not None
    assert (answer.tokens.ids, answer.text) == ((1, 3), "hehello")
    assert answer.finish_reason is FinishReason.LENGTH


async def test_script_by_episode_and_by_function() -> None:
    policy = ScriptedPolicy({"a": ["1"], "b": ["2", "3"]})
    assert (await policy.generate(request(1, "b"))).text == "3"
    with pytest.raises(PolicyError, match="has 1 texts for episode 'a'"):
        await policy.generate(request(1, "a"))

    async def later(call: GenerateRequest) -> str:
        await asyncio.sleep(0)
        return f"turn {call.turn}"

    assert (await ScriptedPolicy(later).generate(request(2))).text == "turn 2"
    whole = Completion(text="x", source=Source.TEACHER)
    assert await ScriptedPolicy(lambda _: whole).generate(request()) is whole


async def test_server_is_asked_for_what_was_asked() -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> httpx.Response:
        seen.append(body)
        return choice("17", "length")

    policy = openai(answer, api_key="secret", extra={"think": False})
    reply = await policy.generate(request(1, temperature=0.5, top_p=0.75, stop=("</a>",)))
    assert (reply.text, reply.finish_reason, reply.tokens) == ("17", FinishReason.LENGTH, None)
    assert seen == [
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "he"},
                {"role": "assistant", "content": "x"},
                {"role": "tool", "content": "y"},
            ],
            "temperature": 0.5,
            "max_tokens": 8,
            "top_p": 0.75,
            "stop": ["</a>"],
            "include_stop_str_in_output": True,
            "think": False,
            "seed": 3,
        }
    ]


@pytest.mark.parametrize(
    ("response", "error", "message"),
    [
        (httpx.Response(503, text="busy"), InfrastructureError, "503: busy"),
        (httpx.Response(429, text="slow down"), InfrastructureError, "429"),
        (httpx.Response(400, text="no such model"), PolicyError, "answered 400: no such model"),
        (httpx.Response(401, text="who are you"), PolicyError, "401"),
        (httpx.Response(200, text="<html>"), PolicyError, "without JSON: <html>"),
        (httpx.Response(200, json={"choices": []}), PolicyError, "without a completion"),
        (choice("x", "content_filter"), PolicyError, "got 'content_filter'"),
    ],
)
async def test_answers_that_are_errors_are_typed_and_not_repeated_h8(
    response: httpx.Response, error: type[Exception], message: str
) -> None:
    calls = 0

    def answer(body: dict[str, Any]) -> httpx.Response:
        nonlocal calls
        calls += 1
        return response

    with pytest.raises(error, match=message):
        await openai(answer).generate(request())
    assert calls == 1


@pytest.mark.parametrize("fault", [httpx.ConnectError, httpx.RemoteProtocolError])
async def test_broken_connections_are_tried_again(
    fault: type[httpx.TransportError], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def answer(body: dict[str, Any]) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise fault("reset")
        return choice()

    policy = openai(answer, retries=Retries(first_wait_s=0.0))
    assert (await policy.generate(request())).text == "1776"
    assert calls == 3


async def test_a_server_that_is_away_is_infrastructure() -> None:
    calls = 0

    def answer(body: dict[str, Any]) -> httpx.Response:
        nonlocal calls
        calls += 1
        raise httpx.ConnectError("refused")

    with pytest.raises(InfrastructureError, match="cannot be reached: refused"):
        await openai(answer, retries=Retries(first_wait_s=0.0)).generate(request())
    assert calls == 4


async def test_bounds_that_a_server_cannot_take_are_refused() -> None:
    with pytest.raises(PolicyError, match="top_k=5"):
        await openai(lambda body: choice()).generate(request(top_k=5))
    with pytest.raises(PolicyError, match="must begin with http"):
        OpenAICompatiblePolicy("localhost:8000", model="m")


async def test_person_sees_each_message_once_without_control_characters() -> None:
    shown: list[str] = []
    policy = HumanPolicy(ask=lambda prompt: "x", show=shown.append)
    first = request()
    hostile = Message(role="user", content="he\x1b[2Jllo\n")
    await policy.begin_episode("e")
    answer = await policy.generate(replace(first, messages=(hostile,)))
    assert (answer.text, answer.source) == ("x", Source.HUMAN)
    talk = (hostile, Message(role="assistant", content="x"), Message(role="tool", content="17"))
    await policy.generate(replace(first, turn=1, messages=talk))
    rules = "\n--- episode 1. An answer is one line. Ctrl-C ends everything.\n"
    assert shown == [rules, "[user] he\ufffd[2Jllo\n\n", "[tool] 17\n"]


async def test_end_of_input_is_an_error() -> None:
    def ask(prompt: str) -> str:
        raise EOFError

    with pytest.raises(PolicyError, match="the input ended"):
        await HumanPolicy(ask=ask, show=lambda text: None).generate(request())


class Wrong(ScriptedPolicy):
    """A script with ids whose completions are spoilt."""

    def __init__(self, spoil: Callable[[Completion], Completion]) -> None:
        super().__init__(["hello", "he"], renderer=toy_renderer())
        self.spoil = spoil

    async def generate(self, request: GenerateRequest) -> Completion:
        return self.spoil(await super().generate(request))


def trace(*ids: int, logprobs: tuple[float, ...] | None = None, version: int = 0) -> TokenTrace:
    return TokenTrace(
        ids=ids,
        behavior_logprobs=logprobs if logprobs is not None else (0.0,) * len(ids),
        versions=(VersionRun(version=version, count=len(ids)),),
    )


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda c: replace(c, policy_id="other"), "'policy_id' must be 'scripted'"),
        (lambda c: replace(c, source=Source.EXPERT), "only an expert"),
        (lambda c: replace(c, tokens=None), "must give ids"),
        (lambda c: replace(c, text=c.text + "!"), "the ids mean 'hello'"),
        (lambda c: replace(c, tokens=replace(c.tokens, behavior_logprobs=None)), "got None"),
        (lambda c: replace(c, text="hello", tokens=trace(3, E, logprobs=(0.5, 0.0))), "at most 0"),
        (lambda c: replace(c, text="hello", tokens=trace(3, E, version=2)), "from version 2"),
        (lambda c: replace(c, text="hello<E>", tokens=trace(3, E, E)), "follows an end id"),
        (lambda c: replace(c, finish_reason=FinishReason.LENGTH), "has all 16 ids"),
        (
            lambda c: replace(
                c,
                text="he" * 15,
                tokens=trace(*[1] * 15, E),
                finish_reason=FinishReason.LENGTH,
            ),
            "an end id means 'stop'",
        ),
        (lambda c: replace(c, text="he" * 20, tokens=trace(*[1] * 20)), "at most 16 ids"),
    ],
)
async def test_check_policy_catches(
    spoil: Callable[[Completion], Completion], problem: str
) -> None:
    report = await check_policy(Wrong(spoil))
    assert any(problem in (outcome.problem or "") for outcome in report.problems), str(report)
