"""What a protocol is: how actions are written in text. One serves training, evaluation and CLI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentgym.records import FinishReason, Json, Span, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentgym.tool_formats.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAction:
    """What a protocol found in one completion.

    Example:
        "<calculator>37*48</calculator>" gives one call and no answer;
        "<answer>1776</answer>" gives no call and the answer "1776".
    """

    calls: tuple[ToolCall, ...] = ()
    """Calls to execute, in the order written. Empty if the completion was cut off."""
    answer: str | None = None
    """The final answer, stripped; None if there is none."""
    error: str | None = None
    """What is wrong with the format, for the agent to read; None if nothing is. A call that cannot
    be read is one of `calls`, with its own error."""
    is_truncated: bool = False
    """True if the completion was cut off by length: nothing in it is executed."""
    calls_in_think: int = 0
    """Calls inside a closed think block, which are counted and not executed."""
    spans: tuple[Span, ...] = ()
    """[character] stretches of the text: think, action, answer, format."""


@runtime_checkable
class ActionProtocol(Protocol):
    """How calls and answers are written. Implementations are stateless and never raise on text."""

    @property
    def id(self) -> str:
        """Name and version, such as `tagged_text`."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn; empty if the end token does."""
        ...

    @property
    def result_role(self) -> str:
        """Role under which the agent reads results: `tool`, or `user` where the format is text."""
        ...

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the text that tells the agent how to call the tools and how to answer."""
        ...

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the calls and the answer in `text`. Never raises, whatever the text is."""
        ...

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the text of one call, which `parse` reads back unchanged."""
        ...

    def format_answer(self, answer: str) -> str:
        """Return the text of a final answer, which `parse` reads back unchanged."""
        ...

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return the observation that shows the results, in order."""
        ...
