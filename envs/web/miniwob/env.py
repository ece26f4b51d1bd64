"""`web/miniwob-v0`: the small tasks of MiniWoB++, in a real browser, scored by their own pages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from agentgym.env.contract import Reply
from agentgym.envs.web.browser.settings import Settings
from agentgym.envs.web.browser.view import View
from agentgym.envs.web.env import WebEnv
from agentgym.envs.web.miniwob.site import HOST, respond
from agentgym.envs.web.miniwob.solutions import Solution, solution_of
from agentgym.envs.web.miniwob.tasks import ENV_ID, NULL_SCORE, check_tasks, draw_task
from agentgym.records import Task
from agentgym.records.limits import Limits

# The words of the task are given apart from the page, but some hold a swatch, an icon or a drawing.
_SKIP = "#query:not(:has(svg, canvas, img, button, [style*=background], [class*=icon])), "
_SKIP += "#reward-display, #sync-task-cover, #click-canvas, #attention-canvas"
"""What the page shows beside the task: its words, the score, the cover before the start."""
_CLOCK_STEP_MS = 1_000
"""What one action takes on the page's clock: longer than any animation of these pages."""
_START = """seed => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 1e9;
  core.startEpisodeReal();
}"""
# Some pages give their words together with the fields that were meant, which nobody is to see.
_PROBE = """() => {
  const said = core.getUtterance();
  const goal = said.utterance || said;
  return { isDone: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, goal };
}"""


class MiniWobEnv(WebEnv):
    """A task of MiniWoB++. The page itself says when it is over and what it was worth.

    The outcome is the page's raw reward, which does not fall with time, cut to [0, 1]: 1 is
    success, and less is not. The page's clock stands still while nobody acts, and each action
    moves it on by a second, so that an agent's own pace changes nothing.

    Args:
        task: Name of a page, such as `click-button`, or several; None draws from those of the
            suite, which have scripted solutions and many different problems.
        screenshots: Folder for a picture of the page after each action; None takes none.
        instructions: False leaves the system prompt out.
    """

    known_as = ENV_ID
    packages = ("playwright", "miniwob")
    system_prompt = (
        "Do the task on the page. Elements have numbers to act on. The page decides when the task "
        "is done.\n{tools}"
    )
    limits = Limits(max_turns=30, step_timeout_s=60.0)
    answers_are_final = False

    def __init__(
        self,
        *,
        task: str | Sequence[str] | None = None,
        screenshots: str | None = None,
        instructions: bool = True,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            screenshots=screenshots, instructions=instructions, render_mode=render_mode, tools=tools
        )
        self._tasks = check_tasks(task)
        self.null_score = NULL_SCORE
        self._goal = ""
        self._solution: Solution | None = None

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return draw_task(rng, tasks=self._tasks)

    def settings(self) -> Settings:
        """Return the window of MiniWoB, with its clock in our hands."""
        return Settings(
            host=HOST,
            site=respond,
            viewport=(500, 420),
            clock_step_ms=_CLOCK_STEP_MS,
            # Each draws its problem anew when it is started, with the seed it is given there.
            loads_ahead=True,
            skip=_SKIP,
            probe=_PROBE,
        )

    def open_page(self, task: Task, seed: int) -> View:
        """Open the page and start its problem, drawn with the task's seed."""
        number = int(str(task.payload["seed"]))
        session = self.open_session(state=None, seed=0)
        name = str(task.payload["page"])
        view = session.open(f"/miniwob/{name}.html", then=f"({_START})({number})")
        self._goal = str(session.probed["goal"])
        self._solution = solution_of(name)
        return view

    @property
    def goal(self) -> str:
        """What the page asks."""
        return self._goal

    def verdict(self) -> Reply | None:
        """Return the page's reward once it has given one."""
        probed: dict[str, Any] = self.session.probed
        if not probed["isDone"]:
            return None
        raw = float(probed["reward"])
        return Reply(
            observation=f"The task is over. Reward: {raw:g}",
            outcome=min(max(raw, 0.0), 1.0),
            rewards={"raw_reward": raw},
        )

    def grade(self, answer: str) -> Reply:
        """End the episode: these pages take no answers beside them."""
        return Reply(
            observation="The task is over, it was not done.",
            outcome=0.0,
            rewards={"raw_reward": 0.0},
        )

    def expert(self) -> str:
        """Return the next action of the scripted solution, from what the page shows."""
        if self._solution is None:
            assert self.task is not None
            raise NotImplementedError(f"no solution of {self.task.payload['page']!r} is scripted")
        name, arguments = self._solution(self.goal, self.view, self.actions_taken)
        return self.protocol.format_call(name, arguments)
