"""What is wrong with a user's input, one line each: `Problem`, and the error that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError

MOST_LINES = 20
"""Problems that a report names; of more the number is said."""
_MOST_CHARACTERS = 1_000
"""Length of a line, which may repeat a value that a person gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that the user must change.

    Example:
        Problem(key="optim.learning_ratee", where="run.yaml:3", text="unknown key ...")
    """

    text: str
    """One line: what is wrong, what was got, what is accepted."""
    key: str = ""
    """Dotted name of the setting; empty if it is about none."""
    where: str = ""
    """File and line, or `command line`; empty where neither is known."""

    def __str__(self) -> str:
        line = f"{self.where}: {self.text}" if self.where else self.text
        if len(line) <= _MOST_CHARACTERS:
            return line
        return f"{line[: _MOST_CHARACTERS // 2]} … {line[-_MOST_CHARACTERS // 2 :]}"


class InvalidInputError(ConfigError):
    """Everything that is wrong with a user's input, reported together."""

    def __init__(self, problems: Sequence[Problem], *, rest: object = None) -> None:
        self.problems = tuple(problems)
        # What could be understood without the wrong settings, so that it can be checked too.
        self.rest = rest
        lines = [str(problem) for problem in self.problems[:MOST_LINES]]
        left = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, *([f"and {left:,} more"] if left else [])]))
