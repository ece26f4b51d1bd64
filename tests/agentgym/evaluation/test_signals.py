"""Warnings that a mean hides."""

from __future__ import annotations

import pytest

from agentgym.evaluation.signals import failure_warning, length_warning


@pytest.mark.parametrize(
    ("cut_off", "outcomes", "words"),
    [
        ([True, True], [0.0, 0.0], ["100% of the episodes", "standard deviation 0"]),
        ([True, True, False, False], [0.0, 1.0, 0.0, 1.0], ["50% of the episodes"]),
        ([True, False, False], [0.0, 0.0, 0.0], None),
        ([], [], None),
    ],
)
def test_cut_off_episodes_warn_with_both_rates_m14(
    cut_off: list[bool], outcomes: list[float], words: list[str] | None
) -> None:
    warning = length_warning(cut_off, outcomes)
    if words is None:
        assert warning is None
    else:
        assert warning is not None
        assert all(word in warning for word in words)
        assert ("standard deviation" in warning) == (len(words) == 2)


@pytest.mark.parametrize(("failed", "attempts", "warns"), [(5, 100, False), (6, 100, True)])
def test_more_than_a_few_failures_warn(failed: int, attempts: int, warns: bool) -> None:
    assert (failure_warning(failed, attempts) is not None) is warns
    assert failure_warning(0, 0) is None


def test_a2_a_longer_limit_is_advised_where_a_policy_ends_some_turns_alone() -> None:
    never = length_warning([True] * 4, [0.0] * 4)
    sometimes = length_warning([True, True, True, False], [0.0, 0.0, 0.0, 1.0])
    assert never is not None
    assert sometimes is not None
    assert "raise 'max_new_tokens'" in sometimes
    assert "raise 'max_new_tokens'" not in never
    assert "warm start" in never
    assert "another prompt" in never
