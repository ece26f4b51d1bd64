"""`check_suite`: are a suite's tasks sound, apart from each other, graded rightly, solvable?"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from agentgym.checks.env_under_test import has_expert
from agentgym.checks.report import Finding, Findings, Report, Verdict, require
from agentgym.checks.reward_hacking import LUCK, expert_score, require_expert
from agentgym.env import players, registry
from agentgym.env.decontamination import near_duplicates
from agentgym.env.first_observations import compare_first_looks
from agentgym.env.players import Actor
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.suites import content_leaks, load_suite
from agentgym.env.task_files import HELD_OUT
from agentgym.records import Task
from agentgym.records.serialization import dumps, loads
from agentgym.rollouts.scoring import SUCCESS

WRONG_ANSWERS = ("", "no such answer 7319", "-987654321/7")
"""Answers that no task has; one that a task does have is left out for it."""
_MOST_SEEN = 16
"""Other tasks whose answers and first moves the random policy knows."""
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
    """Return what was found about a suite; the mean outcomes of its players are the scores.

    Args:
        suite: Its name, or the suite.
        tasks_each: Tasks looked at of a generated split: the first ones and as many drawn. Of rows
            all are.
        graded_each: Tasks of each split whose grading is tried, and which expert and random policy
            play.
        seed: Which tasks are drawn.
        raise_errors: Raise instead of returning a report with failures.

    Raises:
        TaskError: If there is no such suite.
        ContractError: With `raise_errors`, if anything failed.
    """
    found = load_suite(suite) if isinstance(suite, str) else suite
    findings = Findings()
    scores: dict[str, float] = {}
    splits: dict[str, tuple[Task, ...]] = {}
    for split in found.splits:
        with findings.check(f"tasks of {split}") as check:
            splits[split] = _tasks(found, split, tasks_each, seed)
            _check_tasks(splits[split])
            check.note(f"{len(splits[split])} tasks, no id twice")
    with findings.check("splits") as check:
        _check_splits(found, splits)
        check.note("none of one is in another, nor nearly")
    _check_first_looks(splits, findings)
    with findings.check("source") as check:
        _check_source(found)
        check.note(found.source.licence if found.source is not None else "generated")
    for split, tasks in splits.items():
        with _grader(found) as env:
            played, others = tasks[:graded_each], tasks[graded_each:] or tasks
            _check_grading(env, split, played, findings)
            _check_expert(env, split, played, findings, scores)
            seen = others[:_MOST_SEEN]
            _check_random(env, split, played, seen, findings=findings, scores=scores)
    report = findings.report(found.name, scores)
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


def _check_tasks(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        require(loads(dumps(task)) == task, f"{task.id} changes when it is written and read")


def _check_first_looks(splits: dict[str, tuple[Task, ...]], findings: Findings) -> None:
    """Compare what the agent first sees; what cannot be compared is no success."""
    name = "first observations"
    held_out = splits.get(HELD_OUT, ())
    others = [task for split, tasks in splits.items() if split != HELD_OUT for task in tasks]
    looks = None
    with findings.check(name) as check:
        looks = compare_first_looks(others, held_out)
        require(not looks.same, str(looks))
        check.note(str(looks) or "there is one split only")
    if looks is not None and not looks.same and not looks.compared:
        findings.found[-1] = Finding(name=name, verdict=Verdict.SKIPPED, message=str(looks))


def _check_splits(suite: Suite, splits: dict[str, tuple[Task, ...]]) -> None:
    # A suite without `train` is for evaluation only.
    known = sorted(suite.splits)
    require(HELD_OUT in known, f"a suite has the split {HELD_OUT!r} (got {known!r})")
    names = list(splits)
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            content_leaks(splits[one], splits[other])
    for name in names:
        if name != HELD_OUT:
            _check_near(splits[name], splits[HELD_OUT])


def _check_near(train: Sequence[Task], held_out: Sequence[Task]) -> None:
    near = near_duplicates(train, held_out)
    shown = ", ".join(
        f"{one.held_out_id} is {one.similarity:.2f} like {one.train_id}" for one in near[:3]
    )
    require(not near, f"{len(near)} held-out tasks are nearly training tasks: {shown}")


def _check_source(suite: Suite) -> None:
    listed = [name for name, s in suite.splits.items() if not isinstance(s, GeneratedSplit)]
    require(
        suite.source is not None or not listed,
        f"the rows of {listed!r} need a licence and an origin: add a SOURCE file",
    )


def _check_grading(env: Any, split: str, tasks: Sequence[Task], findings: Findings) -> None:
    """Give each gold answer, and wrong ones."""
    answered = [task for task in tasks if _is_answered(env, task)]
    if not answered:
        if not has_expert(env, tasks[0]):
            findings.skip(f"answers of {split}", "no final answers, and no expert to act")
        return
    with findings.check(f"answers of {split}") as check:
        wrong = sum(_check_answers(env, task) for task in answered)
        gold = sum(len(task.answers) for task in answered)
        check.note(f"{gold} gold answers accepted, {wrong} wrong ones rejected")


def _is_answered(env: Any, task: Task) -> bool:
    inner = env.unwrapped
    is_final = getattr(inner, "answers_are_final", True)
    return bool(task.answers) and hasattr(inner, "grade") and bool(is_final)


def _check_expert(
    env: Any, split: str, tasks: Sequence[Task], findings: Findings, scores: dict[str, float]
) -> None:
    name = f"expert on {split}"
    if not has_expert(env, tasks[0]):
        findings.skip(name, "the environment ships no scripted expert")
        return
    with findings.check(name) as check:
        outcomes = _outcomes(env, players.expert, tasks)
        scores[name] = sum(outcomes) / len(outcomes)
        for task, outcome in zip(tasks, outcomes, strict=True):
            # Of what is solved by acting, the expert's solution is the gold answer.
            is_accepted = outcome > 0 or _is_answered(env, task)
            require(is_accepted, f"{task.id}: the expert's solution is not accepted")
        require_expert(scores[name], expert_score(env.unwrapped))
        check.note(_seen(outcomes))


def _check_random(
    env: Any,
    split: str,
    tasks: Sequence[Task],
    others: Sequence[Task],
    *,
    findings: Findings,
    scores: dict[str, float],
) -> None:
    """Play without looking: the environment's own guesses, else well-formed actions.

    Args:
        env: The environment.
        split: Name of the split.
        tasks: What is played.
        others: Tasks whose answers and first moves are known to who guesses.
        findings: Gets the finding.
        scores: Gets the mean outcome.
    """
    name = f"random on {split}"
    with findings.check(name) as check:
        outcomes = _outcomes(env, _guesser(env, others), tasks)
        scores[name] = sum(outcomes) / len(outcomes)
        null_score = float(getattr(env.unwrapped, "null_score", 0.0))
        low, _ = players.exact_bounds(sum(outcomes), len(outcomes))
        require(
            low <= max(null_score, LUCK),
            f"random actions reach {scores[name]:.3f} (at least {low:.3f}); 'null_score' is "
            f"{null_score}",
        )
        check.note(f"{_seen(outcomes)}; null_score {null_score:g}")


def _guesser(env: Any, others: Sequence[Task]) -> Actor:
    inner = env.unwrapped
    if hasattr(inner, "guess"):
        return lambda env, observation, rng: str(env.guess(rng))
    moves: list[str] = []
    if has_expert(env, others[0]):
        for task in others:
            env.reset(seed=0, options={"task": task})
            moves.append(inner.expert())
    answers = [answer for task in others if _is_answered(env, task) for answer in task.answers]
    return players.random_well_formed(answers, moves)


def _outcomes(env: Any, actor: Actor, tasks: Sequence[Task]) -> list[float]:
    return [
        players.play(env, actor, task=task, seed=number).outcome
        for number, task in enumerate(tasks)
    ]


def _seen(outcomes: Sequence[float]) -> str:
    solved = sum(outcome >= SUCCESS for outcome in outcomes)
    mean = sum(outcomes) / len(outcomes)
    return f"solved {solved} of {len(outcomes)}, mean outcome {mean:.3f}"


def _check_answers(env: Any, task: Task) -> int:
    """Return the number of wrong answers that were tried."""
    for answer in task.answers:
        require(_outcome(env, task, answer) == 1, f"{task.id}: the gold {answer!r} is rejected")
    wrong = [answer for answer in WRONG_ANSWERS if answer not in task.answers]
    for answer in wrong:
        outcome = _outcome(env, task, answer)
        require(outcome < 1, f"{task.id}: the wrong answer {answer!r} is accepted")
    return len(wrong)


def _outcome(env: Any, task: Task, answer: str) -> float:
    action = players.protocol_of(env.unwrapped).format_answer(answer)
    return players.play(env, players.constant(action), task=task, seed=0, max_turns=1).outcome


@contextlib.contextmanager
def _grader(suite: Suite) -> Generator[Any]:
    env = registry.make(suite.env_id, **suite.env_kwargs)
    try:
        yield env
    finally:
        env.close()
