"""Text that everything behind can hold and that costs nobody much: half of a surrogate pair is no
Unicode, and a heap of accents takes the square of its length to sort.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Literal

_MOST_MARKS = 30
"""Marks in a row that are kept, as in Unicode's stream-safe format (UAX #15, section 13); no
language has more than a few on one letter."""


def readable(text: str) -> str:
    r"""Return `text` with U+FFFD for each half of a surrogate pair that stands alone.

    JSON can write such halves, and so a server's answer or a cut string may hold one.

    Example:
        readable("a\ud83d") is "a\ufffd", readable("\ud83d\ude00") is "\U0001f600".
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def normalized(text: str, form: Literal["NFC", "NFKC", "NFKD"]) -> str:
    """Return `text` in a normal form of Unicode; of more than 30 marks in a row the others go.

    Python sorts the marks on a letter by insertion: 40,000 of them take five seconds.
    """
    if text.isascii():
        return text
    marks = "".join(filter(_is_mark, set(text)))
    if marks:
        either = f"[{re.escape(marks)}]"
        text = re.sub(f"({either}{{{_MOST_MARKS}}}){either}+", r"\1", text)
    return unicodedata.normalize(form, text)


@functools.lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    """Return whether a character joins the one before it; some are two marks in one."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) != 0
