"""What an evaluation found: `Attempt`, `EvaluationResult`, and how both are written as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym.errors import RecordError
from agentgym.evaluation.statistics import Interval
from agentgym.records import Json, Sampling

SCHEMA_VERSION = 1

FAILURE_RULE = {
    "model": "the episode's own outcome",
    "format": "the episode's own outcome",
    "truncated": "the outcome that the environment gives the partial episode",
    "timeout": "counts as 0, shown beside the headline",
    "infrastructure": "counts as 0, shown beside the headline",
}
"""How each kind of error enters the headline; written into every result file."""

INTERVAL_RULE = (
    "95 %, clustered by task: Wilson score interval over task means, with Student's t and the "
    "effective number of tasks"
)
"""How the intervals are made; written into every result file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One episode of one task, as evaluation counts it.

    Example:
        Attempt(task="math/arithmetic/t-7", index=0, trajectory_id="...", outcome=1.0,
                is_success=True, stop_reason="terminated", turns=3, tokens=41)
    """

    task: str
    """Suite and id of the task."""
    index: int
    """Which attempt at the task."""
    trajectory_id: str
    """The episode's record; empty if it never started."""
    outcome: float | None
    """How far the task was solved, in [0, 1]; None if the episode failed for another reason."""
    is_success: bool
    """Whether it counts as solved."""
    failure: str | None = None
    """Kind of the failure, `infrastructure` or `timeout`; None if there was none."""
    failure_message: str = ""
    """What was wrong, of a failed attempt."""
    stop_reason: str = ""
    """Why the episode ended."""
    is_cut_off: bool = False
    """True if a completion was cut off at its length limit."""
    turns: int = 0
    """Calls of the policy."""
    tokens: int = 0
    """Sampled tokens."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """name -> sum over the turns of the environment's named rewards."""
    prompt_hash: str = ""
    """First digits of the SHA-256 of the system prompt; empty if the episode never started."""

    @property
    def value(self) -> float:
        """Return what the attempt counts in the headline: a failure counts 0."""
        return self.outcome if self.outcome is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """By which environment the tasks of a suite were posed.

    Example:
        Posed(env_id="math/arithmetic-v0", kwargs={"instructions": False})
    """

    env_id: str
    """Its id, with the version."""
    kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments that all tasks have in common; secrets redacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The headline of some of the tasks."""

    outcome: Interval
    """Mean outcome."""
    success: Interval
    """Share solved."""
    failures: int
    """Attempts that failed for a reason which is not the agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """An evaluation with what is needed to repeat and to judge it."""

    name: str
    """Such as `step-000100`."""
    step: int | None = None
    """Training step after which it was made; None outside of training."""
    policy_id: str
    """Who acted."""
    policy_version: int = 0
    """Learner updates behind the weights."""
    suites: tuple[str, ...]
    """What the tasks were taken from."""
    posed: Mapping[str, Posed] = field(default_factory=dict[str, Posed])
    """Suite -> its environment; empty in files that older versions wrote."""
    split: str
    """Which split of them."""
    attempts_per_task: int
    """Episodes asked for of each task."""
    sampling: Sampling
    """How turns were drawn: evaluation's own, never training's."""
    seed: int
    """Seed of the choice of tasks and of the episodes."""
    scorer_id: str
    """Who scored."""
    outcome: Interval
    """Mean over tasks of the mean outcome over attempts; every attempted task counts."""
    success: Interval
    """Mean over tasks of the share of attempts that solve it."""
    pass_at: Mapping[int, Interval]
    """k -> chance that one of k attempts solves a task; absent where a task has fewer attempts."""
    pooled_outcome: float
    """Mean over all attempts, whatever their task. Not the headline."""
    outcome_without_failures: Interval | None
    """Mean over the attempts that did not fail, of the tasks that have one. Not the headline."""
    counts: Mapping[str, int]
    """Tasks, attempts, solved, cut_off and failed attempts; stop reasons as `stop:...`."""
    breakdowns: Mapping[str, Breakdown]
    """`level=2`, `tag=...`, `suite=...` -> the headline of those tasks."""
    attempts: tuple[Attempt, ...]
    """One for each episode asked for, in order."""
    warnings: tuple[str, ...] = ()
    """What a reader of the headline must know."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """Versions of what it ran on."""

    def task_means(self) -> dict[str, float]:
        """Return task -> mean outcome over its attempts, failures as 0."""
        return task_means(self.attempts)

    def commonest_failure(self) -> tuple[str, int] | None:
        """Return what was wrong most often with failed attempts, and how often; None if nothing."""
        messages = Counter(one.failure_message for one in self.attempts if one.failure_message)
        return messages.most_common(1)[0] if messages else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, with the rules by which it was made."""
        tree = dataclasses.asdict(self)
        tree["pass_at"] = {str(k): value for k, value in tree["pass_at"].items()}
        rules = {"failures": FAILURE_RULE, "intervals": INTERVAL_RULE}
        return {"schema": SCHEMA_VERSION, "rules": rules, **tree}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> EvaluationResult:
        """Return the result that `to_dict` gave.

        Raises:
            RecordError: If it is of another schema version or has other fields.
        """
        if tree.get("schema") != SCHEMA_VERSION:
            raise RecordError(
                f"an evaluation of schema version {SCHEMA_VERSION} is needed "
                f"(got {tree.get('schema')!r})"
            )
        fields = {key: value for key, value in tree.items() if key not in {"schema", "rules"}}
        try:
            return cls(**{**fields, **_typed(fields)})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise RecordError(f"this is no evaluation: {error}") from error


def task_means(attempts: tuple[Attempt, ...]) -> dict[str, float]:
    """Return task -> mean of what its attempts count."""
    values: dict[str, list[float]] = {}
    for attempt in attempts:
        values.setdefault(attempt.task, []).append(attempt.value)
    return {task: sum(of_task) / len(of_task) for task, of_task in values.items()}


def _typed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose types JSON does not keep."""
    without = fields["outcome_without_failures"]
    sampling: dict[str, Any] = {**fields["sampling"], "stop": tuple(fields["sampling"]["stop"])}
    return {
        "suites": tuple(fields["suites"]),
        "posed": {name: Posed(**posed) for name, posed in fields.get("posed", {}).items()},
        "sampling": Sampling(**sampling),
        "outcome": Interval(**fields["outcome"]),
        "success": Interval(**fields["success"]),
        "pass_at": {int(k): Interval(**value) for k, value in fields["pass_at"].items()},
        "outcome_without_failures": Interval(**without) if without is not None else None,
        "breakdowns": {
            name: Breakdown(
                outcome=Interval(**part["outcome"]),
                success=Interval(**part["success"]),
                failures=part["failures"],
            )
            for name, part in fields["breakdowns"].items()
        },
        "attempts": tuple(Attempt(**attempt) for attempt in fields["attempts"]),
        "warnings": tuple(fields["warnings"]),
    }
