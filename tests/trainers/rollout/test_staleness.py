"""How old a token may be: bounds and boundaries by hand."""

from __future__ import annotations

import pytest

from agentgym.records import Completion, TokenTrace, Trajectory, Turn, VersionRun
from agentgym.trainers.rollout.staleness import capacity, oldest_version, split_stale, token_lags


def episode(name: str, *turns: tuple[tuple[int, int], ...], ended: bool = True) -> Trajectory:
    """Return an episode whose turns have (version, tokens) runs."""
    return Trajectory(
        id=name,
        group_id="g",
        task_id="t",
        env_id="test/env-v0",
        terminated=ended,
        turns=tuple(
            Turn(
                index=index,
                prompt_ids=(1,),
                completion=Completion(
                    text="x",
                    tokens=TokenTrace(
                        ids=(5,) * sum(count for _, count in runs),
                        versions=tuple(VersionRun(version=v, count=c) for v, c in runs),
                    ),
                ),
                observation="",
                parent=index - 1 if index else None,
                prefix_length=0,
            )
            for index, runs in enumerate(turns)
        ),
    )


@pytest.mark.parametrize(
    ("ahead", "step", "groups", "submitted", "expected"),
    [
        (2, 10, 8, 80, 24),  # H1: (2 + 10 + 1) 8 - 80; a counter that begins again would give 104
        (0, 0, 4, 0, 4),  # synchronous: a step's groups
        (0, 3, 4, 16, 0),  # (0 + 3 + 1) 4 - 16
        (1, 0, 4, 3, 5),  # (1 + 0 + 1) 4 - 3
        (1, 2, 4, 20, 0),  # 16 - 20 is none
    ],
)
def test_capacity_by_hand_h1(
    ahead: int, step: int, groups: int, submitted: int, expected: int
) -> None:
    found = capacity(steps_ahead=ahead, step=step, groups_per_step=groups, submitted=submitted)
    assert found == expected


def test_stale_episodes_are_told_at_the_boundary_h2() -> None:
    # Limit 2, learner at 5: a token of version 3 is kept, one of version 2 is not.
    fresh, old = episode("a", ((3, 4),)), episode("b", ((2, 4),))
    # One old token makes the whole episode old, wherever it stands.
    mixed = episode("c", ((5, 2), (4, 1)), ((2, 1), (5, 6)))
    silent, cancelled = episode("d"), episode("e", ((0, 3),), ended=False)
    kept, stale = split_stale((fresh, old, mixed, silent, cancelled), version=5, max_staleness=2)
    assert [t.id for t in kept] == ["a", "d", "e"]
    assert [t.id for t in stale] == ["b", "c"]


def test_oldest_version_is_over_all_turns() -> None:
    assert oldest_version(episode("a", ((7, 2), (8, 1)), ((6, 3),))) == 6
    assert oldest_version(episode("a", (), ())) is None


def test_token_lags_count_tokens_by_age() -> None:
    # Learner at 9: two tokens of version 7 are 2 old, one of 9 is 0 old, three of 8 are 1 old.
    lags = token_lags((episode("a", ((7, 2), (9, 1))), episode("b", ((8, 3),))), version=9)
    assert lags == [(2, 2), (0, 1), (1, 3)]
