"""Curves of a run, or of several, as PNG and SVG. Matplotlib is loaded when they are drawn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError, MissingExtraError
from agentgym.runs.folder import read_evaluations, read_metrics
from agentgym.runs.reserved import reserve

FIRST = (
    *(
        "outcome",
        "success",
        "reward_",
        "loss",
        "grad_norm",
        "turns_per_episode",
        "tool_calls_per_episode",
    ),
    *("tokens_per_episode", "truncated_share", "entropy", "kl", "clip", "ratio", "advantage"),
)
"""Words that put a metric to the front, the first ones first."""
_NOT_CURVES = ("step", "policy_version", "time", "seconds", "elapsed", "_sum", "_total", "_s")
MOST_PANELS = 8
_COLUMNS = 3
_SMOOTHING = 0.1  # share of the steps that a moving mean covers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """What a run's folder holds to be drawn."""

    name: str
    """Name of the folder."""
    metrics: Mapping[str, tuple[list[float], list[float]]]
    """name -> steps and values."""
    evaluations: tuple[tuple[float, float, float, float], ...]
    """(step, mean, low, high) of each evaluation."""


def read_curves(path: Path) -> RunCurves:
    """Return the curves of a run's folder."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for position, row in enumerate(read_metrics(path)):
        step = float(row.get("step", position))
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(value))
    evaluations: list[tuple[float, float, float, float]] = []
    for result in read_evaluations(path).values():
        interval = result.get("outcome", {})
        if result.get("step") is not None and {"mean", "low", "high"} <= set(interval):
            point = (result["step"], interval["mean"], interval["low"], interval["high"])
            evaluations.append(point)
    return RunCurves(name=path.name, metrics=curves, evaluations=tuple(sorted(evaluations)))


def panels(runs: Sequence[RunCurves]) -> list[str]:
    """Return the metrics to draw, the most telling ones first."""
    names = {
        name
        for run in runs
        for name, (_, values) in run.metrics.items()
        if len(values) > 1 and not name.endswith(_NOT_CURVES)
    }

    def rank(name: str) -> tuple[int, str]:
        places = [place for place, word in enumerate(FIRST) if word in name]
        return (min(places, default=len(FIRST)), name)

    return sorted(names, key=rank)[:MOST_PANELS]


def draw_runs(paths: Sequence[Path], stem: Path) -> tuple[Path, Path]:
    """Draw the curves of runs into `stem`.png and `stem`.svg, and return both paths.

    Raises:
        ConfigError: If no run has a step or an evaluation to draw, or a file cannot be written.
        MissingExtraError: If matplotlib is not installed.
    """
    if not stem.name:
        raise ConfigError(f"'{stem}' is a folder: name the file without its ending")
    files = stem.with_suffix(".png"), stem.with_suffix(".svg")
    with reserve(files[0]), reserve(files[1]):
        figure = _drawn([read_curves(path) for path in paths])
        if figure is None:
            raise ConfigError(f"nothing to draw yet in {', '.join(map(str, paths))}")
        for file in files:
            # No date inside: equal curves give equal files.
            dated = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=120, metadata=dated)
    return files


def _drawn(runs: Sequence[RunCurves]) -> Any:
    """Return the figure of the runs' curves, None if there is nothing to draw."""
    names = panels(runs)
    has_evaluations = any(run.evaluations for run in runs)
    if not names and not has_evaluations:
        return None
    figure = _figure(len(names) + has_evaluations)
    axes = list(figure.axes)
    if has_evaluations:
        _draw_evaluations(axes.pop(0), runs)
    for axis, name in zip(axes, names, strict=False):
        _draw_metric(axis, runs, name)
    figure.tight_layout()
    return figure


def draw_if_any(path: Path) -> None:
    """Draw a run's curves into its folder, where there is something to draw and to draw with."""
    with contextlib.suppress(ConfigError, MissingExtraError):
        draw_runs([path], path / "curves")


def _figure(count: int) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing curves", extra="train") from error
    rows = math.ceil(count / _COLUMNS)
    # No pyplot: it opens windows and keeps global state.
    figure: Any = Figure(figsize=(4.2 * min(count, _COLUMNS), 3.0 * rows))
    FigureCanvasAgg(figure)
    for position in range(count):
        figure.add_subplot(rows, min(count, _COLUMNS), position + 1)
    return figure


def _draw_evaluations(axis: Any, runs: Sequence[RunCurves]) -> None:
    for number, run in enumerate(runs):
        if not run.evaluations:
            continue
        steps, means, lows, highs = zip(*run.evaluations, strict=True)
        below = [mean - low for mean, low in zip(means, lows, strict=True)]
        above = [high - mean for mean, high in zip(means, highs, strict=True)]
        axis.errorbar(
            steps, means, yerr=[below, above], marker="o", capsize=3, color=f"C{number}",
            label=run.name,
        )  # fmt: skip
    axis.set_title("held-out outcome, 95 %")
    axis.set_ylim(-0.02, 1.02)
    _finish(axis, runs)


def _draw_metric(axis: Any, runs: Sequence[RunCurves], name: str) -> None:
    for number, run in enumerate(runs):
        steps, values = run.metrics.get(name, ([], []))
        if not values:
            continue
        axis.plot(steps, values, color=f"C{number}", alpha=0.3, linewidth=0.8)
        axis.plot(steps, moving_mean(values), color=f"C{number}", label=run.name)
    axis.set_title(name)
    _finish(axis, runs)


def _finish(axis: Any, runs: Sequence[RunCurves]) -> None:
    axis.set_xlabel("step")
    axis.grid(visible=True, alpha=0.3)
    if len(runs) > 1:
        axis.legend(fontsize="x-small")


def moving_mean(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and those just before it, over a tenth of all values."""
    window = max(1, round(len(values) * _SMOOTHING))
    return [
        math.fsum(values[max(0, end - window) : end]) / (end - max(0, end - window))
        for end in range(1, len(values) + 1)
    ]
