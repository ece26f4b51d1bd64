"""Plain text: the whole completion is the action. For games and environments without tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.protocols.base import ParsedAction
from agentgym.records import FinishReason, Json, Span, SpanKind, ToolResult

if TYPE_CHECKING:
    from agentgym.tools import Tool


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
        """Return the stripped text as the answer; a cut-off text gives none."""
        span = Span(kind=SpanKind.ACTION, start=0, stop=len(text))
        if finish_reason is FinishReason.LENGTH:
            return ParsedAction(is_truncated=True, spans=(span,))
        return ParsedAction(answer=text.strip(), spans=(span,))

    def format_call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Return the first argument's value: without markup a call is its argument."""
        return str(next(iter(arguments.values()), name))

    def format_answer(self, answer: str) -> str:
        """Return the answer itself."""
        return answer

    def format_results(self, results: Sequence[ToolResult]) -> str:
        """Return the results' texts, one a line."""
        return "\n".join(result.text for result in results)
