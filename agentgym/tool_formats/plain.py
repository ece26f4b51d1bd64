"""Plain text: the whole completion is the action, its reasoning apart. For games and environments
without tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.records import FinishReason, Json, Span, SpanKind, ToolResult
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.tag_scanner import (
    NOT_CLOSED_THINK,
    THINK_CLOSE,
    is_cut_off,
    spoken,
    truncated,
)

if TYPE_CHECKING:
    from agentgym.tool_formats.tools import Tool


@dataclass(frozen=True, slots=True)
class PlainText:
    """No markup: there are no calls, and the stripped text is the answer."""

    id: str = "plain"
    stop: tuple[str, ...] = ()
    result_role: str = "user"

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return nothing: there is no format to explain."""
        return ""

    def parse(
        self, text: str, tools: Sequence[Tool], *, finish_reason: FinishReason = FinishReason.STOP
    ) -> ParsedAction:
        """Return the stripped text behind the reasoning as the answer; a cut-off text gives none,
        and neither does one whose reasoning does not end.
        """
        if is_cut_off(finish_reason):
            return truncated(text)
        rest = spoken(text)
        start = len(text) - len(rest)
        think = Span(kind=SpanKind.THINK, start=0, stop=start)
        if start and not rest and not text.endswith(THINK_CLOSE):
            return ParsedAction(error=NOT_CLOSED_THINK, spans=(think,))
        action = Span(kind=SpanKind.ACTION, start=start, stop=len(text))
        return ParsedAction(answer=rest.strip(), spans=(think, action) if start else (action,))

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the first argument's value: without markup a call is its argument."""
        return str(next(iter(arguments.values()), name))

    def format_answer(self, answer: str) -> str:
        """Return the answer itself."""
        return answer

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return the results' texts, one a line."""
        return "\n".join(result.text for result in results)
