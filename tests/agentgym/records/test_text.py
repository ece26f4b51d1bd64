"""Class: *text that cannot be written*: half of a surrogate pair, wherever it comes from, is shown
as U+FFFD and fails nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from agentgym.env.registry import register_env, unregister_env
from agentgym.env.tool_env import ToolEnv
from agentgym.policies.base import GenerateRequest
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import Task, ToolResult, Trajectory, serialization
from agentgym.records.text import readable
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.seeding import derive
from agentgym.tool_formats.tools import result_text, tool

ENV_ID = "test/halves-v0"
HALF = "\ud83d"


class Halves(ToolEnv):
    """Has half a pair in everything it says."""

    system_prompt = f"s{HALF}"

    def start(self, task: Task, rng: object) -> str:
        return f"o{HALF}"

    @tool
    def look(self, how: str) -> object:
        """Look."""
        return {"key" + HALF: [how + HALF]} if how == "inside" else how + HALF

    def grade(self, answer: str) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Halves)
    yield
    unregister_env(ENV_ID)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Ünïcode \U0001f600", "Ünïcode \U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),  # both halves make one sign
        ("\ude00\ud83d", "\ufffd\ufffd"),  # in the wrong order
    ],
)
def test_f34_half_a_pair_is_shown_as_one_sign(text: str, shown: str) -> None:
    assert readable(text) == shown
    assert ToolResult(call_id="a", text=text).text == shown
    assert result_text(text) == shown


def test_f34_results_with_halves_inside_are_written() -> None:
    assert result_text([HALF, {HALF: 1}]) == '["\ufffd", {"\ufffd": 1}]'


def test_f34_hashes_and_seeds_take_any_text() -> None:
    one, two = (
        Task(id="t", env_id=ENV_ID, prompt=text, payload={"a": text}) for text in "\ud83d\ude00"
    )
    assert one.content_hash != two.content_hash
    assert derive(HALF) != derive("\ufffd")


def test_f34_episode_with_halves_everywhere_is_played_and_stored() -> None:
    said = ["<look>bare</look>", "<look>inside</look>", "<answer>x</answer>"]

    def say(request: GenerateRequest) -> str:
        for message in request.messages:
            message.content.encode()  # what a tokenizer does
        return said[request.turn]

    policy = ScriptedPolicy(say)

    async def run() -> Trajectory:
        async with Engine(policy) as engine:
            task = Task(id=f"t{HALF}", env_id=ENV_ID, prompt=HALF)
            (group,) = await engine.run_groups([GroupSpec(id="g", task=task, size=1, seed=1)])
            return group.trajectories[0]

    record = asyncio.run(run())
    assert record.failure is None
    assert record.system_prompt.startswith("s\ufffd\nYou can call these tools")
    assert record.initial_observation == "o\ufffd"
    assert record.turns[0].observation == "bare\ufffd"
    assert record.turns[1].observation == '{"key\ufffd": ["inside\ufffd"]}'
    assert record.outcome == 1.0
    assert serialization.loads(serialization.dumps(record)) == record
