"""The table of protocols: name -> object. One object serves training, evaluation and the CLI."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.errors import ConfigError, nearest
from agentgym.tool_formats.base import ActionProtocol
from agentgym.tool_formats.openai_tools import OpenAITools
from agentgym.tool_formats.plain import PlainText
from agentgym.tool_formats.python_block import PythonBlock
from agentgym.tool_formats.tagged_json import TaggedJson
from agentgym.tool_formats.tagged_text import TaggedText

PROTOCOLS: Mapping[str, ActionProtocol] = {
    protocol.id: protocol
    for protocol in (OpenAITools(), PlainText(), PythonBlock(), TaggedJson(), TaggedText())
}


def get_protocol(name: str) -> ActionProtocol:
    """Return the protocol of a name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in PROTOCOLS:
        raise ConfigError(
            f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}; there are {sorted(PROTOCOLS)!r}"
        )
    return PROTOCOLS[name]
