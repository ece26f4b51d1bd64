"""`agentgym tasks`: list, show, validate."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym.cli.output import print_json, print_table, say, show_report

app = typer.Typer(help="Task suites: list, show, validate.", rich_markup_mode=None)

SuiteName = Annotated[
    str,
    typer.Argument(
        help="A suite or an environment, such as math/arithmetic:levels=[1,2].",
        metavar="SUITE[:KEY=VALUE]...",
    ),
]
_MOST_VALIDATED = 200
_MOST_PLAYED = 24


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Task suites: list, show, validate."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every suite with its splits and where its tasks come from."""
    from agentgym.env.suites import list_suites

    rows = [_row(name) for name in list_suites()]
    header = ["suite", "environment", "splits", "licence"]
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)


def _row(name: str) -> list[str]:
    """Return what the list says of a suite; one that cannot be loaded says why."""
    from agentgym.env.suites import load_suite
    from agentgym.errors import AgentGymError

    try:
        suite = load_suite(name)
        sizes = {split: suite.size(split) for split in suite.splits}
    except AgentGymError as error:
        return [name, "", str(error), ""]
    return [
        suite.name,
        suite.env_id,
        ", ".join(f"{split} ({size or 'no end'})" for split, size in sizes.items()),
        suite.source.licence if suite.source is not None else "generated",
    ]


@app.command()
def show(
    name: SuiteName,
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    number: Annotated[int, typer.Option("-n", help="How many tasks.", min=1)] = 5,
    answers: Annotated[bool, typer.Option("--answers", help="Show the gold answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show tasks of a suite."""
    from agentgym.cli.environments import load_suite

    suite = load_suite(name)
    tasks = suite.tasks(split, limit=number)
    if as_json:
        print_json([{"id": t.id, "prompt": t.prompt, "difficulty": t.difficulty} for t in tasks])
        return
    if suite.source is not None:
        say(f"licence: {suite.source.licence}\norigin: {suite.source.origin}\n")
    header = ["task", "difficulty", "tags", "prompt", *(["answers"] if answers else [])]
    rows = [
        [
            task.id,
            "" if task.difficulty is None else f"{task.difficulty:g}",
            ", ".join(task.tags),
            task.prompt or "(the environment makes it of the payload)",
            *([" | ".join(task.answers)] if answers else []),
        ]
        for task in tasks
    ]
    print_table(header, rows, title=f"{suite.name}, split {split}")


@app.command()
def validate(
    name: SuiteName,
    number: Annotated[
        int, typer.Option("-n", help="Tasks of a split at most.", min=1)
    ] = _MOST_VALIDATED,
    played: Annotated[
        int, typer.Option(help="Tasks of a split that are graded and played.", min=1)
    ] = _MOST_PLAYED,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a suite: ids, splits that share no task nor nearly one, source, that gold answers are
    accepted and wrong ones rejected, how the expert does and how random actions do.
    """
    from agentgym.checks.suite import check_suite
    from agentgym.cli.environments import load_suite

    suite = load_suite(name)
    show_report(check_suite(suite, tasks_each=number, graded_each=played), as_json=as_json)
