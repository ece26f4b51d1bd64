r"""LaTeX and prose of models, brought to one spelling; and brackets, found in one pass.

`normalize` removes what carries no value (spacing, sizes, fonts, delimiters, emphasis) and writes
the rest in one way (`\dfrac12` becomes `\frac{1}{2}`). It never looks at values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

OPENING = "([{"
CLOSING = ")]}"
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "exp",
        "max",
        "gcd",
        "lcm",
        "det",
    ]
)
"""Words that are operators; written upright they become commands. Minutes are not among them."""

_REWRITE = {
    "\N{MINUS SIGN}": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ",
    "∈": r"\in ", "⟨": "(", "⟩": ")", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "\N{NO-BREAK SPACE}": " ", "，": ",", "：": ":", "（": "(", "）": ")", "\t": " ", "\n": " ",
}  # fmt: skip
_TRANSLATION = str.maketrans(_REWRITE)

_DELIMITERS = re.compile(r"\\\[|\\\]|\\\(|\\\)|(?<!\\)\$")
_SIZES = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![a-zA-Z])\.?"
)
_THIN_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])\\,(?=[0-9])|(?<=[0-9])\{,\}(?=[0-9]{3})|(?<!\\)\\!")
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|\\(?:quad|qquad|space|thinspace)(?![a-zA-Z])|~")
_FONTS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname)"
    r"\s*\{([^{}]*)\}"
)
_COMMANDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:langle|lbrack)(?![a-zA-Z])"), "("),
    (re.compile(r"\\(?:rangle|rbrack)(?![a-zA-Z])"), ")"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\leq(?![a-zA-Z])|\\leqslant(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq(?![a-zA-Z])|\\geqslant(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\colon(?![a-zA-Z])"), ":"),
    (re.compile(r"\\(?:varnothing|O)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\degree(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?"), r"^\\circ "),
    # \frac12, \frac1{2}, \frac{1}2 and \sqrt2 take single tokens.
    (re.compile(r"\\frac\s*([0-9a-zA-Z])(?=\s*[0-9a-zA-Z{])"), r"\\frac{\1}"),
    (re.compile(r"(\\frac\{[^{}]*\})\s*([0-9a-zA-Z])"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*([0-9a-zA-Z])"), r"\\sqrt{\1}"),
    # Plain spellings of what would otherwise be products of letters.
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\{"), r"\\sqrt{"),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![\\a-zA-Z])(?:infinity|inf|oo)(?![a-zA-Z])", re.IGNORECASE), r"\\infty "),
    (re.compile(r"(?<=[0-9a-zA-Z)}])\s*\*\*\s*(?=[0-9a-zA-Z({+-])"), "^"),
    (re.compile(r"\^\(([^()]*)\)"), r"^{\1}"),
)  # fmt: skip
_EMPHASIS = " \t*_`"
_TRAILING = re.compile(r"(?:[\s.,;:?]|(?<=[a-z][a-z])!)+$")  # `4!` is a factorial


def normalize(text: str) -> str:
    r"""Return `text` in one spelling.

    Example:
        normalize(r"$\left(\dfrac12,\ \text{ and }\right)$.") is r"(\frac{1}{2}, and )".
    """
    text = text.translate(_TRANSLATION).strip(_EMPHASIS)
    text = _DELIMITERS.sub("", text).strip(_EMPHASIS)
    text = _SIZES.sub("", text)
    text = _SPACES.sub(" ", _THIN_BETWEEN_DIGITS.sub("", text))
    text = _without_fonts(text)
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"\s+\^", "^", " ".join(text.split()))
    return _without_trailing_marks(text)


def _without_fonts(text: str) -> str:
    """Return text whose upright words stand bare, with spaces around, functions as commands."""
    for _ in range(5):  # nested fonts: \textbf{\text{...}}
        found = _FONTS.sub(lambda match: f" {_word(match[1])} ", text)
        if found == text:
            break
        text = found
    return text


def _word(content: str) -> str:
    return f"\\{content.strip()}" if content.strip() in FUNCTIONS else content


def _without_trailing_marks(text: str) -> str:
    text = text.strip(_EMPHASIS)
    return _TRAILING.sub("", text).rstrip(_EMPHASIS).lstrip(" ,;:")


def matching_brackets(
    text: str, *, opening: str = OPENING, closing: str = CLOSING
) -> Mapping[int, int]:
    r"""Return position of each opening bracket -> position of its closing one.

    Round and square ones may close each other, for intervals; braces only themselves. Brackets
    without partner are left out. An escaped brace `\{` counts at the position of its brace.
    """
    stack: list[int] = []
    pairs: dict[int, int] = {}
    for position, character in enumerate(text):
        if character in opening:
            stack.append(position)
        elif character in closing:
            while stack:
                start = stack.pop()
                if (text[start] == "{") == (character == "}"):
                    pairs[start] = position
                    break
    return pairs


def is_balanced(text: str) -> bool:
    """Return whether every bracket has its partner."""
    count = sum(text.count(bracket) for bracket in OPENING + CLOSING)
    return len(matching_brackets(text)) * 2 == count


def split_outside(text: str, separator: re.Pattern[str]) -> list[str]:
    """Return the parts of `text` between matches of `separator` that stand in no bracket."""
    covered = _covered(text)
    parts, start = list[str](), 0
    for match in separator.finditer(text):
        if not covered[match.start()]:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _covered(text: str) -> list[bool]:
    covered, depth = [False] * len(text), 0
    closes = {end: start for start, end in matching_brackets(text).items()}
    opens = set(closes.values())
    for position in range(len(text)):
        depth -= position in closes
        covered[position] = depth > 0
        depth += position in opens
    return covered


def top_level(text: str) -> Iterator[tuple[int, str]]:
    """Yield the positions and characters of `text` that stand in no bracket."""
    covered = _covered(text)
    return ((i, c) for i, c in enumerate(text) if not covered[i])
