"""Text that everything behind can hold: tokenizers, files and terminals take Unicode, and half of a
surrogate pair is none.
"""

from __future__ import annotations


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
