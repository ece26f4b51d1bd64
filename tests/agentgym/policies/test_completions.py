"""An answer is held against its request, whoever gave it: F3, F14.

The class: a sentinel enters arithmetic, through one of several doors; an answer is not held against
the request. So the lies below are told by a policy of somebody's own, to the engine, where every
policy's answers pass.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentgym.checks.policy import check_policy
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.registry import register_env, unregister_env
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.completions import checked, whole_characters
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import (
    Completion,
    ErrorKind,
    FinishReason,
    Sampling,
    Task,
    TokenTrace,
    Trajectory,
    VersionRun,
)
from agentgym.records.messages import Message
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.template import ChatTemplate
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.testing.toy_tokenizer import ToyTokenizer

ENV_ID = "test/echo-v0"
TEMPLATE = (
    "{% for m in messages %}{{ '<S>' + m.content + '<E>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<S>' }}{% endif %}"
)
E = 9
VOCABULARY = 300
"""Above the end id and the toy tokenizer's pieces."""


class Echo(TextEnv):
    """Ends at the second turn, solved."""

    def start(self, task: Task, rng: random.Random) -> str:
        self.count = 0
        return "he"

    def respond(self, action: Action) -> Reply:
        self.count += 1
        return Reply(observation="llo", outcome=1.0 if self.count == 2 else None)


class Liar(ScriptedPolicy):
    """Tells the truth in its first turn, and something else in the second."""

    def __init__(self, lie: Callable[[Completion], object]) -> None:
        renderer = ChatRenderer(ToyTokenizer(), ChatTemplate(TEMPLATE), vocabulary_size=VOCABULARY)
        super().__init__(lambda _: "hello", renderer=renderer, policy_id="liar")
        self.lie = lie

    async def generate(self, request: GenerateRequest) -> Any:
        truth = await super().generate(request)
        return self.lie(truth) if request.turn else truth


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Echo)
    yield
    unregister_env(ENV_ID)


def play(policy: ScriptedPolicy, **sampling: Any) -> Trajectory:
    drawn = Sampling(**{"max_new_tokens": 8, **sampling})
    spec = GroupSpec(id="g", task=Task(id="t", env_id=ENV_ID), size=1, seed=1, sampling=drawn)

    async def run() -> Trajectory:
        async with Engine(policy) as engine:
            (group,) = await engine.run_groups([spec])
        return group.trajectories[-1]

    return asyncio.run(run())


def trace(*ids: Any, logprobs: tuple[Any, ...] | None = None) -> TokenTrace:
    return TokenTrace(
        ids=ids,
        behavior_logprobs=logprobs if logprobs is not None else (-1.0,) * len(ids),
        versions=(VersionRun(version=0, count=len(ids)),) if ids else (),
    )


def says(*ids: Any, logprobs: tuple[Any, ...] | None = None, **fields: Any) -> Any:
    return lambda truth: replace(truth, tokens=trace(*ids, logprobs=logprobs), **fields)


LENGTH = FinishReason.LENGTH
LIES: dict[str, tuple[Callable[[Completion], object], str]] = {
    # F3: what is no log-probability. -1e-3 nats and -99 nats could be sampled; -100 cannot.
    "minus infinity": (says(3, E, logprobs=(-math.inf, -1.0)), "must be finite"),
    "nan": (says(3, E, logprobs=(-1.0, math.nan)), "must be finite"),
    "vLLM's sentinel": (says(3, E, logprobs=(-9999.0, -1.0)), r"got \[-9999\.0\]"),
    "another sentinel": (says(3, E, logprobs=(-100.0, -1.0)), r"got \[-100\.0\]"),
    "true": (says(3, E, logprobs=(True, -1.0)), r"at most 0.*got \[1\.0\]"),
    "a probability": (says(3, E, logprobs=(0.25, -1.0)), r"at most 0.*got \[0\.25\]"),
    # F14: ids that the model does not have, or that were not asked for.
    "beyond the vocabulary": (says(VOCABULARY, E), r"in \[0, 300\) \(got \[300\]\)"),
    "below the vocabulary": (says(-1, E), r"got \[-1\]"),
    "a fraction": (says(1.5, E), "type int.*float"),
    "a truth value": (says(True, E), "type int.*bool"),
    "too many": (says(*[3] * 9, finish_reason=LENGTH), r"at most 8 ids.*got 9"),
    "far too many": (says(*[3] * 100_000, finish_reason=LENGTH), r"got 100000"),
    "stop without an end": (says(3, 3), "has one of the end ids"),
    "stop with nothing": (says(), r"got \[\] last"),
    "length too soon": (says(3, 3, finish_reason=LENGTH), "has all 8 ids.*got 2"),
    "on after the end": (says(3, E, 3, E), "nothing follows an end id.*place 1 of 4"),
    # What no record takes.
    "a string": (lambda _: "hello", "must return a Completion.*str 'hello'"),
    "nothing": (lambda _: None, "must return a Completion.*NoneType"),
    "text that is a list": (lambda truth: replace(truth, text=["hello"]), "'text' must be"),
    "reason that is a word": (lambda t: replace(t, finish_reason="stop"), "'finish_reason'"),
    "tokens that are ids": (lambda truth: replace(truth, tokens=(3, E)), "'tokens' must be"),
}


