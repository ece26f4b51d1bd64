"""`check_suite`: are the tasks of a suite sound, apart from each other, and graded rightly?"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from typing import Any

from agentgym import registry
from agentgym.checks import episodes
from agentgym.checks.report import Findings, Report, require
from agentgym.checks.subject import has_expert
from agentgym.records import Task
from agentgym.records.codec import dumps, loads
from agentgym.suites import HELD_OUT, GeneratedSplit, Suite, check_leaks, load_suite

WRONG_ANSWERS = ("", "no such answer 7319", "-987654321/7")
"""Answers that no task has; one that a task does have is left out for it."""
_MAX_REPEATED = 8
"""Tasks that are made twice, to see that they are the same."""


def check_suite(
    suite: str | Suite,
    *,
    tasks_each: int = 100,
    graded_each: int = 24,
    seed: int = 0,
    raise_errors: bool = False,
) -> Report:
    """Return what was found about a suite.

    Args:
        suite: Its name, or the suite.
        tasks_each: Tasks looked at of a generated split: the first ones and as many drawn. Of rows
            all are.
        graded_each: Tasks of each split whose grading is tried.
        seed: Which tasks are drawn.
        raise_errors: Raise instead of returning a report with failures.

    Raises:
        TaskError: If there is no such suite.
        ContractError: With `raise_errors`, if anything failed.
    """
    found = load_suite(suite) if isinstance(suite, str) else suite
    findings = Findings()
    splits: dict[str, tuple[Task, ...]] = {}
    for split in found.splits:
        with findings.check(f"tasks of {split}"):
            splits[split] = _tasks(found, split, tasks_each, seed)
            _check_tasks(found, splits[split])
    with findings.check("splits"):
        _check_splits(found, splits)
    with findings.check("source"):
        _check_source(found)
    for split, tasks in splits.items():
        _check_grading(found, split, tasks[:graded_each], findings)
    report = findings.report(found.name)
    return report.raise_if_failed() if raise_errors else report


def _tasks(suite: Suite, split: str, count: int, seed: int) -> tuple[Task, ...]:
    is_generated = isinstance(suite.splits[split], GeneratedSplit)
    first = suite.tasks(split, limit=count if is_generated else None)
    drawn = suite.tasks(split, limit=count, seed=seed)
    again = suite.tasks(split, limit=_MAX_REPEATED, seed=seed)
    require(
        suite.tasks(split, limit=_MAX_REPEATED, seed=seed) == again,
        f"the same draw of {split} gives other tasks a second time",
    )
    for tasks in (first, drawn):
        counts = Counter(task.id for task in tasks)
        twice = [task_id for task_id, number in counts.items() if number > 1]
        require(not twice, f"ids stand more than once in {split}: {twice[:3]!r}")
    return tuple({task.id: task for task in (*first, *drawn)}.values())


def _check_tasks(suite: Suite, tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        require(
            task.env_id == suite.env_id,
            f"{task.id} is of {task.env_id!r}, the suite of {suite.env_id!r}",
        )
        require(loads(dumps(task)) == task, f"{task.id} changes when it is written and read")


def _check_splits(suite: Suite, splits: dict[str, tuple[Task, ...]]) -> None:
    # A suite without `train` is for evaluation only.
    known = sorted(suite.splits)
    require(HELD_OUT in known, f"a suite has the split {HELD_OUT!r} (got {known!r})")
    names = list(splits)
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            check_leaks(splits[one], splits[other])


def _check_source(suite: Suite) -> None:
    listed = [name for name, s in suite.splits.items() if not isinstance(s, GeneratedSplit)]
    require(
        suite.source is not None or not listed,
        f"the rows of {listed!r} need a licence and an origin: add a SOURCE file",
    )


def _check_grading(suite: Suite, split: str, tasks: tuple[Task, ...], findings: Findings) -> None:
    """Give each gold answer, and where a task is solved by acting, act as the expert."""
    with _grader(suite) as env:
        inner = env.unwrapped
        gives_answers = hasattr(inner, "grade") and getattr(inner, "answers_are_final", True)
        answered = [task for task in tasks if task.answers and gives_answers]
        acted = [task for task in tasks if task not in answered]
        if answered:
            with findings.check(f"answers of {split}"):
                for task in answered:
                    _check_answers(env, task)
        if acted and not has_expert(inner):
            findings.skip(f"solutions of {split}", "no final answers, and no expert to act")
        elif acted:
            with findings.check(f"solutions of {split}"):
                for task in acted:
                    outcome = episodes.play(env, episodes.expert, task=task, seed=0).outcome
                    require(outcome > 0, f"{task.id}: the expert's solution is not accepted")


def _check_answers(env: Any, task: Task) -> None:
    for answer in task.answers:
        require(_outcome(env, task, answer) == 1, f"{task.id}: the gold {answer!r} is rejected")
    for answer in WRONG_ANSWERS:
        if answer not in task.answers:
            outcome = _outcome(env, task, answer)
            require(outcome < 1, f"{task.id}: the wrong answer {answer!r} is accepted")


def _outcome(env: Any, task: Task, answer: str) -> float:
    action = episodes.protocol_of(env.unwrapped).format_answer(answer)
    return episodes.play(env, episodes.constant(action), task=task, seed=0, max_turns=1).outcome


@contextlib.contextmanager
def _grader(suite: Suite) -> Generator[Any]:
    env = registry.make(suite.env_id, **suite.env_kwargs)
    try:
        yield env
    finally:
        env.close()
