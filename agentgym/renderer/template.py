"""Chat templates: Jinja text to a function from messages to text, in a bounded sandbox.

The environment has what templates written for `transformers` expect: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that does not escape HTML, and `{% generation %}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser

from agentgym.errors import RenderError
from agentgym.records.messages import Message
from agentgym.renderer.bounded_jinja import FAILURES, BoundedEnvironment
from agentgym.renderer.template_meter import metered


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for others; here it prints its body."""

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


# Set afterwards: jinja declares a variable of instances, and reads it from the class.
_Generation.tags = {"generation"}


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text.
        names: Variables such as `bos_token`, and keyword arguments of the template.
        now: Clock behind `strftime_now`, read once: all prompts of a run, and what is remembered
            of the template, have the same date. A run that must repeat itself passes a fixed one.

    Raises:
        RenderError: If `source` is not valid Jinja, or uses a filter that templates may not use.
    """

    def __init__(
        self,
        source: str,
        *,
        names: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment: Any = BoundedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
        )
        environment.globals.update(raise_exception=_raise_exception, strftime_now=now().strftime)
        try:
            self._template = environment.from_string(source)
        except FAILURES as error:
            raise RenderError(f"the chat template is not valid Jinja: {_reason(error)}") from error
        self._names = dict(names or {})
        self.source = source

    @property
    def digest(self) -> str:
        """Eight hex digits which change with the template's text or its variables."""
        text = self.source + json.dumps(self._names, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation.

        Raises:
            RenderError: If the template refuses the conversation, fails, or takes more work or
                memory than a rendering may have.
        """
        try:
            with metered():
                return self._template.render(
                    **self._names,
                    messages=[{"role": m.role, "content": m.content} for m in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                )
        except FAILURES as error:
            text = f"the chat template refuses the conversation: {_reason(error)}"
            raise RenderError(text) from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or calls itself without end"
    return lines[0] if lines else type(error).__name__


__all__ = ["ChatTemplate"]