@pytest.mark.parametrize("lie", LIES)
def test_f14_f3_a_lie_is_a_failure_of_the_policy_and_has_no_outcome(lie: str) -> None:
    tell, problem = LIES[lie]
    episode = play(Liar(tell))
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.where) == (ErrorKind.INFRASTRUCTURE, "policy")
    assert episode.outcome is None
    assert len(episode.turns) == 1  # the true one; nothing of the lie is kept
    message = episode.failure.message
    assert re.search(rf"the policy 'liar' gave what cannot be an answer: .*{problem}", message)


@pytest.mark.parametrize(
    ("truth", "sampling"),
    [
        (says(3, E, logprobs=(-99.0, -0.0)), {}),  # e^-99: 1e-43, which float32 still has
        (says(3, E, logprobs=(5e-5, 0.0)), {}),  # float error of a log-softmax
        (says(VOCABULARY - 1, E), {}),
        (says(*[3] * 8, finish_reason=LENGTH), {}),
        (says(*[3] * 7, E), {}),
        (says(3, 3, text="hellohello"), {"stop": ("oh",)}),
        (lambda truth: replace(truth, tokens=None), {}),
        (lambda truth: replace(truth, tokens=replace(truth.tokens, behavior_logprobs=None)), {}),
    ],
)
def test_f14_what_can_be_passes(truth: Any, sampling: dict[str, Any]) -> None:
    episode = play(Liar(truth), **sampling)
    assert episode.failure is None
    assert episode.outcome is not None
    assert len(episode.turns) >= 2


def test_f14_a_context_that_is_full_ends_a_completion_before_its_bound() -> None:
    request = GenerateRequest(
        episode_id="e",
        turn=0,
        messages=(Message(role="user", content="he"),),
        prompt_ids=(8, 1, 9, 8),
        sampling=Sampling(max_new_tokens=8),
    )
    answer = Completion(text="hehe", finish_reason=LENGTH, tokens=trace(1, 1))

    def hold(context: int | None) -> Completion:
        return checked(answer, request, policy_id="p", renderer=None, max_context_tokens=context)

    assert hold(6) is answer  # 4 + 2
    for context in (5, 7, None):
        with pytest.raises(PolicyError, match="cannot be an answer"):
            hold(context)


def test_f16_half_a_surrogate_is_the_agents_text_and_not_our_failure() -> None:
    # "\ud83d\ude00" are two halves that stand together: one character.
    assert whole_characters("a\ud83d\ude00b\ud83dc") == "a\U0001f600b\ufffdc"
    episode = play(ScriptedPolicy(["a\ud83d", "b"]))
    assert episode.failure is None
    assert episode.turns[0].completion.text == "a\ufffd"


@pytest.mark.parametrize(
    "lie", ["vLLM's sentinel", "beyond the vocabulary", "too many", "a string"]
)
async def test_f14_check_policy_finds_liars(lie: str) -> None:
    report = await check_policy(Liar(LIES[lie][0]))
    assert report.problems, str(report)
