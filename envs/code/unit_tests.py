"""`code/unit-tests-v0`: write a function; public tests are shown on request, hidden ones score."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

from agentgym import seeding
from agentgym.env.contract import Reply
from agentgym.env.players import Actor
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code import function_tasks, humaneval, probes
from agentgym.envs.code.grading import (
    LIMITS,
    Case,
    Verdict,
    run_cases,
    run_hidden_cases,
    run_program,
)
from agentgym.envs.code.sandbox_client import AUTO, known_sandbox, require_sandbox, with_fresh_box
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits
from agentgym.sandbox.pool import Lease
from agentgym.sandbox.shared_pools import portal
from agentgym.tool_formats.tools import tool

MAX_TURNS = 6
_FENCE = re.compile(r"\A\s*```[A-Za-z0-9+]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_NUMBER = re.compile(r"\d+")


class UnitTestsEnv(ToolEnv):
    """Write a Python function from a description.

    The tool `run_tests` runs the public tests and says which fails first. The answer is the whole
    code; its outcome is 1 if it passes every hidden test, else 0. The named reward `public_passed`
    (weight 0) is the share of public tests passed in a turn with `run_tests`.

    Hidden tests never enter the box in which the agent's code runs: arguments go in, values come
    out as built-in types, and are compared here or in a second box.
    """

    system_prompt = "Write the Python function. Test it if you like, then answer.\n{tools}"
    reset_needs: str = "a sandbox"
    null_score: float = 0.15
    reward_weights: ClassVar[Mapping[str, float]] = {"public_passed": 0.0}
    limits = Limits(max_turns=MAX_TURNS, max_observation_chars=2048, step_timeout_s=120.0)

    def __init__(
        self,
        *,
        levels: Sequence[int] = (1, 2, 3),
        sandbox: str = AUTO,
        tools: Sequence[str] | None = None,
        instructions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Choose what is asked and where code runs.

        Args:
            levels: Levels to draw tasks from, 1 to 5; a task passed to `reset` may be any.
            sandbox: Kind of sandbox; the best one present by default.
            tools: `[]` switches the public tests off.
            instructions: False leaves the system prompt out, for models that learn the protocol
                from demonstrations and pay for every token of context.
            render_mode: As in Gymnasium.

        Raises:
            EnvError: If a level is unknown, or there is none, or no such sandbox.
        """
        self.levels = function_tasks.check_levels(levels)
        self.sandbox = known_sandbox(sandbox)
        super().__init__(render_mode=render_mode, tools=tools)
        self.tells_tools = instructions
        if not instructions:
            self.system_prompt = ""
        self._function = function_tasks.FUNCTION
        self._public: tuple[Case, ...] = ()
        self._hidden: tuple[Case, ...] = ()
        self._tests_run = 0

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split."""
        return function_tasks.draw_task(rng, levels=self.levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Return what the function should do."""
        require_sandbox(self.sandbox)
        self._tests_run = 0
        self._function = str(task.payload.get("function", ""))
        name = task.payload.get("human_eval")
        if isinstance(name, str):
            self._public, self._hidden = humaneval.examples(name), ()
        else:
            self._public = function_tasks.read_cases(task.payload.get("public"))
            self._hidden = function_tasks.read_cases(task.payload.get("hidden"))
            if not self._function or not self._hidden:
                raise EnvError(f"task {task.id!r}: the payload needs a 'function' and tests")
        return task.prompt

    @tool
    async def run_tests(self, code: str) -> Reply:
        """Run the public tests.

        Args:
            code: The whole code of the function.
        """
        self._tests_run += 1
        verdict = await with_fresh_box(self.sandbox, LIMITS, self._run_public(code_of(code)))
        share = verdict.passed / verdict.total if verdict.total else float(not verdict.problem)
        return Reply(observation=_told(verdict), rewards={"public_passed": share})

    def grade(self, answer: str) -> float:
        """Return 1 if the code passes the hidden tests, else 0."""
        code = code_of(answer)
        if self._function not in code:
            return 0.0  # what does not name the function cannot define it: no box is needed
        verdict = portal().call(with_fresh_box(self.sandbox, LIMITS, self._run_hidden(code)))
        return float(verdict.is_pass)

    def on_text(self, text: str) -> Reply:
        """Tell the agent briefly what is missing."""
        names = " or ".join([*(tool.name for tool in self.tools), "answer"])
        return Reply(observation=f"Write {names}.", error_kind=ErrorKind.FORMAT)

    def expert(self) -> str:
        """Run the public tests on the reference solution, then answer with it."""
        solution = self._solution()
        if self.tools and self._tests_run == 0:
            return self.protocol.format_call("run_tests", {"code": solution})
        return self.protocol.format_answer(solution)

    def guess(self, rng: random.Random) -> str:
        """Return a wrong but plausible answer: the solution with one number changed."""
        solution = self._solution()
        spots = list(_NUMBER.finditer(solution))
        if not spots:
            return self.protocol.format_answer(solution.replace("return ", "return -"))
        spot = rng.choice(spots)
        number = (int(spot[0]) + rng.randrange(1, 10)) % 100 + 100 * (int(spot[0]) >= 100)
        changed = f"{solution[: spot.start()]}{number}{solution[spot.end() :]}"
        return self.protocol.format_answer(changed)

    def extra_probes(self) -> Mapping[str, Actor]:
        """Return players who attack the tests instead of the task."""
        return probes.function_probes(lambda env: env._function)

    def _played_task(self) -> Task:
        if self.task is None:
            raise EnvError(f"{self.env_id} has no task; call reset first")
        return self.task

    def _solution(self) -> str:
        if self.task is None or not self.task.answers:
            raise EnvError(f"{self.env_id} has no task with a solution; call reset first")
        return self.task.answers[0]

    def _run_public(self, code: str) -> Callable[[Lease], Awaitable[Verdict]]:
        function, cases = self._function, self._public
        return lambda lease: run_cases(lease, code, function, cases)

    def _run_hidden(self, code: str) -> Callable[[Lease], Awaitable[Verdict]]:
        function, cases, sandbox = self._function, self._hidden, self.sandbox
        task = self._played_task()
        name, rng = task.payload.get("human_eval"), seeding.rng("hidden tests", task.id)
        if not isinstance(name, str):
            return lambda lease: run_hidden_cases(lease, code, function, cases, rng)
        return lambda lease: run_program(
            lease,
            sandbox,
            code=code,
            function=function,
            program=humaneval.test_program(name),
            timeout_s=humaneval.TEST_TIMEOUT_S,
            rng=rng,
        )


def code_of(text: str) -> str:
    """Return the code of an answer, without the fence of a Markdown block around all of it."""
    match = _FENCE.match(text)
    return match[1] if match else text


def _told(verdict: Verdict) -> str:
    if verdict.is_pass:
        return f"all {verdict.total} public tests pass" if verdict.total else "the code runs"
    return f"{verdict.passed} of {verdict.total} public tests passed, then: {verdict.problem}"
