"""The first half of a step: what a filter wants replaced, and what ends a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.config import load_config
from agentgym.errors import InfrastructureError
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    Group,
    Score,
    Task,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.loop.collect import batch_of, collect, without_refilled
from agentgym.trainers.loop.session import Session
from agentgym.trainers.loop.setup import FRESH
from agentgym.trainers.objective.prepare import prepare
from agentgym.trainers.objective.preset import load_preset
from agentgym.trainers.rollout.buffer import Drawn

SIEVE = {"part": "mismatch", "low": 0.9, "high": 1.1, "veto": 0.0, "statistics": "exclude"}
FLAT = {"part": "zero_variance_group", "tolerance": 0.0, "refill": True, "statistics": "exclude"}
FAILURE = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="the sandbox is gone")


def group(name: str, outcomes: list[float | None], *, version: int = 0) -> Drawn:
    """Return a group of one-turn episodes of two ids; None is an episode that failed."""
    run = VersionRun(version=version, count=2)
    trace = TokenTrace(ids=(5, 6), behavior_logprobs=(-1.0, -1.0), versions=(run,))
    turn = Turn(index=0, prompt_ids=(1,), completion=Completion(text="", tokens=trace))
    trajectories = tuple(
        Trajectory(
            id=f"{name}/{at}",
            group_id=name,
            task_id=name,
            env_id="test/env-v0",
            turns=(turn,) if outcome is not None else (),
            terminated=outcome is not None,
            failure=None if outcome is not None else FAILURE,
        )
        for at, outcome in enumerate(outcomes)
    )
    scores = tuple(
        Score(trajectory_id=f"{name}/{at}", scorer_id="s", outcome=outcome, is_success=outcome == 1)
        for at, outcome in enumerate(outcomes)
        if outcome is not None
    )
    task = Task(id=name, env_id="test/env-v0")
    found = Group(id=name, task_id=name, requested_size=len(outcomes), trajectories=trajectories)
    return Drawn(draw=0, task=task, group=found, scores=scores)


class Rounds:
    """Rollouts that hand out what the test says, a list a round."""

    def __init__(self, *rounds: list[Drawn]) -> None:
        self.left = list(rounds)
        self.next_draw = 0
        self.outstanding: tuple[int, ...] = ()

    def fill(self, step: int, *, replaced: int) -> None:
        pass

    async def take(self, count: int) -> list[Drawn]:
        assert len(self.left[0]) == count
        return self.left.pop(0)

    def consume(self) -> None:
        pass


def session(
    filters: list[dict[str, Any]], rollouts: Rounds | None = None, *, max_staleness: int = 5
) -> Session:
    """Return as much of a session as collecting episodes reads."""
    parts = {
        "preset": load_preset("grpo", {"filters": filters}),
        "config": load_config(
            settings={
                "envs": ["x"],
                "rollout.groups_per_step": 2,
                "rollout.max_staleness": max_staleness,
            }
        ),
        "renderer": SimpleNamespace(pad_id=0),
        "learner": SimpleNamespace(updates=5),
        "rubric": SimpleNamespace(cache={}),
        "folder": SimpleNamespace(append_score=lambda score: None),
        "world": World(),
        "rollouts": rollouts,
    }
    found = Session.__new__(Session)
    for name, part in parts.items():
        setattr(found, name, part)
    return found


def test_a_filter_that_reads_the_proximal_policy_runs_after_the_step_is_collected() -> None:
    # No proximal log-probabilities exist before the learner has looked at the batch.
    kept, flat = group("g", [1.0, 0.0]), group("h", [1.0, 1.0])
    groups, scores = [kept.group, flat.group], [*kept.scores, *flat.scores]
    assert without_refilled(session([SIEVE]), groups, scores) == groups
    assert without_refilled(session([SIEVE, FLAT]), groups, scores) == [kept.group]
    keeps = [SIEVE, {**FLAT, "refill": False}]
    assert without_refilled(session(keeps), groups, scores) == groups


async def test_one_task_that_fails_in_a_refill_does_not_end_the_run() -> None:
    first, flat = group("g", [1.0, 0.0]), group("h", [1.0, 1.0])
    bad, good = group("bad", [None, None]), group("i", [0.0, 1.0])
    rollouts = Rounds([first, flat], [bad], [good])
    episodes, _ = await collect(session([FLAT], rollouts), FRESH)
    assert [one.id for one in episodes.groups] == ["g", "i"]
    assert episodes.discarded == 2
    assert not rollouts.left


async def test_a_step_without_one_episode_ends_the_run() -> None:
    rollouts = Rounds([group("g", [None, None]), group("h", [None])])
    with pytest.raises(InfrastructureError, match=r"all 3 episodes .* the sandbox is gone"):
        await collect(session([], rollouts), FRESH)


def test_stale_reads_the_age_at_the_step_at_hand() -> None:
    # The learner has taken 5 updates: version 3 is 2 behind, version 2 is 3 behind.
    sieve = {"part": "stale", "max_lag": 2, "statistics": "include"}
    drawn = [group("g", [1.0, 0.0], version=3), group("h", [0.0, 1.0], version=2)]
    one = session([sieve])
    scores = [score for each in drawn for score in each.scores]
    batch = batch_of(one, [each.group for each in drawn], scores)
    assert prepare(one.preset, batch).mask.sum(dim=1).tolist() == [2, 2, 0, 0]
