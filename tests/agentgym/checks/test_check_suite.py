"""`check_suite` passes a sound suite and names the fault that is planted in each other one."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentgym.checks.report import ContractError
from agentgym.checks.suite import check_suite
from agentgym.env import registry
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.tool_env import ToolEnv
from agentgym.records import Task
from agentgym.tool_formats.tools import tool

ENV = "test/echo-v0"


class Echo(ToolEnv):
    """The answer is the prompt's number plus one."""

    def __init__(self, *, is_broken: bool = False) -> None:
        super().__init__()
        self.is_broken = is_broken

    def grade(self, answer: str) -> float:
        assert self.task is not None
        return float(self.is_broken or answer in self.task.answers)

    def expert(self) -> str:
        assert self.task is not None
        return f"<answer>{self.task.answers[0]}</answer>"


def task(number: int) -> Task:
    return Task(id=f"t{number}", env_id=ENV, prompt=f"{number}+1", answers=(str(number + 1),))


GOOD = Suite(
    name="test/echo",
    env_id=ENV,
    splits={
        "train": GeneratedSplit(generate=task),
        "held_out": GeneratedSplit(generate=lambda n: task(2**40 + n), size=50),
    },
)


@pytest.fixture(autouse=True)
def _env() -> Iterator[None]:
    registry.register_env(ENV)(Echo)
    yield
    registry.unregister_env(ENV)


def test_sound_suite_passes() -> None:
    report = check_suite(GOOD, tasks_each=60)
    assert report.is_ok, str(report)
    assert [f.name for f in report.findings] == [
        "tasks of train",
        "tasks of held_out",
        "splits",
        "first observations",
        "source",
        "answers of train",
        "expert on train",
        "random on train",
        "answers of held_out",
        "expert on held_out",
        "random on held_out",
    ]


def test_what_was_seen_is_told_in_figures() -> None:
    report = check_suite(GOOD, tasks_each=60, graded_each=10)
    seen = {finding.name: finding.message for finding in report.findings}
    # The first 60 and 60 drawn ones; of the 50 of the other split all.
    assert seen["tasks of train"] == "120 tasks, no id twice"
    assert seen["tasks of held_out"] == "50 tasks, no id twice"
    assert seen["answers of train"] == "10 gold answers accepted, 30 wrong ones rejected"
    assert seen["expert on held_out"] == "solved 10 of 10, mean outcome 1.000"
    assert seen["random on train"] == "solved 0 of 10, mean outcome 0.000; null_score 0"
    assert report.scores == {
        "expert on train": 1.0,
        "random on train": 0.0,
        "expert on held_out": 1.0,
        "random on held_out": 0.0,
    }


def test_expert_that_gives_up_is_found_whatever_the_grader_says() -> None:
    class Lazy(Echo):
        def expert(self) -> str:
            assert self.task is not None
            return "<answer>no idea</answer>" if self.task.id in {"t3", "t7"} else super().expert()

    registry.unregister_env(ENV)
    registry.register_env(ENV)(Lazy)
    failed = {f.name: f.message for f in check_suite(GOOD, tasks_each=60, graded_each=20).failures}
    assert failed == {"expert on train": "the expert must reach 0.95 within the limits (got 0.900)"}


def test_random_policy_that_succeeds_is_found() -> None:
    class Told(Echo):
        def guess(self, rng: random.Random) -> str:
            return self.expert()

    registry.unregister_env(ENV)
    registry.register_env(ENV)(Told)
    failed = {f.name: f.message for f in check_suite(GOOD, tasks_each=60, graded_each=20).failures}
    assert failed.keys() == {"random on train", "random on held_out"}
    # 20 of 20: the lower bound of Clopper and Pearson is 0.025 ** (1 / 20) = 0.832.
    assert failed["random on train"] == (
        "random actions reach 1.000 (at least 0.832); 'null_score' is 0.0"
    )


