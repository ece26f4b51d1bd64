"""From attempts to a result: headline, pass@k, breakdowns and warnings. Nothing runs here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import agentgym
from agentgym.evaluation.result import Attempt, Breakdown, EvaluationResult, Posed, task_means
from agentgym.evaluation.signals import failure_warning, length_warning
from agentgym.evaluation.statistics import Interval, mean_interval, pass_at_k
from agentgym.records import ErrorKind, Group, Sampling, Score, Task, Trajectory
from agentgym.redaction import redact

_PACKAGES = ("torch", "transformers", "vllm", "tokenizers", "gymnasium")


_HASH_DIGITS = 12


def task_key(task: Task) -> str:
    """Return what names a task across suites."""
    return f"{task.suite}/{task.id}" if task.suite else task.id


def attempts_of(
    task: Task, group: Group, scores: Mapping[str, Score], *, size: int
) -> tuple[Attempt, ...]:
    """Return one attempt for each episode asked for; of its tries the last one counts.

    Args:
        task: What was asked.
        group: All records of the task's episodes, those tried again too.
        scores: Trajectory id -> its score; a failed one has none.
        size: Episodes asked for.
    """
    last: dict[str, Trajectory] = {}
    for trajectory in group.trajectories:
        suffix = f"-a{trajectory.attempt}"
        episode = trajectory.id.removesuffix(suffix) if trajectory.attempt else trajectory.id
        if episode not in last or last[episode].attempt < trajectory.attempt:
            last[episode] = trajectory
    found = [
        attempt_of(task, trajectory, scores.get(trajectory.id), index=index)
        for index, trajectory in enumerate(last.values())
    ]
    missing = range(len(found), size)
    return (*found, *(_never_ran(task, index) for index in missing))


def attempt_of(task: Task, trajectory: Trajectory, score: Score | None, *, index: int) -> Attempt:
    """Return how one episode counts. Its outcome is its score's, never a sum of rewards."""
    failure = trajectory.failure.kind.value if trajectory.failure is not None else None
    if failure is None and score is None:  # cancelled: no outcome, and not the agent's doing
        failure = ErrorKind.INFRASTRUCTURE.value
    rewards: Counter[str] = Counter()
    for turn in trajectory.turns:
        rewards.update(dict(turn.rewards))
    return Attempt(
        task=task_key(task),
        index=index,
        trajectory_id=trajectory.id,
        outcome=score.outcome if score is not None else None,
        is_success=score is not None and score.is_success,
        failure=failure,
        failure_message=trajectory.failure.message if trajectory.failure is not None else "",
        stop_reason=trajectory.stop_reason.value,
        is_cut_off=any(turn.completion.finish_reason == "length" for turn in trajectory.turns),
        turns=len(trajectory.turns),
        tokens=sum(
            len(turn.completion.tokens.ids)
            for turn in trajectory.turns
            if turn.completion.tokens is not None
        ),
        rewards=dict(rewards),
        prompt_hash=_prompt_hash(trajectory.system_prompt),
    )


def _prompt_hash(system_prompt: str) -> str:
    digest = hashlib.sha256(system_prompt.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:_HASH_DIGITS]


def _never_ran(task: Task, index: int) -> Attempt:
    return Attempt(
        task=task_key(task),
        index=index,
        trajectory_id="",
        outcome=None,
        is_success=False,
        failure=ErrorKind.INFRASTRUCTURE.value,
        failure_message="it never started",
        stop_reason="not_started",
    )


def summarise(
    attempts: Sequence[Attempt],
    tasks: Sequence[Task],
    *,
    name: str,
    step: int | None = None,
    policy_id: str,
    policy_version: int = 0,
    suites: Sequence[str],
    split: str,
    attempts_per_task: int,
    sampling: Sampling,
    seed: int,
    scorer_id: str,
) -> EvaluationResult:
    """Return the result of all attempts at all tasks.

    Raises:
        ValueError: If there is no attempt.
    """
    headline = _whole(attempts)
    return EvaluationResult(
        name=name,
        step=step,
        policy_id=policy_id,
        policy_version=policy_version,
        suites=tuple(suites),
        posed=_posed(tasks),
        split=split,
        attempts_per_task=attempts_per_task,
        sampling=sampling,
        seed=seed,
        scorer_id=scorer_id,
        outcome=headline.outcome,
        success=headline.success,
        pass_at=pass_at(attempts),
        pooled_outcome=math.fsum(attempt.value for attempt in attempts) / len(attempts),
        outcome_without_failures=without_failures(attempts),
        counts=_counts(attempts),
        breakdowns=_breakdowns(attempts, tasks),
        attempts=tuple(attempts),
        warnings=_warnings(attempts),
        environment=installed_versions(),
    )


