r"""Where the answer stands in what the agent wrote: the one extractor of training and evaluation.

In this order: the last complete `\boxed{...}`, the last line `#### ...`, the last announcement
("Final Answer: ...", "the answer is ..."), else the whole text if it is one line.
"""

from __future__ import annotations

import re

from agentgym.envs.math.grading.latex import matching_brackets

MAX_CHARS = 100_000
"""Of longer texts the end is read: what an agent settles on comes last."""

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?P<brace>\{)?")
_BARE_BOX = re.compile(r"\s*(?P<content>[^\s$\\]+)")
_HASHES = re.compile(r"^[ \t>*]*#{4}[ \t]*(?P<answer>[^\n]+)$", re.MULTILINE)
# Bounded repetition throughout: a flood of blanks must not make the search quadratic.
_ANNOUNCEMENT = re.compile(
    r"(?:final[ \t]{1,9}answer(?:[ \t]{1,9}is)?|answer[ \t]{1,9}is|^[ \t>*_#-]{0,9}answer)"
    r"(?:\*\*|__)?\s{0,9}[:=]?\s{0,9}(?:\*\*|__)?[ \t]{0,9}[:=]?",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"\.(?=\s|\*|$)")


def extract_answer(text: str) -> str | None:
    r"""Return the answer in `text`; None if it has none.

    Example:
        extract_answer(r"so \boxed{2}. wait, actually \boxed{3}") is "3",
        extract_answer("2+40=42\n#### 42\nthat is all") is "42", extract_answer("1/2") is "1/2".
    """
    text = text[-MAX_CHARS:]
    marked = marked_answer(text)
    if marked is not None:
        return marked.strip() or None
    announced = list(_ANNOUNCEMENT.finditer(text))
    if announced:
        return _announced(text[announced[-1].end() :])
    whole = text.strip()
    # A box that is not complete was cut off: its text is no answer.
    is_answer = whole and "\n" not in whole and not _BOX.search(whole)
    return whole if is_answer else None


def marked_answer(text: str) -> str | None:
    """Return the answer that a box or `####` marks beyond doubt; None if there is none."""
    text = text[-MAX_CHARS:]
    boxed = _last_box(text)
    if boxed is not None:
        return boxed
    marked = [match["answer"] for match in _HASHES.finditer(text)]
    return marked[-1] if marked else None


def _announced(rest: str) -> str | None:
    """Return the first line of what follows an announcement, to the end of its sentence."""
    line = rest.lstrip().split("\n", 1)[0]
    return _SENTENCE_END.split(line, maxsplit=1)[0].strip() or None


def _last_box(text: str) -> str | None:
    boxes = list(_BOX.finditer(text))
    braces = matching_brackets(text, opening="{", closing="}") if boxes else {}
    for match in reversed(boxes):
        if not match["brace"]:
            bare = _BARE_BOX.match(text, match.end())
            if bare is not None:
                return bare["content"].rstrip(".,;")
        elif match.end() - 1 in braces:
            return text[match.end() : braces[match.end() - 1]]
    return None
