"""Identity by recipe instead of by content; a check that cannot see reports success.

Two recipes (seeds) may give one question: what the agent first sees decides, and where it cannot
be seen that is said.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym import TextEnv
from agentgym.checks.report import Verdict
from agentgym.checks.suite import check_suite
from agentgym.cli.main import main
from agentgym.config import InvalidInputError
from agentgym.env import registry
from agentgym.env.first_observations import compare_first_looks
from agentgym.env.registry import register_env
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.suites import LeakError, check_leaks, load_suite
from agentgym.records import Task
from agentgym.runs.preflight import checked_config

ENV = "test/looks-v0"


class OneOfFive(TextEnv):
    """Its task is a seed, its question is the seed modulo 5."""

    def start(self, task: Task, rng: random.Random) -> str:
        seed = int(str(task.payload["seed"]))
        self.number = seed % 5
        return f"What is {self.number} + 1?"

    def respond(self, action: str) -> Any:
        return self.finish(outcome=float(action.strip() == str(self.number + 1)))

    def expert(self) -> str:
        return str(self.number + 1)


class FromEpisodeSeed(OneOfFive):
    """Draws its question from the generator, and not from the task."""

    def start(self, task: Task, rng: random.Random) -> str:
        self.number = rng.randrange(5)
        return f"What is {self.number} + 1?"


class Hidden(OneOfFive):
    """Begins in one of two ways, and tells more only by its replies."""

    def start(self, task: Task, rng: random.Random) -> str:
        seed = int(str(task.payload["seed"]))
        self.secret = seed
        return f"Door {seed % 2}: guess."

    def respond(self, action: str) -> Any:
        return f"{len(action) + self.secret % 1000} steps away"

    def expert(self) -> str:
        return str(self.secret)


class AllAlike(Hidden):
    def start(self, task: Task, rng: random.Random) -> str:
        super().start(task, rng)
        return "Guess."


class Answered(AllAlike):
    """All tasks begin alike, and have gold answers, which tell them apart."""

    def sample_task(self, rng: random.Random) -> Task:
        word = rng.choice("abcdefghijklmnopqrstuvwxyz") + rng.choice("abcdefghijklmnopqrstuvwxyz")
        return Task(id=word, env_id=self.env_id, answers=(word,), payload={"seed": 1, "word": word})


class Served(OneOfFive):
    reset_needs = "a server"


class Different(OneOfFive):
    def start(self, task: Task, rng: random.Random) -> str:
        self.number = int(str(task.payload["seed"]))
        return f"What is {self.number} + 1?"


class Broken(OneOfFive):
    def start(self, task: Task, rng: random.Random) -> str:
        raise KeyError("no such thing")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    if ENV in registry.list_envs():
        registry.unregister_env(ENV)


def sides(env_class: type[TextEnv], count: int = 40) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    register_env(ENV)(env_class)
    suite = load_suite(ENV)
    return suite.tasks("train", limit=count), suite.tasks("held_out", limit=count)


@pytest.mark.parametrize("env_class", [OneOfFive, FromEpisodeSeed])
def test_f6_equal_questions_of_different_seeds_are_one_task(env_class: type[TextEnv]) -> None:
    train, held_out = sides(env_class)
    # 5 questions, 40 training tasks: each question is missed with probability (4/5)**40 = 1e-4.
    assert len(compare_first_looks(train, held_out).same) == 40
    with pytest.raises(LeakError, match=r"40 of 40 .* 'What is \d \+ 1\?'.*sample_task"):
        check_leaks(train, held_out)
    assert len(check_leaks(train, held_out, allow=True)) == 40


def test_f6_different_questions_are_different() -> None:
    looks = compare_first_looks(*sides(Different))
    assert (looks.same, looks.compared, looks.unseen) == ((), 40, "")


def test_f6_what_only_replies_tell_is_looked_for() -> None:
    looks = compare_first_looks(*sides(Hidden))
    assert looks.same == ()


def test_f6_gold_answers_tell_equal_openings_apart() -> None:
    train, held_out = sides(Answered)
    looks = compare_first_looks(train, held_out)
    assert (looks.same, looks.compared) == ((), 40)
    again = compare_first_looks(train, train[:3])
    assert [pair.held_out_id for pair in again.same] == [task.id for task in train[:3]]


@pytest.mark.parametrize(
    ("env_class", "why"), [(AllAlike, "begins alike"), (Served, "needs a server")]
)
def test_f6_what_cannot_be_seen_is_said(env_class: type[TextEnv], why: str) -> None:
    train, held_out = sides(env_class)
    looks = compare_first_looks(train, held_out)
    assert (looks.same, looks.compared, looks.asked) == ((), 0, 40)
    assert why in looks.unseen
    report = check_suite(Suite(name="test/looks", env_id=ENV, splits=load_suite(ENV).splits))
    found = next(f for f in report.findings if f.name == "first observations")
    assert (found.verdict, why in found.message) == (Verdict.SKIPPED, True)


def test_f6_looking_has_a_bound_that_is_told() -> None:
    train, held_out = sides(Different)
    ticks = iter(range(10**6))
    looks = compare_first_looks(train, held_out, clock=lambda: float(next(ticks)))
    assert looks.compared < looks.asked
    assert "longer than 5 s" in str(looks)


def test_f6_environments_of_one_side_are_not_looked_at() -> None:
    train, held_out = sides(Different)
    others = [Task(id="x", env_id="test/not-registered-v0")]
    assert compare_first_looks(others, held_out).unseen == ""
    assert len(train) == 40


def test_f6_validate_and_preflight_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    sides(OneOfFive)
    assert main(["tasks", "validate", ENV]) == 1
    assert "show the agent what a training task shows" in capsys.readouterr().out
    with pytest.raises(InvalidInputError, match="show the agent what a training task shows"):
        checked_config(settings={"envs": [ENV], "policy": "tiny"})


def test_b7_reset_that_raises_names_environment_function_file_and_line() -> None:
    sides(Broken)
    with pytest.raises(InvalidInputError) as caught:
        checked_config(settings={"envs": [ENV], "policy": "tiny", "warmstart": {"steps": 0}})
    text = str(caught.value)
    assert "KeyError: 'no such thing'" in text
    assert f"raised in {ENV}, start (" in text
    line = Broken.start.__code__.co_firstlineno + 1
    assert f"test_first_observations.py:{line})" in text


def test_generated_split_of_one_side_is_left_alone() -> None:
    register_env(ENV)(Different)
    task = Task(id="a", env_id=ENV, payload={"seed": 3})
    suite = Suite(
        name="test/one", env_id=ENV, splits={"held_out": GeneratedSplit(generate=lambda _: task)}
    )
    assert check_leaks((), suite.tasks("held_out", limit=1)) == ()
