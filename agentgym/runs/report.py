"""`report.md` of a run, made from its files: what was asked and what came out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.files.plain_yaml import dump_yaml
from agentgym.records.escape import cell, plain
from agentgym.runs.folder import read_evaluations, read_metrics, stored_settings

_FILES = (
    *("config.yaml", "metrics.jsonl", "trajectories.jsonl", "scores.jsonl", "evaluations/"),
    *("checkpoints/", "policy/", "curves.png", "curves.svg"),
)
_MOST_STEPS = 12  # rows of the table of steps
_SHOWN_METRICS = 6


def report_text(path: Path) -> str:
    """Return the report of the run in a folder, as Markdown."""
    settings = stored_settings(path)
    evaluations = read_evaluations(path)
    metrics = read_metrics(path)
    parts = [
        f"# {cell(path.name)}",
        _headline(settings, metrics),
        "## Held-out evaluation",
        *_evaluation_part(evaluations),
        "## Training",
        *_training_part(metrics),
        "## Files",
        ", ".join(f"`{name}`" for name in _FILES),
        "## Settings",
        _fenced(plain(dump_yaml(settings))),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fenced(text: str) -> str:
    """Return text as a code block, with a fence that it cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}yaml\n{text}{fence}"


def _headline(settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    envs = ", ".join(cell(str(source["name"])) for source in settings.get("envs", []))
    policy, preset = (cell(str(settings.get(name))) for name in ("policy", "preset"))
    return (
        f"Policy `{policy}`, preset `{preset}`, seed {settings.get('seed')}, on "
        f"{envs or 'no environment'}; {len(metrics)} steps done."
    )


def _evaluation_part(evaluations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not evaluations:
        return ["No evaluation was made."]
    header = ["evaluation", "step", "mean outcome (95 %)", "solved (95 %)", "tasks", "failed"]
    rows = [_evaluation_row(name, result) for name, result in evaluations.items()]
    last_name, last = list(evaluations.items())[-1]
    parts = [table(header, rows), _sampling_line(last)]
    breakdowns: Mapping[str, Any] = last.get("breakdowns", {})
    if breakdowns:
        header = [f"part of {cell(last_name)}", "mean outcome (95 %)", "tasks"]
        rows = [
            [cell(name), interval(part["outcome"]), str(part["outcome"]["count"])]
            for name, part in breakdowns.items()
        ]
        parts.append(table(header, rows))
    warnings = [f"- {cell(text, 300)}" for text in last.get("warnings", [])]
    return [*parts, "\n".join(warnings)]


def _evaluation_row(name: str, result: Mapping[str, Any]) -> list[str]:
    counts: Mapping[str, int] = result["counts"]
    return [
        cell(name),
        "" if result.get("step") is None else str(result["step"]),
        interval(result["outcome"]),
        interval(result["success"]),
        str(counts["tasks"]),
        str(counts["failed"]),
    ]


def _sampling_line(result: Mapping[str, Any]) -> str:
    sampling: Mapping[str, Any] = result["sampling"]
    names = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens")
    drawn = ", ".join(f"{name} {sampling[name]:g}" for name in names)
    return (
        f"Attempts a task {result['attempts_per_task']}, split {cell(result['split'])}, {drawn}. "
        f"Intervals: {result['rules']['intervals']}. A failure that is not the agent's counts as 0."
    )


def _training_part(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    if not metrics:
        return ["No step was made."]
    names = [
        name
        for name, value in metrics[-1].items()
        if name != "step" and isinstance(value, int | float)
    ][:_SHOWN_METRICS]
    rows = [
        [str(row.get("step", "")), *(_number(row.get(name)) for name in names)]
        for row in thinned(metrics, _MOST_STEPS)
    ]
    return [table(["step", *map(cell, names)], rows), "![curves](curves.png)"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(part: Mapping[str, float]) -> str:
    """Return a mean with its interval."""
    return f"{part['mean']:.3f} [{part['low']:.3f}, {part['high']:.3f}]"


def thinned(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most `most` rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    places = sorted({round(i * (len(rows) - 1) / (most - 1)) for i in range(most)})
    return [rows[place] for place in places]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""
