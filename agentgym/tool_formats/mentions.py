"""Tags that a text mentions and does not use: `put it between <search> and </search>`.

A mention is neither a call nor a mistake. Each rule is one that a real call, however clumsy, does
not meet: models write calls at the beginning of a line or in the middle of one, with blanks inside,
in fences and behind prose, but not in quotation marks of their own and not around "and".
"""

from __future__ import annotations

import re

_QUOTES = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“", "「": "」"}
_NO_CONTENT = re.compile(
    r"\s*(?:\.\.\.|…)\s*\Z"  # the form as instructions show it
    r"|[`\"'”’]?\s+(?:and|or|to)\s+[`\"'“‘]?\Z"  # between <a> and </a>
    r"|[ \t]+(?:tags?|elements?|blocks?|markers?)\b"  # put it into <a> tags ... </a>
)
_FORM = re.compile(r"([{\[])\s*(?:\.\.\.|…)\s*[}\]]")
_BEFORE_A_LINE = " \t*-#"
_BEHIND_A_NAME = frozenset(" \t\r\n.,;:!?)]}'\"`*_")
_MARKUP = frozenset(
    [
        "a",
        "abbr",
        "b",
        "blockquote",
        "br",
        "code",
        "del",
        "details",
        "div",
        "em",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "img",
        "ins",
        "kbd",
        "li",
        "mark",
        "ol",
        "p",
        "pre",
        "q",
        "s",
        "small",
        "span",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
        "thinking",
        "thought",
        "thoughts",
        "reasoning",
        "reflection",
        "scratchpad",
    ]
)


def is_quoted(text: str, start: int, stop: int) -> bool:
    """Return whether the tag at [start, stop) stands in quotation marks or backticks by itself."""
    return start > 0 and _QUOTES.get(text[start - 1]) == text[stop : stop + 1]


def is_no_content(text: str, start: int, stop: int) -> bool:
    """Return whether what stands between a tag and its closing one shows that none was used."""
    return _NO_CONTENT.match(text, start, stop) is not None


def is_in_prose(text: str, start: int, stop: int) -> bool:
    """Return whether a tag that nothing closes is a word of a sentence.

    It is a call that its author forgot to close where it begins a line, or where something stands
    directly behind it.
    """
    if stop < len(text) and text[stop] not in _BEHIND_A_NAME:
        return False
    while start > 0 and text[start - 1] in _BEFORE_A_LINE:
        start -= 1
    return start > 0 and text[start - 1] not in "\r\n" and not text.endswith("</think>", 0, start)


def is_form(text: str, position: int) -> bool:
    """Return whether JSON ends at `position` because `{...}` stands there, as in instructions."""
    return position > 0 and _FORM.match(text, position - 1) is not None


def is_markup(name: str) -> bool:
    """Return whether a tag is formatting, or reasoning that a model marks in its own way."""
    return name.lower() in _MARKUP
