"""From trajectories to scores: a rubric of weighted functions over a trajectory.

`Rubric.score` is the only way a score comes to be, in training and in evaluation. A rubric is
versioned by its id; scoring again with another rubric appends scores and edits nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.errors import ConfigError
from agentgym.records import Score, Trajectory

RewardFunction = Callable[[Trajectory], float | Awaitable[float]]

SUCCESS = 1.0
"""An outcome counts as solved from here on: a partial reward is not a success (pitfall K1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One weighted function over a trajectory, with values in [0, 1].

    Example:
        Criterion(name="brevity", weight=0.2, function=lambda t: 1.0 if len(t.turns) < 4 else 0.0)
    """

    name: str
    """Unique in its rubric."""
    weight: float
    """Share of the outcome; weights of a rubric add up to 1."""
    function: RewardFunction
    """Reads a trajectory, sync or async."""


def environment_outcome(trajectory: Trajectory) -> float:
    """Return the environment's own word on how far the task was solved; 0 where it gave none."""
    return trajectory.outcome if trajectory.outcome is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """Turns a trajectory into a score: the weighted sum of its criteria.

    Example:
        await Rubric().score(trajectory)   # the environment's outcome, and its named turn rewards
    """

    id: str = "outcome-v1"
    """Name and version; a change of criteria is a new version."""
    criteria: tuple[Criterion, ...] = (
        Criterion(name="outcome", weight=1.0, function=environment_outcome),
    )
    """What counts, with weights that add up to 1."""
    success_threshold: float = SUCCESS
    """Outcome from which a trajectory counts as solved."""
    cache: dict[str, Score] = field(default_factory=dict[str, Score], compare=False, repr=False)
    """Scores by trajectory id: a judge is asked once."""

    def __post_init__(self) -> None:
        total = sum(criterion.weight for criterion in self.criteria)
        if not self.criteria or abs(total - 1.0) > 1e-9:
            raise ConfigError(f"the weights of rubric {self.id!r} must add up to 1 (got {total!r})")

    async def score(self, trajectory: Trajectory) -> Score:
        """Return the score of a trajectory that did not fail.

        Raises:
            ConfigError: If it failed: a failure has no score.
        """
        if trajectory.failure is not None:
            raise ConfigError(f"trajectory {trajectory.id!r} failed and has no score")
        if trajectory.id not in self.cache:
            values = [await _value(criterion, trajectory) for criterion in self.criteria]
            weights = [criterion.weight for criterion in self.criteria]
            outcome = sum(w * v for w, v in zip(weights, values, strict=True))
            self.cache[trajectory.id] = Score(
                trajectory_id=trajectory.id,
                scorer_id=self.id,
                outcome=min(max(outcome, 0.0), 1.0),
                is_success=outcome >= self.success_threshold - 1e-9,
                turn_rewards=turn_rewards(trajectory),
            )
        return self.cache[trajectory.id]


async def _value(criterion: Criterion, trajectory: Trajectory) -> float:
    value = criterion.function(trajectory)
    number = await value if inspect.isawaitable(value) else value
    if not 0 <= number <= 1:
        raise ConfigError(f"criterion {criterion.name!r} must be in [0, 1] (got {number!r})")
    return float(number)


def turn_rewards(trajectory: Trajectory) -> Mapping[str, tuple[float | None, ...]]:
    """Return name -> [turn] the environment's named rewards, None where a turn has none."""
    names = sorted({name for turn in trajectory.turns for name in turn.rewards})
    return {name: tuple(turn.rewards.get(name) for turn in trajectory.turns) for name in names}


async def score_all(trajectories: Sequence[Trajectory], rubric: Rubric) -> tuple[Score, ...]:
    """Return the scores of all trajectories that did not fail and were not cancelled, in order."""
    ended = [t for t in trajectories if t.failure is None and (t.terminated or t.truncated)]
    return tuple(await asyncio.gather(*(rubric.score(trajectory) for trajectory in ended)))
