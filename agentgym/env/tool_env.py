"""`ToolEnv`: an environment with tools. Its author writes methods marked `@tool`, and `grade`."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentgym.concurrency.threads import run_coroutine, run_now
from agentgym.env.author_code import author_code, awaited, is_async, number_of_grade
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.errors import EnvError, ToolError, nearest
from agentgym.records import ErrorKind, Task, ToolCall, ToolResult
from agentgym.tool_formats.base import ActionProtocol
from agentgym.tool_formats.tagged_text import TaggedText
from agentgym.tool_formats.tools import Tool, checked_arguments, result_text, tools_of, unknown_tool

Caller = Callable[..., Awaitable[Any]]
"""Runs a function of the author's: `await call(function, *args, **kwargs)`."""


class ToolEnv(TextEnv):
    """An environment whose agent calls tools and then answers.

    A subclass marks methods with `@tool` and defines `grade`; `start` shows the task's prompt
    unless it is overridden. Calls of one turn run in order; their results are the observation.
    A mistake of the agent (an unknown tool, bad arguments, a `ToolError`) is an observation;
    whatever else a tool raises leaves `step`.

    The agent is told the protocol's instructions after the class's own `system_prompt`, or where
    `{tools}` stands in it; `tells_tools = False` leaves them out.
    """

    protocol: ActionProtocol = TaggedText()
    tells_tools: bool = True
    """False if the system prompt, or the first observation, says itself how to call and answer."""

    def __init__(
        self, *, render_mode: str | None = None, tools: Sequence[str] | None = None
    ) -> None:
        """Collect the tools.

        Args:
            render_mode: As in Gymnasium.
            tools: Names of those on offer; None for all.

        Raises:
            EnvError: If a name is not a tool's.
        """
        super().__init__(render_mode=render_mode)
        self._tools = _chosen(tools_of(self), tools)
        self._is_async = any(tool.is_async for tool in self._tools) or any(
            is_async(function) for function in (self.grade, self.on_text)
        )
        self.system_prompt = self._told()

    # -- what an author writes -------------------------------------------------------------

    def start(self, task: Task, rng: random.Random) -> str:
        """Set up the episode of `task` and return the first observation: its prompt."""
        return task.prompt

    def grade(self, answer: str) -> float | Reply | Awaitable[float | Reply]:
        """Return how far `answer` solves the task, in [0, 1], which ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} must define grade(answer)")

    def on_text(self, text: str) -> str | Reply:
        """Return the observation after a turn that has neither a call nor an answer.

        Args:
            text: What the agent wrote, without its reasoning.
        """
        names = ", ".join(tool.name for tool in self.tools)
        ways = f"call a tool ({names}) or answer" if names else "answer"
        example = self.protocol.format_answer("your answer")
        return Reply(
            observation=f"No call and no answer was found: {ways}, such as {example}",
            error_kind=ErrorKind.FORMAT,
        )

    # -- what the engine calls -------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools on offer."""
        return self._tools

    def respond(self, action: Action) -> str | Reply:
        """Run the calls or grade the answer, synchronously, inside a running loop too."""
        if self._is_async:
            return run_coroutine(self._respond(action, _call_here))
        return run_now(self._respond(action, _call_here))

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer one action; what is async is awaited, what blocks runs in the engine's threads."""
        if not self._is_async or type(self).respond is not ToolEnv.respond:
            return await super().astep(action)
        with author_code(self.env_id):
            parsed = self.as_action(action)
            reply = self.cut_off(parsed) or await self._respond(parsed, awaited)
            return self.pack(reply)

    async def _respond(self, action: Action, call: Caller) -> Reply:
        parsed = action.parsed
        if parsed.calls:
            return await self._run_calls(action, call)
        if parsed.answer is not None:
            graded = await call(self.grade, parsed.answer)
            if isinstance(graded, Reply):
                return graded
            return Reply(outcome=number_of_grade(self.env_id, graded))
        if parsed.error is not None:
            return Reply(observation=parsed.error, error_kind=ErrorKind.FORMAT)
        reply = await call(self.on_text, action.spoken)
        return reply if isinstance(reply, Reply) else Reply(observation=reply)

    async def _run_calls(self, action: Action, call: Caller) -> Reply:
        results: list[ToolResult] = []
        replies: list[Reply] = []
        for tool_call in action.tool_calls:
            result, reply = await self._run_call(tool_call, call)
            results.append(result)
            replies.extend([reply] if reply is not None else [])
            if reply is not None and (reply.outcome is not None or reply.is_truncated):
                break
        return self._merged(action, tuple(results), replies)

    async def _run_call(self, call: ToolCall, run: Caller) -> tuple[ToolResult, Reply | None]:
        if call.error is not None:
            return ToolResult(call_id=call.id, text=call.error, error_kind=call.error_kind), None
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        try:
            if tool is None:
                raise ToolError(unknown_tool(call.name, self.tools))
            value = await run(tool.function, **checked_arguments(tool, call.arguments))
        except ToolError as error:
            return ToolResult(call_id=call.id, text=str(error), error_kind=ErrorKind.MODEL), None
        if isinstance(value, Reply):
            return ToolResult(
                call_id=call.id, text=value.observation, error_kind=value.error_kind
            ), value
        return ToolResult(call_id=call.id, text=result_text(value)), None

    def _merged(
        self, action: Action, results: tuple[ToolResult, ...], replies: Sequence[Reply]
    ) -> Reply:
        """Return one reply of a turn's results and of what its tools said beyond their text."""
        text = self.protocol.format_results(results)
        kinds = [result.error_kind for result in results if result.error_kind is not None]
        if action.parsed.error is not None:
            text = f"{text}\n{action.parsed.error}"
            kinds.append(ErrorKind.FORMAT)
        last = replies[-1] if replies else Reply()
        rewards: dict[str, float] = {}
        for reply in replies:
            for name, value in reply.rewards.items():
                rewards[name] = rewards.get(name, 0.0) + value
        return replace(
            last,
            observation=text,
            role=self.protocol.result_role,
            tool_results=results,
            error_kind=kinds[0] if kinds else None,
            rewards=rewards,
            attachments=tuple(file for reply in replies for file in reply.attachments),
        )

    def _told(self) -> str:
        told, written = self.protocol.instructions(self.tools), self.system_prompt
        if "{tools}" in written:
            # Not str.format: a prompt may hold braces of its own.
            return written.replace("{tools}", told)
        return "\n".join(text for text in (written, told) if text) if self.tells_tools else written


def _chosen(tools: tuple[Tool, ...], names: Sequence[str] | None) -> tuple[Tool, ...]:
    if names is None:
        return tools
    known = [tool.name for tool in tools]
    if isinstance(names, str):  # its letters are no names
        raise EnvError(f"'tools' must be a list of some of {known!r} (got {names!r})")
    for name in names:
        if name not in known:
            raise EnvError(
                f"there is no tool {name!r}{nearest(name, known)}; the tools are {known!r}"
            )
    return tuple(tool for tool in tools if tool.name in names)


async def _call_here(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if is_async(function):
        return await function(*args, **kwargs)
    return function(*args, **kwargs)
