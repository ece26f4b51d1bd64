"""`web/miniwob-v0` in a real browser."""

from __future__ import annotations

import pytest

import agentgym

pytest.importorskip("playwright")
pytest.importorskip("miniwob")
pytestmark = pytest.mark.service


def test_expert_clicks_the_button_through_the_rollout() -> None:
    trajectories = agentgym.rollout(
        "web/miniwob-v0", "expert", tasks=2, env_kwargs={"task": "click-button"}
    )
    assert [trajectory.outcome for trajectory in trajectories] == [1.0, 1.0]
    assert [len(trajectory.turns) for trajectory in trajectories] == [1, 1]
