"""`agentgym tasks`: list, show, validate."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from agentgym.records import Task
    from agentgym.suites import Suite

app = typer.Typer(help="Task suites: list, show, validate.", rich_markup_mode=None)

SuiteName = Annotated[str, typer.Argument(help="A suite or an environment.", metavar="SUITE")]
_MOST_VALIDATED = 200


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
    from agentgym.suites import list_suites, load_suite

    suites = [load_suite(name) for name in list_suites()]
    rows = [
        [
            suite.name,
            suite.env_id,
            ", ".join(f"{split} ({suite.size(split) or 'no end'})" for split in suite.splits),
            suite.source.licence if suite.source is not None else "generated",
        ]
        for suite in suites
    ]
    header = ["suite", "environment", "splits", "licence"]
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)


@app.command()
def show(
    name: SuiteName,
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    number: Annotated[int, typer.Option("-n", help="How many tasks.", min=1)] = 5,
    answers: Annotated[bool, typer.Option("--answers", help="Show the gold answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show tasks of a suite."""
    from agentgym.suites import load_suite

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
            task.prompt,
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
) -> None:
    """Check a suite: ids unique, splits disjoint by content, each task poses without an error."""
    from agentgym.suites import load_suite

    suite = load_suite(name)
    splits = {
        split: suite.tasks(split, limit=_bound(suite.size(split), number)) for split in suite.splits
    }
    problems = [*_repeated(splits), *_shared(splits), *_unposed(suite, splits)]
    for problem in problems:
        say(problem)
    count = sum(len(tasks) for tasks in splits.values())
    say(f"{name}: {count} tasks of {len(splits)} splits looked at, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


def _repeated(splits: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    for split, tasks in splits.items():
        counts = Counter(task.id for task in tasks)
        yield from (f"split {split}: the id {i!r} stands twice" for i, n in counts.items() if n > 1)


def _shared(splits: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    from agentgym.suites import check_leaks

    for first, second in itertools.combinations(sorted(splits), 2):
        for task in check_leaks(splits[first], splits[second], allow=True):
            yield f"{task!r} is in {first} and in {second}"


def _unposed(suite: Suite, splits: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    from agentgym import registry

    env = registry.make(suite.env_id, **suite.env_kwargs).unwrapped
    try:
        for split, tasks in splits.items():
            for task in tasks:
                observation, _ = env.reset(seed=0, options={"task": task})
                if not observation.strip():
                    yield f"split {split}: task {task.id!r} poses nothing"
    finally:
        env.close()


def _bound(size: int | None, number: int) -> int:
    return number if size is None else min(size, number)
