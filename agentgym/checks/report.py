"""What a check found: `Finding`, `Report`, and `Findings`, which collects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

from agentgym.env.author_code import described
from agentgym.errors import AgentGymError, MissingExtraError


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class ContractError(AgentGymError, AssertionError):
    """A check found that something does not keep its contract; the message lists every finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one named check.

    Example:
        Finding(name="determinism", verdict=Verdict.FAILED, message="turn 2 differs: 'a' and 'b'")
    """

    name: str
    """Name of the check."""
    verdict: Verdict
    """How it ended."""
    message: str = ""
    """What is wrong, why it was skipped, or what was seen."""

    @property
    def is_ok(self) -> bool:
        """True if it did not fail."""
        return self.verdict is not Verdict.FAILED

    def __str__(self) -> str:
        return f"{self.verdict:7} {self.name}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every finding about one subject."""

    subject: str
    """What was checked."""
    findings: tuple[Finding, ...]
    """In the order of the checks."""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """Mean outcomes that were measured, by name of the player."""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that failed."""
        return tuple(finding for finding in self.findings if not finding.is_ok)

    @property
    def is_ok(self) -> bool:
        """True if nothing failed."""
        return not self.failures

    def raise_if_failed(self) -> Report:
        """Return the report.

        Raises:
            ContractError: If anything failed; the message lists it.
        """
        if self.failures:
            lines = "\n".join(f"  {finding}" for finding in self.failures)
            raise ContractError(f"{self.subject} does not keep its contract:\n{lines}")
        return self

    def __str__(self) -> str:
        lines = [f"{self.subject}", *(f"  {finding}" for finding in self.findings)]
        lines += [f"  score   {name}: {value:.3f}" for name, value in self.scores.items()]
        return "\n".join(lines)


class Findings:
    """Collects findings while checks run.

    `with findings.check("name"):` is one check. An assertion that fails, and whatever else the
    subject raises, is its finding; a missing optional package skips it.
    """

    def __init__(self, *, on_check: Callable[[str], None] | None = None) -> None:
        self.found: list[Finding] = []
        self._on_check = on_check

    def check(self, name: str) -> _Check:
        """Return the context of one check."""
        if self._on_check is not None:
            self._on_check(name)
        return _Check(self, name)

    def skip(self, name: str, why: str) -> None:
        """Note that a check does not apply."""
        self.found.append(Finding(name=name, verdict=Verdict.SKIPPED, message=why))

    def report(self, subject: str, scores: Mapping[str, float] | None = None) -> Report:
        """Return what was found."""
        return Report(subject=subject, findings=tuple(self.found), scores=dict(scores or {}))


class _Check:
    """A context that turns an exception into a finding; interrupts pass."""

    def __init__(self, findings: Findings, name: str) -> None:
        self._findings = findings
        self._name = name
        self._seen = ""

    def note(self, text: str) -> None:
        """Say what was seen, for who reads that it passed."""
        self._seen = text

    def __enter__(self) -> _Check:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if error is None:
            finding = Finding(name=self._name, verdict=Verdict.PASSED, message=self._seen)
        elif isinstance(error, MissingExtraError):
            finding = Finding(name=self._name, verdict=Verdict.SKIPPED, message=str(error))
        elif isinstance(error, Exception):
            text = str(error) if isinstance(error, ContractError) else described(error)
            finding = Finding(name=self._name, verdict=Verdict.FAILED, message=text)
        else:
            return False
        self._findings.found.append(finding)
        return True


def require(condition: bool, message: str) -> None:
    """Raise `ContractError` with `message` unless `condition`."""
    if not condition:
        raise ContractError(message)
