"""Agent text cannot drive the terminal."""

from __future__ import annotations

import pytest

from agentgym.records.escape import cell, plain


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
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),  # ends a line for many a reader
        ("\U000e0041", "\\U000e0041"),  # an invisible tag
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_cell_is_one_line_without_bars() -> None:
    assert cell("a|b\n<script>") == "a\\|b &lt;script>"
    assert cell("x" * 10, width=5) == "xxxx…"


# Class: *what a reader's program acts on*: an image is fetched as soon as a page is opened.
@pytest.mark.parametrize(
    "text",
    ["![x](http://h/a.png)", "[x](http://h)", "![x][y]", "\\![x](http://h)", "`![x](http://h)`"],
)
def test_f49_a_cell_fetches_nothing(text: str) -> None:
    shown = cell(text)
    live = [i for i, c in enumerate(shown) if c in "[]`" and not _is_escaped(shown, i)]
    assert live == []


def _is_escaped(text: str, position: int) -> bool:
    before = text[:position]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def test_f49_a_cell_that_is_cut_keeps_its_escapes_whole() -> None:
    assert cell("ab[cd]", width=4) == "ab\\[…"
