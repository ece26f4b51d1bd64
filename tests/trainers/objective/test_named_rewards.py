"""Names of turn rewards that no episode earns are said once, never an error."""

from __future__ import annotations

import logging

import pytest

from agentgym.trainers.objective.named_rewards import PATIENCE, NameWatch
from agentgym.trainers.objective.preset import load_preset


def watch(**weights: float) -> NameWatch:
    return NameWatch(load_preset("trloo", {"rewards.turn.weights": weights}))


def test_a_name_that_never_comes_is_said_once_with_the_nearest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = watch(tol=1.0, form=2.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(PATIENCE - 1):
            subject.see(["tool"])
        subject.see([])
        assert len(caplog.messages) == 2
        for _ in range(2 * PATIENCE):
            subject.see([])
    assert caplog.messages == [
        f"no episode of 10 updates has earned a turn reward named {name}, so it counts nowhere{end}"
        for name, end in [("'form'", " (known: tool)"), ("'tol'", " (did you mean 'tool'?)")]
    ]


def test_a_name_that_came_once_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    subject = watch(tool=1.0)
    with caplog.at_level(logging.WARNING):
        subject.see(["tool"])
        for _ in range(2 * PATIENCE):
            subject.see([])
    assert caplog.messages == []
