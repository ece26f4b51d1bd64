r"""Options of a multiple choice: `C) because it is odd` and `Option C` choose C.

A letter counts with what marks it as one: brackets, a full stop or colon behind it, or a word such
as "because". Whoever names a second option has chosen none.
"""

from __future__ import annotations

import re

_GOLD = re.compile(r"\(?([A-Z])\)?")
_CHOSEN = re.compile(
    r"(?:(?:option|choice|answer)\s+)?"
    r"(?:\((?P<inside>[A-Z])\)|(?P<before>[A-Z])\)|(?P<marked>[A-Z])(?=[.:])"
    r"|(?P<bare>[A-Z])(?=$|\s+(?:because|since|as|is|-|—)\s))"
    r"(?=$|[\s.:])[.:]?",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    r"(?<![a-zA-Z\\])(?:\(?[A-Z]\)|[A-Z][.:](?=\s)|(?:or|and|nor)\s+\(?[A-Z]\)?(?![a-zA-Z]))"
)


def letter_of(gold: str) -> str | None:
    """Return the option that a normalised gold answer is; None if it is anything else."""
    match = _GOLD.fullmatch(gold)
    return match[1] if match else None


def chosen(answer: str) -> str | None:
    """Return the option that a normalised answer chooses; None if it chooses none.

    Example:
        chosen("C) because it is odd") and chosen("(C) 12") are "C"; chosen("C or D") is None.
    """
    match = _CHOSEN.match(answer)
    if match is None or _ANOTHER.search(answer, match.end()):
        return None
    return next(letter for letter in match.groups() if letter is not None).upper()
