# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""Who leaves a step still counts in what is said of it. Class of faults: survivorship."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from types import SimpleNamespace

from agentgym.config import load_config
from agentgym.records import (
    Completion,
    Group,
    Score,
    StopReason,
    Task,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.loop.collect import batch_of, collect, episode_metrics
from agentgym.trainers.loop.run_preset import say_where_beliefs_are_missing
from agentgym.trainers.loop.session import Session
from agentgym.trainers.loop.setup import FRESH
from agentgym.trainers.objective.prepare import apply_filters, prepare
from agentgym.trainers.objective.preset import load_preset
from agentgym.trainers.rollout.buffer import Drawn

FLAT = {"part": "zero_variance_group", "tolerance": 0.0, "refill": True, "statistics": "exclude"}


def episode(name: str, group: str, *, version: int, turns: int = 1, tokens: int = 2) -> Trajectory:
    run = VersionRun(version=version, count=tokens)
    trace = TokenTrace(ids=(5,) * tokens, behavior_logprobs=(-1.0,) * tokens, versions=(run,))
    return Trajectory(
        id=name,
        group_id=group,
        task_id=group,
        env_id="e",
        turns=tuple(
            Turn(
                index=at,
                parent=at - 1 if at else None,
                prefix_length=at * (tokens + 1),
                prompt_ids=(1,),
                completion=Completion(text="", tokens=trace),
            )
            for at in range(turns)
        ),
        terminated=True,
        stop_reason=StopReason.TERMINATED,
    )


def drawn(name: str, members: list[tuple[float, int, int]], **rewards: Any) -> Drawn:
    """A group of (outcome, version, turns) each; `rewards` by name, one list a member."""
    episodes = tuple(
        episode(f"{name}-e{at}", name, version=version, turns=turns)
        for at, (_, version, turns) in enumerate(members)
    )
    scores = tuple(
        Score(
            trajectory_id=one.id,
            scorer_id="s",
            outcome=outcome,
            is_success=outcome == 1,
            turn_rewards={key: tuple(given[at]) for key, given in rewards.items()},
        )
        for at, (one, (outcome, _, _)) in enumerate(zip(episodes, members, strict=True))
    )
    group = Group(id=name, task_id=name, requested_size=len(members), trajectories=episodes)
    return Drawn(draw=0, task=Task(id=name, env_id="e"), group=group, scores=scores)


class Rounds:
    """Rollouts that hand out what the test says, a list a round."""

    def __init__(self, *rounds: list[Drawn]) -> None:
        self.left = list(rounds)
        self.next_draw = 0
        self.outstanding: tuple[int, ...] = ()

    def fill(self, step: int, *, replaced: int) -> None:
        pass

    async def take(self, count: int) -> list[Drawn]:
        return self.left.pop(0)

    def consume(self) -> None:
        pass


def session(
    preset: str, filters: list[dict[str, Any]], rollouts: Rounds | None = None, **changes: Any
) -> Session:
    """As much of a session as collecting episodes reads: 2 groups a step, at version 5."""
    settings = {"envs": ["x"], "rollout.groups_per_step": 2, "rollout.max_staleness": 2}
    found = Session.__new__(Session)
    for name, part in {
        "preset": load_preset(preset, {"filters": filters, **changes}),
        "config": load_config(settings=settings),
        "renderer": SimpleNamespace(pad_id=0),
        "learner": SimpleNamespace(updates=5),
        "rubric": SimpleNamespace(cache={}),
        "folder": SimpleNamespace(append_score=lambda score: None),
        "world": World(),
        "rollouts": rollouts,
    }.items():
        setattr(found, name, part)
    return found


AT_FIVE = dataclasses.replace(FRESH, policy_version=5)


async def test_f7_members_that_are_too_old_stay_in_the_statistics_with_the_mask_off() -> None:
    """Outcomes 1 1 (fresh), 0 0 (long and stale): A = 1 - 1/2 of the fresh ones, not 1 - 1."""
    mixed = drawn("g0", [(1.0, 5, 1), (1.0, 4, 1), (0.0, 2, 3), (0.0, 1, 3)])
    other = drawn("g1", [(1.0, 5, 1), (0.0, 5, 1)])
    one = session("dr_grpo", [], Rounds([mixed, other]))
    episodes, _ = await collect(one, AT_FIVE)
    assert [t.id for t in episodes.stale] == ["g0-e2", "g0-e3"]
    batch = batch_of(one, episodes.groups, episodes.scores)
    prepared = prepare(one.preset, batch)
    assert prepared.turn_advantages[:4, 0].tolist() == [0.5, 0.5, -0.5, -0.5]
    assert set(batch.rows.trajectory.tolist()) == {0, 1, 4, 5}
    assert batch.table.length.tolist() == [2, 2, 6, 6, 2, 2]
    metrics = episode_metrics(episodes, wall_s=1.0)
    assert metrics["staleness_max"] == 1  # of what is trained on
    assert metrics["stale_episodes"] == 2
    assert metrics["success"] == pytest.approx(3 / 6)
    assert metrics["episodes"] == 6


async def test_f7_success_is_shown_over_every_episode_of_the_step() -> None:
    """g1 is solved by all and replaced by g2: 1 + 2 + 1 of 6, where the kept ones have 2 of 4."""
    first, solved = drawn("g0", [(1.0, 5, 1), (0.0, 5, 1)]), drawn("g1", [(1.0, 5, 1)] * 2)
    last = drawn("g2", [(0.0, 5, 4), (1.0, 5, 1)])
    one = session("grpo", [FLAT], Rounds([first, solved], [last]))
    episodes, _ = await collect(one, AT_FIVE)
    assert [group.id for group in episodes.groups] == ["g0", "g2"]
    metrics = episode_metrics(episodes, wall_s=1.0)
    assert metrics["success"] == metrics["outcome"] == pytest.approx(4 / 6)
    assert metrics["discarded_groups"] == 1
    assert metrics["turns_per_episode"] == pytest.approx(9 / 6)


async def test_r18_a_step_that_gave_up_refilling_says_so(caplog: pytest.LogCaptureFixture) -> None:
    solved = [drawn(f"s{at}", [(1.0, 5, 1)] * 2) for at in range(9)]
    good = drawn("g", [(1.0, 5, 1), (0.0, 5, 1)])
    rounds = Rounds([good, solved[0]], *([one] for one in solved[1:]))
    with caplog.at_level(logging.WARNING):
        episodes, _ = await collect(session("grpo", [FLAT], rounds), AT_FIVE)
    assert len(episodes.groups) == 1
    assert "step 1 trains on 1 of 2 groups: 10 were drawn" in caplog.text


# Outcomes 0 in all four; rewards of turns 0 1 2 3: the leave-one-out advantages are not 0.
TURNS = {"name": "turns", "part": "turn_rewards", "weights": {"hint": 1.0}}


def kept(preset: str, group: Drawn, **changes: Any) -> bool:
    one = session(preset, [FLAT], **changes)
    batch = batch_of(one, [group.group], group.scores)
    return not prepare(one.preset, batch).refill


def test_f13_a_group_that_the_rewards_of_turns_teach_is_kept() -> None:
    fails = [(0.0, 5, 1)] * 4
    teaching = drawn("g", fails, hint=[[0.0], [1.0], [2.0], [3.0]])
    rewards = [{"name": "outcome", "part": "outcome", "place": "last_turn"}, TURNS]
    reads = {"rewards": rewards, "terms.0.reward": ["outcome", "turns"]}
    one = session("trloo", [FLAT], **reads)
    batch = batch_of(one, [teaching.group], teaching.scores)
    prepared = prepare(one.preset, batch)
    # Leave one out: 0 - 2, 1 - 5/3, 2 - 4/3, 3 - 1.
    expected = [-2, -2 / 3, 2 / 3, 2]
    assert prepared.turn_advantages[:, 0].tolist() == pytest.approx(expected)
    assert prepared.refill == ()
    assert prepared.mask.sum() == 8
    # Rewards that no term reads, and equal ones, keep nothing.
    assert not kept("trloo", teaching)
    assert not kept("trloo", drawn("g", fails, hint=[[1.0]] * 4), **reads)


def test_f13_equal_rewards_in_unequal_number_tell_members_apart() -> None:
    """A reward of .1 a turn, one turn against three: .1 and .3."""
    group = drawn("g", [(0.0, 5, 1), (0.0, 5, 3)], hint=[[0.1], [0.1, 0.1, 0.1]])
    rewards = [{"name": "outcome", "part": "outcome", "place": "last_turn"}, TURNS]
    assert kept("trloo", group, rewards=rewards, **{"terms.0.reward": ["outcome", "turns"]})
    nothing = drawn("g", [(0.0, 5, 1), (0.0, 5, 3)], hint=[[0.0], [0.0, 0.0, 0.0]])
    assert not kept("trloo", nothing, rewards=rewards, **{"terms.0.reward": ["outcome", "turns"]})


def test_f13_a_group_is_not_given_up_before_its_beliefs_are_known() -> None:
    fails = drawn("g", [(0.0, 5, 2)] * 2)
    one = session("igpo", [FLAT])
    batch = batch_of(one, [fails.group], fails.scores)
    assert apply_filters(one.preset, batch.table, batch.rows).refill == ()
    flat = torch.full((2, 3), -1.0, dtype=torch.float64)
    known = batch.with_turn_fields(belief_logprobs=flat)
    assert apply_filters(one.preset, known.table, known.rows).refill == (0,)


def test_f13_tasks_without_an_answer_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tasks = [Task(id="a", env_id="e", answers=("1",)), Task(id="b", env_id="e")]
    with caplog.at_level(logging.WARNING):
        say_where_beliefs_are_missing(load_preset("igpo"), tasks)
        say_where_beliefs_are_missing(load_preset("grpo"), tasks)
    (said,) = caplog.messages
    assert "1 of the first 2 tasks do not have (such as 'b')" in said


def test_f13_beliefs_that_are_missing_are_counted() -> None:
    """a: beliefs before both turns; b: none, it is trained on its outcome alone."""
    group = drawn("g", [(1.0, 5, 2), (0.0, 5, 2)])
    one = session("igpo", [])
    beliefs = torch.tensor([[-1.0, -0.5, torch.nan], [torch.nan] * 3], dtype=torch.float64)
    batch = batch_of(one, [group.group], group.scores).with_turn_fields(belief_logprobs=beliefs)
    zeros = torch.zeros(batch.ids.shape)
    prepared = prepare(one.preset, batch.with_logprobs(proximal=zeros, reference=zeros))
    assert prepared.metrics["trajectories_without_belief_reward"] == 1