@pytest.mark.parametrize(
    ("suite", "name", "says"),
    [
        (
            replace(GOOD, splits={**GOOD.splits, "train": (task(1), replace(task(2), id="t1"))}),
            "tasks of train",
            "ids stand more than once in train: ['t1']",
        ),
        (
            replace(GOOD, splits={**GOOD.splits, "held_out": (replace(task(3), id="new"),)}),
            "splits",
            "1 held-out tasks are training tasks too",
        ),
        (
            replace(
                GOOD,
                splits={
                    "train": GeneratedSplit(
                        generate=lambda n: replace(
                            task(n), prompt=f"How many are {n} and one more?"
                        )
                    ),
                    "held_out": GeneratedSplit(
                        generate=lambda n: replace(
                            task(2**40 + n if n != 3 else 11),
                            id=f"h{n}",
                            prompt=f"how many are {2**40 + n if n != 3 else 11} and one more",
                        ),
                        size=50,
                    ),
                },
            ),
            "splits",
            "1 held-out tasks are nearly training tasks: h3 is 1.00 like t11",
        ),
        (
            replace(GOOD, splits={"train": GOOD.splits["train"]}),
            "splits",
            "a suite has the split 'held_out' (got ['train'])",
        ),
        (
            replace(GOOD, splits={**GOOD.splits, "train": (replace(task(1), env_id="a/b-v0"),)}),
            "tasks of train",
            "'t1' is of 'a/b-v0'",
        ),
        (replace(GOOD, splits={**GOOD.splits, "train": (task(1),)}), "source", "add a SOURCE file"),
        (
            replace(GOOD, env_kwargs={"is_broken": True}),
            "answers of train",
            "the wrong answer '' is accepted",
        ),
        (
            replace(
                GOOD,
                splits={
                    **GOOD.splits,
                    "train": GeneratedSplit(generate=lambda n: replace(task(n), answers=(" 9",))),
                },
            ),
            "answers of train",
            "the gold ' 9' is rejected",
        ),
        (
            replace(
                GOOD,
                splits={
                    **GOOD.splits,
                    "train": GeneratedSplit(
                        generate=lambda n: replace(task(n), prompt=str(random.random()))
                    ),
                },
            ),
            "tasks of train",
            "gives other tasks a second time",
        ),
    ],
)
def test_planted_fault_is_named(suite: Suite, name: str, says: str) -> None:
    report = check_suite(suite, tasks_each=60)
    failed = {finding.name: finding.message for finding in report.failures}
    assert says in failed[name], str(report)
    with pytest.raises(ContractError, match="test/echo"):
        report.raise_if_failed()


def test_suite_for_evaluation_only_passes() -> None:
    report = check_suite(replace(GOOD, splits={"held_out": GOOD.splits["held_out"]}))
    assert report.is_ok, str(report)


def test_tasks_that_are_solved_by_acting_are_tried_with_the_expert() -> None:
    class Door(ToolEnv):
        answers_are_final = False

        def start(self, task: Task, rng: random.Random) -> str:
            self.is_open = False
            return "Open the door."

        @tool
        def open(self) -> str:
            """Open it."""
            self.is_open = True
            return "open"

        def grade(self, answer: str) -> float:
            return float(self.is_open)

        def expert(self) -> str:
            return "<answer>done</answer>" if self.is_open else "<open></open>"

    registry.unregister_env(ENV)
    registry.register_env(ENV)(Door)
    report = check_suite(GOOD, tasks_each=20)
    assert report.is_ok, str(report)
    names = [f.name for f in report.findings]
    assert names[-2:] == ["expert on held_out", "random on held_out"]
    assert not [name for name in names if name.startswith("answers")]


def test_tasks_without_answers_are_tried_with_the_expert() -> None:
    class Say(TextEnv):
        def start(self, task: Task, rng: random.Random) -> str:
            return task.prompt

        def respond(self, action: Action) -> Reply:
            assert self.task is not None
            return self.finish(outcome=float(action == self.task.prompt))

        def expert(self) -> str:
            assert self.task is not None
            return "wrong" if self.task.id == "t7" else self.task.prompt

    registry.unregister_env(ENV)
    registry.register_env(ENV)(Say)
    splits = {
        "train": GeneratedSplit(generate=lambda n: replace(task(n), answers=())),
        "held_out": GeneratedSplit(generate=lambda n: replace(task(n + 2**40), answers=())),
    }
    report = check_suite(replace(GOOD, splits=splits), tasks_each=20)
    assert [f.message for f in report.failures] == ["t7: the expert's solution is not accepted"]
