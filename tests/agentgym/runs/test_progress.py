"""What long work tells: pace, time left, lines that agents cannot break."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentgym.evaluation import EvaluationResult, Interval
from agentgym.records import Sampling
from agentgym.runs.progress import (
    Lines,
    Live,
    ProgressSink,
    Silent,
    duration,
    seconds_left,
    shown_metrics,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# By hand: 4 of 10 steps in 20 s are 5 s a step, so 6 steps take 30 s.
@pytest.mark.parametrize(
    ("done", "total", "elapsed", "budget", "left"),
    [
        (4, 10, 20.0, None, 30.0),
        (4, 10, 20.0, 45.0, 25.0),  # the budget ends it first
        (4, 10, 20.0, 500.0, 30.0),
        (0, 10, 20.0, None, None),
        (4, None, 20.0, None, None),
        (4, None, 20.0, 60.0, 40.0),
        (10, 10, 20.0, 15.0, 0.0),
    ],
)
def test_time_left_follows_the_pace_or_the_budget(
    done: int, total: int | None, elapsed: float, budget: float | None, left: float | None
) -> None:
    assert seconds_left(done, total, elapsed, budget) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1:00 min"), (185, "3:05 min"), (7805, "2:10 h")],
)
def test_durations_are_for_a_person(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_come_now_and_then_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, clock=clock)
    lines.on_phase("train", 4)
    for now in (1.0, 12.0, 13.0, 14.0):
        clock.now = now
        lines.on_step({"outcome": 0.25, "loss": 0.5})
    # Silent after 1 s, then 12 s for 2 steps: 12 s for the other 2; at the end always.
    assert stream.getvalue().splitlines() == [
        "train: 4 steps",
        "train 2/4, 12 s left: outcome 0.25  loss 0.5",
        "train 4/4, 0 s left: outcome 0.25  loss 0.5",
    ]


def test_live_line_shows_what_it_is_told() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    with Live(console, budget_s=3600.0) as live:
        live.on_phase("[bold]train[/bold]", 2)
        live.on_step({"outcome": 0.25})
        live.on_note("[red]\x1b[31mnote")
        live.on_step({})
        live.on_done({"report": "run/report.md"})
    text = stream.getvalue()
    assert "[bold]train[/bold]" in text  # markup is text
    assert "2/2" in text
    assert "[red]\\x1b[31mnote" in text  # escapes are text
    assert "report: run/report.md" in text


def test_every_sink_keeps_the_protocol() -> None:
    for sink in (Silent(), Lines(io.StringIO()), Live(Console(file=io.StringIO()))):
        assert isinstance(sink, ProgressSink)
        sink.on_step({"loss": 1.0})  # before any phase


def test_most_telling_metrics_are_shown_first() -> None:
    metrics = {"loss": 2.0, "zzz": 1.0, "outcome": 0.12345, "grad_norm": 3.0, "success": 0.5}
    assert shown_metrics(metrics) == "outcome 0.1235  success 0.5  loss 2  grad_norm 3"
    assert shown_metrics({"zzz": 1.0}) == "zzz 1"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_b8_a_narrow_terminal_leaves_out_metrics_and_cuts_no_time(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    metrics = {"outcome": 0.9844, "success": 0.9844, "loss": -0.0316, "turns_per_episode": 2.312}
    with Live(console) as live:
        live.on_phase("train", 60)
        for _ in range(60):
            live.on_step(metrics)
    line = [line for line in stream.getvalue().splitlines() if "60/60" in line][-1]
    assert "…" not in line
    assert "outcome 0.9844" in line
    assert ("turns_per_episode 2.312" in line) == (width == 140)


def test_metrics_are_shown_whole_or_not_at_all() -> None:
    metrics = {"outcome": 0.5, "success": 0.25}
    assert shown_metrics(metrics, room=11) == "outcome 0.5"
    assert shown_metrics(metrics, room=24) == "outcome 0.5"
    assert shown_metrics(metrics, room=25) == "outcome 0.5  success 0.25"
    assert shown_metrics(metrics, room=3) == ""


def test_b8_a_warning_is_said_once() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    for step in (1, 2):
        lines.on_evaluation(evaluation(step, "all were cut off"))
    lines.on_evaluation(evaluation(3, "many failed"))
    text = stream.getvalue()
    assert text.count("warning: all were cut off") == 1
    assert text.count("warning: many failed") == 1
    assert text.count("outcome 0.500") == 3


def evaluation(step: int, warning: str) -> EvaluationResult:
    interval = Interval(mean=0.5, low=0.4, high=0.6, count=9)
    return EvaluationResult(
        name=f"step-{step:06d}",
        policy_id="p",
        suites=("a/b",),
        split="held_out",
        attempts_per_task=1,
        sampling=Sampling(),
        seed=0,
        scorer_id="s",
        outcome=interval,
        success=interval,
        pass_at={},
        pooled_outcome=0.5,
        outcome_without_failures=None,
        counts={"failed": 0, "tasks": 9},
        breakdowns={},
        attempts=(),
        warnings=(warning,),
    )
