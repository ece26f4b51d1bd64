"""Episodes through the engine: killed browsers are failures and never scores; nothing leaks."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra web")
pytest.importorskip("miniwob", reason="needs the extra web")

from agentgym.env import registry
from agentgym.envs.web.browser.browser import POOL, close_browsers
from agentgym.envs.web.browser.context_pool import SPARES_EACH
from agentgym.envs.web.browser.processes import command_of, tree_of
from agentgym.envs.web.miniwob.tasks import ENV_ID, generate_task
from agentgym.policies.base import GenerateRequest
from agentgym.policies.expert import ExpertPolicy
from agentgym.records import Completion, ErrorKind, Trajectory
from agentgym.rollouts.engine import Engine, GroupSpec

pytestmark = pytest.mark.service
PAGE = "click-checkboxes-large"


class Saboteur(ExpertPolicy):
    """Kills the browser before the second action of an episode, as often as it is told."""

    def __init__(self, kills: int) -> None:
        super().__init__()
        self.kills = kills

    def act(self, env: Any, request: GenerateRequest) -> Completion:
        completion = super().act(env, request)
        if env.actions_taken == 1 and self.kills > 0:
            self.kills -= 1
            tree = [pid for root in env.session.browser.process_ids for pid in tree_of(root)]
            main = [pid for pid in tree if "--remote-debugging" in command_of(pid)]
            os.kill([pid for pid in main if "--type=" not in command_of(pid)][-1], signal.SIGKILL)
        return completion


async def play(policy: ExpertPolicy, episodes: int, **options: Any) -> list[Trajectory]:
    specs = [
        GroupSpec(id=f"g{n}", task=generate_task(n, task=PAGE), size=1, seed=n)
        for n in range(episodes)
    ]
    async with Engine(policy, **options) as engine:
        groups = await engine.run_groups(specs)
    return [trajectory for group in groups for trajectory in group.trajectories]


async def kill_in_the_middle(count: int) -> None:
    found = await play(Saboteur(count), count, max_concurrent=1, retries=0)
    assert [t.failure.kind if t.failure else None for t in found] == (
        [ErrorKind.INFRASTRUCTURE] * count
    )
    assert [t.outcome for t in found] == [None] * count
    (after,) = await play(Saboteur(0), 1, max_concurrent=1, retries=0)
    assert after.outcome == 1.0


async def test_killed_browser_is_a_failure_and_no_score(chromium: str) -> None:
    await kill_in_the_middle(3)


@pytest.mark.soak
async def test_twenty_killed_browsers_are_failures_and_no_scores(chromium: str) -> None:
    await kill_in_the_middle(20)


async def test_killed_browser_is_made_up_for_by_another_try(chromium: str) -> None:
    """One kill takes down each episode that shares the browser; each is tried again."""
    found = await play(Saboteur(1), 4, max_concurrent=4, retries=2)
    ended = {t.group_id: t.outcome for t in found if t.failure is None}
    assert ended == dict.fromkeys(("g0", "g1", "g2", "g3"), 1.0)
    failed = [t for t in found if t.failure is not None]
    assert failed
    assert {t.failure.kind for t in failed if t.failure} == {ErrorKind.INFRASTRUCTURE}


def held() -> dict[str, int]:
    """Return what this process and its browsers hold now."""
    browsers = POOL.browsers
    return {
        "browsers": len(browsers),
        "contexts": sum(len(browser.chromium.contexts) for browser in browsers),
        "sessions": sum(browser.server.live_sessions for browser in browsers),
        "open files": len(os.listdir("/proc/self/fd")),
        "processes": len(tree_of(os.getpid())),
    }


def play_and_compare(episodes: int) -> None:
    env = registry.make(ENV_ID, task="click-option")
    try:
        before: dict[str, int] = {}
        for number in range(episodes):
            env.reset(seed=number)
            while not env.step(env.expert())[2]:
                pass
            if number == 4:
                before = held()
        after = held()
    finally:
        env.close()
    # The context of the last episode, and those that are made ahead, which may still be coming.
    assert before["sessions"] == after["sessions"] == 1 + SPARES_EACH == 3
    assert before["contexts"] in {1, 2, 3}
    assert after["contexts"] in {1, 2, 3}
    # Connections of the last page may still be closing.
    assert after["open files"] <= before["open files"] + 8
    assert after["processes"] <= before["processes"] + 4
    assert before["browsers"] == after["browsers"] == 1
    close_browsers()
    assert held()["browsers"] == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_thirty_episodes_leave_nothing(chromium: str) -> None:
    play_and_compare(30)


@pytest.mark.soak
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_thousand_episodes_leave_nothing(chromium: str) -> None:
    play_and_compare(1000)
