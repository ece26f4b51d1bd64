"""Chat formats: a template with the tokens that it writes. Six ship as fixtures for tests.

Each fixture has a trait that has broken a renderer somewhere: a sentence of its own, reasoning that
disappears, a BOS token, a role that it refuses, a last message that is closed differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """A chat template and its tokens.

    Example:
        ChatFormat(template="…", special=("<|im_start|>", "<|im_end|>"), end="<|im_end|>")
    """

    template: str
    """Jinja text."""
    special: tuple[str, ...]
    """Texts of the tokens that it writes, all of which steer."""
    end: str
    """The one of them that ends a completion."""
    bos: str | None = None
    """The one that begins a prompt; None if there is none."""


class Fixture(StrEnum):
    """Names of the formats that ship for tests."""

    SMOLLM2 = "smollm2"
    CHATML = "chatml"
    DROPS_THINK = "drops_think"
    DEFAULT_SYSTEM = "default_system"
    BOS = "bos"
    LAST_DIFFERS = "last_differs"


_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_CHATML = ("<|im_start|>", "<|im_end|>")
_TOKENS: dict[Fixture, tuple[tuple[str, ...], str, str | None]] = {
    Fixture.SMOLLM2: (_CHATML, "<|im_end|>", None),
    Fixture.CHATML: (_CHATML, "<|im_end|>", None),
    Fixture.DROPS_THINK: (_CHATML, "<|im_end|>", None),
    Fixture.DEFAULT_SYSTEM: (_ROLES, "<|end|>", None),
    Fixture.BOS: (("<s>", "</s>"), "</s>", "<s>"),
    Fixture.LAST_DIFFERS: (
        ("<|start|>", "<|message|>", "<|end|>", "<|return|>"),
        "<|return|>",
        None,
    ),
}


def fixture_format(name: Fixture | str) -> ChatFormat:
    """Return one of the formats that ship for tests."""
    fixture = Fixture(name)
    special, end, bos = _TOKENS[fixture]
    file = resources.files("agentgym.renderer") / "fixtures" / f"{fixture}.jinja"
    # A text file ends with a line break that is no part of the template.
    source = file.read_text(encoding="utf-8").removesuffix("\n")
    return ChatFormat(template=source, special=special, end=end, bos=bos)


__all__ = ["ChatFormat", "Fixture", "fixture_format"]