def _posed(tasks: Sequence[Task]) -> dict[str, Posed]:
    """Return suite -> the environment of its tasks, with the arguments that all of them have."""
    by_suite: dict[str, list[Task]] = {}
    for task in tasks:
        by_suite.setdefault(_suite_of(task), []).append(task)
    found: dict[str, Posed] = {}
    for suite, of_suite in by_suite.items():
        common = {
            key: value
            for key, value in of_suite[0].env_kwargs.items()
            if all(key in t.env_kwargs and t.env_kwargs[key] == value for t in of_suite)
        }
        found[suite] = Posed(env_id=of_suite[0].env_id, kwargs=redact(common))
    return found


def _suite_of(task: Task) -> str:
    return task.suite or task.env_id


def _whole(attempts: Sequence[Attempt]) -> Breakdown:
    headline = _headline(attempts)
    if headline is None:
        raise ValueError("an evaluation needs one attempt or more (got none)")
    return headline


def _headline(attempts: Sequence[Attempt]) -> Breakdown | None:
    outcome = mean_interval(list(task_means(tuple(attempts)).values()))
    success = mean_interval([solved / count for count, solved in _tallies(attempts).values()])
    if outcome is None or success is None:
        return None
    failures = sum(attempt.failure is not None for attempt in attempts)
    return Breakdown(outcome=outcome, success=success, failures=failures)


def _tallies(attempts: Iterable[Attempt]) -> dict[str, tuple[int, int]]:
    """Return task -> (attempts, solved ones)."""
    tallies: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        count, solved = tallies.get(attempt.task, (0, 0))
        tallies[attempt.task] = (count + 1, solved + attempt.is_success)
    return tallies


def pass_at(attempts: Sequence[Attempt]) -> dict[int, Interval]:
    """Return k -> pass@k for k = 1, 2, 4, ... up to the attempts that every task has.

    Computed for each task and then averaged over tasks; a k that one task has fewer attempts for
    is left out.
    """
    tallies = list(_tallies(attempts).values())
    found: dict[int, Interval] = {}
    most = min((count for count, _ in tallies), default=0)
    for k in sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most}):
        values = [pass_at_k(count, solved, k) for count, solved in tallies] if k else []
        interval = mean_interval([value for value in values if value is not None])
        if interval is not None:
            found[k] = interval
    return found


def without_failures(attempts: Sequence[Attempt]) -> Interval | None:
    """Return the mean over attempts that did not fail: conditional, not the headline."""
    kept = tuple(attempt for attempt in attempts if attempt.failure is None)
    return mean_interval(list(task_means(kept).values()))


def _counts(attempts: Sequence[Attempt]) -> dict[str, int]:
    counts = {
        "tasks": len({attempt.task for attempt in attempts}),
        "attempts": len(attempts),
        "solved": sum(attempt.is_success for attempt in attempts),
        "cut_off": sum(attempt.is_cut_off for attempt in attempts),
        "failed": sum(attempt.failure is not None for attempt in attempts),
    }
    for kind in (ErrorKind.INFRASTRUCTURE, ErrorKind.TIMEOUT):
        counts[f"failed:{kind}"] = sum(attempt.failure == kind for attempt in attempts)
    stops = Counter(attempt.stop_reason for attempt in attempts if attempt.stop_reason)
    return counts | {f"stop:{reason}": count for reason, count in sorted(stops.items())}


def _breakdowns(attempts: Sequence[Attempt], tasks: Sequence[Task]) -> dict[str, Breakdown]:
    """Return the headline by suite, level and tag, where there is more than one of a kind.

    Levels and tags of different suites have nothing in common, so they are not put together.
    """
    is_one = len({_suite_of(task) for task in tasks}) < 2
    labels = {task_key(task): _labels(task, "" if is_one else _suite_of(task)) for task in tasks}
    names = {label for of_task in labels.values() for label in of_task}
    kinds = Counter(name.rpartition("=")[0] for name in names)
    found: dict[str, Breakdown] = {}
    # Suites first: the parts of each stand below them.
    for name in sorted(names, key=lambda name: (not name.startswith("suite="), name)):
        if kinds[name.rpartition("=")[0]] == 1:
            continue
        part = _headline([a for a in attempts if name in labels.get(a.task, ())])
        if part is not None:
            found[name] = part
    return found


def _labels(task: Task, suite: str) -> frozenset[str]:
    within = f"{suite} " if suite else ""
    level = f"{task.difficulty:g}" if task.difficulty is not None else None
    # A tag `level-2` would be the same tasks under another name.
    tags = [tag for tag in task.tags if level is None or tag != f"level-{level}"]
    levels = [f"{within}level={level}"] if level is not None else []
    return frozenset({f"suite={_suite_of(task)}", *levels, *(f"{within}tag={tag}" for tag in tags)})


def _warnings(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    ran = [attempt for attempt in attempts if attempt.failure is None]
    found = (
        length_warning([a.is_cut_off for a in ran], [a.value for a in ran]),
        failure_warning(len(attempts) - len(ran), len(attempts)),
    )
    return tuple(text for text in found if text is not None)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    versions = {"python": platform.python_version(), "agentgym": agentgym.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
