"""Text of agents and environments, made harmless for a terminal and for Markdown."""

from __future__ import annotations

import re
import unicodedata

from agentgym.redaction import masked

_KEPT = {"\n", "\t"}
_WRITTEN_OUT = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Categories of characters that act, the separators of lines and of paragraphs among them."""
_MARKDOWN = re.compile(r"([\\`*\[\]|])")


def plain(text: str) -> str:
    r"""Return `text` with every control and format character written out.

    A terminal obeys escape sequences, and bidirectional marks reorder what is read; both are shown
    as `\x1b` and the like. Secrets among the settings are hidden (`agentgym.redaction`). Print the
    result with markup off.
    """
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _WRITTEN_OUT
        else _written_out(character)
        for character in masked(text)
    )


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cell(text: str, width: int = 80) -> str:
    """Return `text` as one cell of a Markdown table: one line, at most `width` long.

    It shows what it says and does nothing: no link, no image that a reader's page would fetch.
    """
    line = " ".join(plain(text).split())
    shown = line if len(line) <= width else line[: width - 1] + "…"
    return _MARKDOWN.sub(r"\\\1", shown).replace("<", "&lt;")
