"""Text of agents and environments, made harmless for a terminal and for Markdown."""

from __future__ import annotations

import unicodedata

_KEPT = {"\n", "\t"}


def plain(text: str) -> str:
    r"""Return `text` with every control and format character written out.

    A terminal obeys escape sequences, and bidirectional marks reorder what is read; both are shown
    as `\x1b` and the like. Print the result with markup off.
    """
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co"}
        else _written_out(character)
        for character in text
    )


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cell(text: str, width: int = 80) -> str:
    """Return `text` as one cell of a Markdown table: one line, no bars, at most `width` long."""
    line = " ".join(plain(text).split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= width else line[: width - 1] + "…"
