"""What the commands print: tables, JSON, and text of agents made harmless."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentgym.records.escape import plain
from agentgym.redaction import masked_tree

if TYPE_CHECKING:
    from agentgym.checks.report import Report

INTERRUPTED = 130
"""Exit code after Ctrl-C: as shells have it, 128 and the number of the signal."""


def console() -> Console:
    """Return a console on standard output, which is looked up now and not at import."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def error_console() -> Console:
    """Return a console on standard error."""
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False)


def say(text: str = "") -> None:
    """Print text that may come from an agent, unwrapped; only line breaks and tabs act."""
    sys.stdout.write(plain(text) + "\n")


def complain(text: str) -> None:
    """Print each line of an error on standard error."""
    sys.stderr.write(plain(text) + "\n")


def print_json(value: Any) -> None:
    """Print a value as JSON that other programs can read."""
    sys.stdout.write(
        json.dumps(masked_tree(value), indent=2, ensure_ascii=True, default=str) + "\n"
    )


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table; cells may come from an agent."""
    table = Table(title=Text(title) if title else None, title_justify="left")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    out = console()
    if not out.is_terminal:  # a pipe has no width: nothing is folded
        out.width = 4_000
    out.print(table)


def show_report(report: Report, *, as_json: bool) -> None:
    """Print what a check found.

    Raises:
        typer.Exit: With code 1, if anything failed.
    """
    if as_json:
        findings = [
            {"name": f.name, "verdict": f.verdict, "message": f.message} for f in report.findings
        ]
        print_json({"subject": report.subject, "findings": findings, "scores": report.scores})
    else:
        rows = [[finding.name, finding.verdict, finding.message] for finding in report.findings]
        print_table(["check", "verdict", "what was seen"], rows, title=report.subject)
        scores = ", ".join(f"{name} {score:.3f}" for name, score in report.scores.items())
        if scores:
            say(f"mean outcomes: {scores}")
    if not report.is_ok:
        raise typer.Exit(1)
