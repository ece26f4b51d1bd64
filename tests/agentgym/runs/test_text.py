"""Agent text cannot drive the terminal."""

from __future__ import annotations

import pytest

from agentgym.runs.text import cell, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred", "\\x1b[31mred"),  # a colour
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),  # the window's title
        ("a\rb", "a\\x0db"),  # overwrites the line
        ("\x9b2J", "\\x9b2J"),  # one-character escape
        ("a\u202eb", "a\\u202eb"),  # reverses what is read
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),  # an invisible tag
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_cell_is_one_line_without_bars() -> None:
    assert cell("a|b\n<script>") == "a\\|b &lt;script>"
    assert cell("x" * 10, width=5) == "xxxx…"
