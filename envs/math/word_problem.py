"""`WordProblemEnv`: a question in words, a calculator of whole expressions, an answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

from agentgym.env.contract import Reply
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.math.calculator import calculate
from agentgym.envs.math.expressions import Number, parse
from agentgym.envs.math.guessing import wrong_number, wrong_text
from agentgym.envs.math.rationals import parse_number
from agentgym.envs.math.worked_solution import Step, read_steps
from agentgym.errors import EnvError
from agentgym.records import Task
from agentgym.records.limits import Limits
from agentgym.tool_formats.tools import tool


class WordProblemEnv(ToolEnv):
    """A question in words with a calculator. Subclasses define `grade`, and `solution_of`.

    The named reward `needed_call` (weight 0) is 1 in a turn whose calculation has the value of a
    step of the worked solution which no earlier call had; without a worked solution it is 0.
    """

    limits: Limits = Limits(max_turns=16, max_observation_chars=4096)
    reward_weights: ClassVar[Mapping[str, float]] = {"needed_call": 0.0}

    def __init__(
        self, *, tools: bool | Sequence[str] | None = True, render_mode: str | None = None
    ) -> None:
        names = None if tools is True else () if tools is False else tools
        super().__init__(render_mode=render_mode, tools=names)
        self.system_prompt = self._prompt()
        self._remaining: list[Step] = []

    def solution_of(self, task: Task) -> str:
        """Return the worked solution of a task; empty if there is none."""
        return ""

    def start(self, task: Task, rng: random.Random) -> str:
        """Return the question."""
        self._remaining = list(read_steps(self.solution_of(task)))
        return task.prompt

    @tool
    def calculator(self, expression: str) -> Reply:
        """Compute an arithmetic expression exactly.

        Args:
            expression: Numbers with + - * / ** and parentheses, such as (3+4)*5/2.
        """
        result = calculate(expression)
        is_computed = not isinstance(parse(expression), Number)
        return Reply(
            observation=result,
            rewards={"needed_call": float(is_computed and self._use(parse_number(result)))},
        )

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return Gymnasium's five values; `needed_call` is there in every turn, and at most 1."""
        needed = min(reply.rewards.get("needed_call", 0.0), 1.0)
        return super().pack(replace(reply, rewards={**reply.rewards, "needed_call": needed}))

    def expert(self) -> str:
        """Return the next step of the worked solution as a call, or the gold answer after them.

        Raises:
            NotImplementedError: If the task has no gold answer.
        """
        if self._remaining and self.tools:
            arguments = {"expression": self._remaining[0].expression}
            return self.protocol.format_call("calculator", arguments)
        return self.protocol.format_answer(self._gold())

    def guess(self, rng: random.Random) -> str:
        """Return a wrong but plausible answer."""
        gold = self._gold()
        number = parse_number(gold)
        wrong = wrong_text(gold, rng) if number is None else wrong_number(number, rng)
        return self.protocol.format_answer(wrong)

    def extra_probes(self) -> Mapping[str, Callable[[Any, str, random.Random], str]]:
        """Return ways to cheat at word problems: none of them solves one."""
        answer = self.protocol.format_answer
        return {
            "a number of the question": lambda env, seen, rng: answer(_number_in(seen, rng)),
            "a sum as answer": lambda env, seen, rng: answer("1+1"),
            "all numbers": lambda env, seen, rng: answer(" ".join(map(str, range(200)))),
        }

    def _use(self, value: Fraction | None) -> bool:
        step = next((step for step in self._remaining if step.value == value), None)
        if step is not None:
            self._remaining.remove(step)
        return step is not None

    def _gold(self) -> str:
        if self.task is None:
            raise EnvError(f"{self.env_id} has no task; call reset first")
        if not self.task.answers:
            raise NotImplementedError(f"nobody knows an answer to task {self.task.id!r}")
        return self.task.answers[0]

    def _prompt(self) -> str:
        answer = self.protocol.format_answer("your answer")
        if not self.tools:
            return f"Solve the problem. Finish with {answer}."
        call = self.protocol.format_call("calculator", {"expression": "(a+b)*c"})
        return (
            f"Solve the problem. {call} computes an expression; you read the result in the next "
            f"turn. Finish with {answer}."
        )


def _number_in(text: str, rng: random.Random) -> str:
    return rng.choice(re.findall(r"[0-9]+", text) or ["0"])
