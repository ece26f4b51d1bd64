r"""Is a formula worked out, or are its numbers still to be added, multiplied, summed?

`\sqrt{9}`, `4!`, `\log_2 8` and `\frac{\sqrt{16}}{2}` are single values; `12\cdot{37}`, `(9)2`,
`9+9+0i`, `\max(9+9,3)` and `\sum_{k=1}^{12}37` put several numbers together.
"""

from __future__ import annotations

import re

_FUNCTIONS = "log|ln|lg|exp|a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|cot|sec|csc"
_KNOWN = re.compile(rf"\\(?:frac|sqrt|pi|binom|circ|infty|{_FUNCTIONS})(?![a-zA-Z])")
_SIGNS = re.compile(r"[0-9a-zA-Z\s{}()\[\]^_/.!+#-]*")
_BINARY = re.compile(r"[0-9a-zA-Z)}\]!.]\s*[-+]")
_DIVISION = re.compile(r"/|\\frac(?![a-zA-Z])|\^\s*\{?\s*-")
"""A negative power is one as well."""

# From the inside: what a bracket holds becomes `#`, a single value, if it is one.
_INSIDE = r"\s*\{([^{}()\[\]]*)\}"
_ROOT_INDEX = re.compile(r"(\\sqrt)\s*\[[^{}()\[\]]*\]")
_PARTS = re.compile(
    rf"\\(?:frac|binom){_INSIDE}{_INSIDE}|(?:\\sqrt|[\^_])?{_INSIDE}|\(([^{{}}()\[\]]*)\)"
    r"|\[([^{}()\[\]]*)\]"
)
_POWER = re.compile(r"(?:(?<![\\a-zA-Z])[a-zA-Z]|\\pi\s*)\s*\^\s*[-+]?(?:[0-9a-zA-Z#]|\\pi)")
_SCRIPT = re.compile(r"[\^_]\s*[-+]?(?:[0-9]|[a-zA-Z#]|\\[a-zA-Z]+)")
_DECIMAL = re.compile(r"([0-9]{0,50})\.([0-9]{1,50})")
_NUMBER = re.compile(r"[0-9.]+|#")


def is_worked_out(text: str) -> bool:
    r"""Return whether normalised LaTeX holds no operation between numbers but one division.

    Example:
        is_worked_out(r"\frac{\sqrt{3}}{2}") is True, is_worked_out(r"12\cdot{37}") is False.
    """
    if _SIGNS.fullmatch(_KNOWN.sub(" ", text)) is None or _BINARY.search(text):
        return False
    if len(_DIVISION.findall(text)) > 1:
        return False
    while True:
        text = _ROOT_INDEX.sub(r"\1", text)
        match = _PARTS.search(text)
        if match is None:
            return _is_single(text)
        if not all(_is_single(part) for part in match.groups() if part is not None):
            return False
        sign = match[0][0]
        value = f"{sign}#" if sign in "^_" else " # "
        text = text[: match.start()] + value + text[match.end() :]


def decimals_as_fractions(text: str) -> str:
    r"""Return `text` with the exact values of its decimals.

    Example:
        decimals_as_fractions("0.25x") is r"\frac{25}{100}x".
    """
    return _DECIMAL.sub(
        lambda match: rf"\frac{{{match[1]}{match[2]}}}{{{10 ** len(match[2])}}}", text
    )


def _is_single(text: str) -> bool:
    """Return whether text without brackets has one number, or two with a line between them."""
    text = _SCRIPT.sub(" ", _POWER.sub(" # ", text))
    lines = text.count("/")
    return lines <= 1 and len(_NUMBER.findall(text)) <= 1 + lines
