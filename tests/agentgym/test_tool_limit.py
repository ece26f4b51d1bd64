"""Class: *limits that eat evidence*: what a limit keeps from running is told and recorded, and the
agent gets a turn to answer with what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from agentgym.env.registry import register_env, unregister_env
from agentgym.env.tool_env import ToolEnv
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import ErrorKind, StopReason, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.tool_formats.tagged_json import TaggedJson
from agentgym.tool_formats.tools import tool

ENV_ID = "test/limited-v0"
NOT_RUN = "not run: limit of 2 calls reached"
BROKEN = "<tool_call>{oops}</tool_call>"


class Limited(ToolEnv):
    """Says back what it was asked, and remembers it."""

    protocol = TaggedJson()
    ran: list[str]

    def start(self, task: Task, rng: object) -> str:
        self.ran = []
        return "go"

    @tool
    def say(self, text: str) -> str:
        """Say it."""
        self.ran.append(text)
        return f"heard {text}"

    def grade(self, answer: str) -> float:
        return float(answer == " ".join(self.ran))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Limited)
    yield
    unregister_env(ENV_ID)


def say(*words: str) -> str:
    return "".join(TaggedJson().format_call("say", {"text": word}) for word in words)


def answer(text: str) -> str:
    return TaggedJson().format_answer(text)


def play(script: Sequence[str], limits: Limits) -> Trajectory:
    async def run() -> Trajectory:
        async with Engine(ScriptedPolicy(script)) as engine:
            task = Task(id="t", env_id=ENV_ID)
            spec = GroupSpec(id="g", task=task, size=1, seed=1, limits=limits)
            (group,) = await engine.run_groups([spec])
            return group.trajectories[0]

    return asyncio.run(run())


def test_f30_call_beyond_the_limit_is_told_and_the_answer_still_counts() -> None:
    record = play([say("a", "b", "c"), answer("a b")], Limits(max_tool_calls=2))
    first = record.turns[0]
    assert [result.text for result in first.tool_results] == ["heard a", "heard b", NOT_RUN]
    assert [result.error_kind for result in first.tool_results] == [None, None, ErrorKind.LIMIT]
    assert [call.error for call in first.tool_calls] == [None, None, NOT_RUN]
    assert NOT_RUN in first.observation
    assert (record.outcome, record.stop_reason) == (1.0, StopReason.TERMINATED)


def test_f30_only_an_answer_counts_in_the_last_turn() -> None:
    record = play([say("a", "b"), say("c")], Limits(max_tool_calls=2))
    assert [result.text for turn in record.turns for result in turn.tool_results] == [
        "heard a",
        "heard b",
        NOT_RUN,
    ]
    assert (record.stop_reason, record.truncated) == (StopReason.MAX_TOOL_CALLS, True)
    assert record.outcome == 0.0


def test_f30_calls_over_several_turns_are_counted_together() -> None:
    script = [say("a"), say("b", "c"), answer("a b")]
    record = play(script, Limits(max_tool_calls=2))
    assert [result.text for result in record.turns[1].tool_results] == ["heard b", NOT_RUN]
    assert record.outcome == 1.0


def test_f30_call_that_cannot_be_read_uses_up_nothing() -> None:
    record = play([say("a") + BROKEN + say("b"), answer("a b")], Limits(max_tool_calls=2))
    results = record.turns[0].tool_results
    assert [result.error_kind for result in results] == [None, ErrorKind.FORMAT, None]
    assert record.outcome == 1.0


def test_f30_last_turn_stays_within_the_limit_of_turns() -> None:
    record = play([say("a", "b")], Limits(max_tool_calls=2, max_turns=1))
    assert (len(record.turns), record.stop_reason) == (1, StopReason.MAX_TURNS)


def test_f30_without_a_limit_all_calls_run() -> None:
    record = play([say("a", "b", "c"), answer("a b c")], Limits())
    assert record.outcome == 1.0
