"""The record says who plays, and nobody compares it with who was asked for.

An environment that is registered under an id of its own plays itself, whatever tasks its class
takes from another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

import agentgym
from agentgym.checks.env_under_test import Subject
from agentgym.config import InvalidInputError
from agentgym.env import registry
from agentgym.env.contract import Action, Reply
from agentgym.env.registry import register_env
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.suites import load_suite
from agentgym.envs.games.guess_number import GuessNumberEnv
from agentgym.envs.math.arithmetic import ArithmeticEnv
from agentgym.errors import TaskError
from agentgym.records import Task

GUESS, SUMS = "mine/guess-v0", "mine/sums-v0"


class Guess(GuessNumberEnv):
    """The built-in game, with a reward for each turn."""

    def respond(self, action: Action) -> Reply:
        reply = super().respond(action)
        return Reply(reply.observation, outcome=reply.outcome, rewards={"mine": 1.0})


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(GUESS)(Guess)
    register_env(SUMS, env_kwargs={"levels": [1]})(ArithmeticEnv)
    yield
    for env_id in (GUESS, SUMS):
        registry.unregister_env(env_id)


@pytest.mark.parametrize("env_id", [GUESS, SUMS])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_f51_tasks_are_of_the_environment_that_was_asked_for(env_id: str, split: str) -> None:
    """`Guess` has no splits of its own, arithmetic has: both ways to draw."""
    assert {task.env_id for task in load_suite(env_id).tasks(split, limit=5)} == {env_id}


def test_f51_subclass_plays_itself_and_earns_its_own_rewards() -> None:
    (record,) = agentgym.rollout(GUESS, "expert", env_kwargs={"levels": [1]})
    assert record.env_id == GUESS
    assert all(turn.rewards == {"mine": 1.0} for turn in record.turns)
    assert record.outcome == 1.0


def test_f51_reset_gives_a_task_of_its_own() -> None:
    env = agentgym.make(GUESS)
    task = env.reset(seed=1)[1]["task"]
    assert task.env_id == GUESS
    assert env.reset(seed=1, options={"task": task})[1]["task"] == task


def test_f51_the_check_plays_the_subclass() -> None:
    subject = Subject.of(GUESS, {}, None, episodes_each=2, seed=0)
    assert {task.env_id for task in subject.tasks if task} == {GUESS}


def test_f51_a_suite_refuses_tasks_of_another_environment() -> None:
    other = Task(id="a", env_id="games/guess-number-v0")
    for split in ((other,), GeneratedSplit(generate=lambda _: other)):
        suite = Suite(name="mine/mixed", env_id=GUESS, splits={"train": split})
        with pytest.raises(TaskError, match=r"'a' is of 'games/guess-number-v0'.*'mine/guess-v0'"):
            suite.task("train", 0)


def test_f51_rollout_refuses_tasks_of_another_environment() -> None:
    tasks = load_suite("games/guess-number-v0").tasks("train", limit=1)
    with pytest.raises(InvalidInputError, match=r"cannot pose .*games/guess-number-v0"):
        agentgym.rollout(GUESS, "expert", tasks=tasks)


def test_f51_sample_task_that_returns_no_task_is_named() -> None:
    class Wrong(GuessNumberEnv):
        def sample_task(self, rng: random.Random) -> Task:
            return {"id": "a"}  # type: ignore[return-value]

    env = Wrong()
    with pytest.raises(agentgym.EnvError, match="sample_task must return a Task"):
        env.reset(seed=0)


def test_f51_suite_of_an_environment_keeps_names_of_splits() -> None:
    class Odd(Guess):
        def splits(self) -> Mapping[str, tuple[Task, ...]]:
            return {"held_out": (Task(id="t", env_id="elsewhere/x-v0"),)}

    registry.unregister_env(GUESS)
    register_env(GUESS)(Odd)
    assert load_suite(GUESS).task("held_out", 0).env_id == GUESS
