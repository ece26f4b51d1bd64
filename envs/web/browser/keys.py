"""Which keys an agent may press: those of a keyboard that act on the page, none on the browser."""

from __future__ import annotations

NAMED = (
    "Enter",
    "Tab",
    "Escape",
    "Backspace",
    "Delete",
    "Space",
    "ArrowUp",
    "ArrowDown",
    "ArrowLeft",
    "ArrowRight",
    "Home",
    "End",
    "PageUp",
    "PageDown",
)
_WITH_SHIFT = frozenset({"Tab", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"})
_COMBINED = frozenset({f"Shift+{key}" for key in _WITH_SHIFT} | {"Control+A", "Control+Z"})
"""No copy and paste: the clipboard belongs to the machine, so episodes would share it."""


def check_key(key: str) -> str:
    """Return what is wrong with a key; an empty string if it may be pressed."""
    if key in NAMED or key in _COMBINED or (len(key) == 1 and key.isprintable()):
        return ""
    return (
        f"unknown key {key[:40]!r}; the keys are one character, {', '.join(NAMED)}, "
        f"{', '.join(sorted(_COMBINED))}"
    )
