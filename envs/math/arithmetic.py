"""`math/arithmetic-v0`: an expression to work out exactly, and a calculator of one operation."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

from agentgym.env.contract import Reply
from agentgym.env.suite import GeneratedSplit
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.math.arithmetic_tasks import (
    MOST_OPERATIONS,
    SPLITS,
    check_levels,
    draw_task,
    generate_task,
)
from agentgym.envs.math.calculator import calculate_one, read_operation
from agentgym.envs.math.expert_steps import Reduction
from agentgym.envs.math.expressions import parse
from agentgym.envs.math.guessing import wrong_number
from agentgym.envs.math.rationals import format_number, parse_number
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits
from agentgym.tool_formats.tools import tool

SPARE_TURNS = 3
"""Turns beyond the calls of the longest solution: its answer, and two mistakes."""


class ArithmeticEnv(ToolEnv):
    """Work out an expression such as `12+37*48`.

    The outcome is 1 if the answer is a number and exactly right, else 0. The named reward
    `needed_call` (weight 0) is 1 in a turn whose call works out an operation of the expression
    that is ready: its operands are numbers of the expression or results of earlier such calls.

    From level 2 on the answers are out of a small model's reach without the calculator.
    """

    null_score: float = 0.01
    reward_weights: ClassVar[Mapping[str, float]] = {"needed_call": 0.0}

    def __init__(
        self,
        *,
        levels: Sequence[int] = (1, 2, 3),
        tools: bool | Sequence[str] | None = True,
        instructions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Choose what is asked and whether the calculator is there.

        Args:
            levels: Levels to draw tasks from, 1 to 5; a task that is passed to `reset` may have
                any level.
            tools: False switches the calculator off.
            instructions: False leaves the system prompt out, for models that learn the protocol
                from demonstrations and pay for every token of context.
            render_mode: As in Gymnasium.

        Raises:
            EnvError: If a level is unknown, or there is none.
        """
        self.levels = check_levels(levels)
        names = None if tools is True else () if tools is False else tools
        super().__init__(render_mode=render_mode, tools=names)
        self.system_prompt = self._prompt() if instructions else ""
        self.tells_tools = instructions
        self.limits = _limits(max(self.levels))
        self._reduction = Reduction(parse("0"))

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split."""
        return draw_task(rng, levels=self.levels)

    def splits(self) -> dict[str, GeneratedSplit]:
        """Return the generated splits, disjoint by operands."""
        return {
            split: GeneratedSplit(
                generate=functools.partial(generate_task, split=split, levels=self.levels)
            )
            for split in SPLITS
        }

    def start(self, task: Task, rng: random.Random) -> str:
        """Return the expression."""
        expression, level = task.payload.get("expression"), task.payload.get("level")
        if (
            not isinstance(expression, str)
            or not isinstance(level, int)
            or level not in MOST_OPERATIONS
        ):
            raise EnvError(
                f"task {task.id!r}: the payload needs an 'expression' and a 'level' from 1 to 5 "
                f"(got {dict(task.payload)!r})"
            )
        self._reduction = Reduction(parse(expression))
        self.limits = _limits(level)
        return expression

    @tool
    def calculator(self, expression: str) -> Reply:
        """Compute one operation (+ - * /) on two numbers, exactly.

        Args:
            expression: Such as 37*48 or (7/3)-2.
        """
        result = calculate_one(expression)
        is_needed = self._reduction.use(read_operation(expression))
        return Reply(observation=result, rewards={"needed_call": float(is_needed)})

    def grade(self, answer: str) -> float:
        """Return 1 if `answer` is the exact number, else 0."""
        return float(parse_number(answer) == self._gold())

    def on_text(self, text: str) -> Reply:
        """Tell the agent briefly what is missing."""
        names = " or ".join([*(tool.name for tool in self.tools), "answer"])
        return Reply(observation=f"Write {names}.", error_kind=ErrorKind.FORMAT)

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return Gymnasium's five values; `needed_call` is there in every turn, and at most 1."""
        needed = min(reply.rewards.get("needed_call", 0.0), 1.0)
        return super().pack(replace(reply, rewards={**reply.rewards, "needed_call": needed}))

    def expert(self) -> str:
        """Return the next call that the solution needs, or the answer when all is worked out."""
        call = self._reduction.next_call() if self.tools else None
        if call is None:
            return self.protocol.format_answer(format_number(self._gold()))
        return self.protocol.format_call("calculator", {"expression": call})

    def guess(self, rng: random.Random) -> str:
        """Return a wrong but plausible answer, of the right sign and number of digits.

        Demonstrations in which a share guesses at once leave something to learn by trial.
        """
        return self.protocol.format_answer(wrong_number(self._gold(), rng))

    def extra_probes(self) -> Mapping[str, Callable[[Any, str, random.Random], str]]:
        """Return ways to cheat at arithmetic: none of them works the expression out."""
        call, answer = self.protocol.format_call, self.protocol.format_answer
        return {
            "guess": lambda env, seen, rng: env.unwrapped.guess(rng),
            "expression as answer": lambda env, seen, rng: answer(f"({seen})/1"),
            "needless call": lambda env, seen, rng: call("calculator", {"expression": "1+1"}),
            "whole expression": lambda env, seen, rng: call("calculator", {"expression": seen}),
        }

    def _gold(self) -> Fraction:
        gold = parse_number(self.task.answers[0]) if self.task and self.task.answers else None
        if gold is None:
            raise EnvError(f"{self.env_id} has no task with a numeric answer; call reset first")
        return gold

    def _prompt(self) -> str:
        answer = self.protocol.format_answer("number")
        if not self.tools:
            return f"Work out the expression. Reply {answer}."
        call = self.protocol.format_call("calculator", {"expression": "a*b"})
        return f"Work out the expression. {call} does one operation. Finish with {answer}."


def _limits(level: int) -> Limits:
    return Limits(max_turns=MOST_OPERATIONS[level] + SPARE_TURNS, max_observation_chars=1024)
