"""`code/repair-v0`: mend a function that one small fault broke, from a failing test."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentgym.envs.code import repair_tasks
from agentgym.envs.code.sandbox_client import AUTO
from agentgym.envs.code.unit_tests import UnitTestsEnv
from agentgym.records import Task


class RepairEnv(UnitTestsEnv):
    """Mend a Python function. Tools, answer, outcome and tests are those of `code/unit-tests-v0`.

    The broken function fails at least one public test, so that giving it back is no solution.
    """

    system_prompt = "Mend the Python function. Test it if you like, then answer.\n{tools}"

    def __init__(
        self,
        *,
        levels: Sequence[int] = (2, 3, 5),
        sandbox: str = AUTO,
        tools: Sequence[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Choose what is asked and where code runs; see `UnitTestsEnv`."""
        super().__init__(levels=levels, sandbox=sandbox, tools=tools, render_mode=render_mode)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split."""
        return repair_tasks.draw_task(rng, levels=self.levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Return the broken function, what it should do, and the failing test."""
        prompt = super().start(task, rng)
        # The test that shows the fault need not be among the hidden ones.
        self._hidden = (*self._public, *self._hidden)
        return prompt

    def guess(self, rng: random.Random) -> str:
        """Return the function as it was given, which is wrong."""
        return self.protocol.format_answer(str(self._played_task().payload.get("broken", "")))
