"""Curves are drawn from the files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.config import RunConfig
from agentgym.errors import ConfigError
from agentgym.runs import RunFolder
from agentgym.runs.plots import draw_runs, moving_mean, panels, read_curves


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path / "run", RunConfig()) as folder:
        for step in (1, 2, 3):
            row = {"step": step, "zzz": 1.0, "loss": step / 4, "outcome": 0.5, "rollout_s": 2.0}
            folder.append_metrics({**row, "note": "text"})
        for step in (2, 0):
            outcome = {"mean": 0.5, "low": 0.25, "high": 0.875}
            folder.write_evaluation(f"step-{step}", {"step": step, "outcome": outcome})
        folder.write_evaluation("apart", {"step": None, "outcome": outcome})
    return tmp_path / "run"


def test_curves_are_read_from_metrics_and_evaluations(run: Path) -> None:
    curves = read_curves(run)
    assert curves.metrics["loss"] == ([1.0, 2.0, 3.0], [0.25, 0.5, 0.75])
    assert "note" not in curves.metrics
    assert curves.evaluations == ((0, 0.5, 0.25, 0.875), (2, 0.5, 0.25, 0.875))


def test_outcome_comes_first_and_clocks_are_left_out(run: Path) -> None:
    assert panels([read_curves(run)]) == ["outcome", "loss", "zzz"]


def test_runs_are_drawn_as_png_and_svg(run: Path) -> None:
    pytest.importorskip("matplotlib")
    png, svg = draw_runs([run, run], run / "curves")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text(encoding="utf-8")
    assert "</svg>" in text
    assert draw_runs([run, run], run / "again")[0].read_bytes() == png.read_bytes()


def test_run_without_a_step_has_nothing_to_draw(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", RunConfig()).close()
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw_runs([tmp_path / "run"], tmp_path / "curves")


def test_moving_mean_looks_back_over_a_tenth() -> None:
    # 20 values: windows of 2
    assert moving_mean([float(i) for i in range(20)])[:3] == [0.0, 0.5, 1.5]
    assert moving_mean([1.0, 3.0]) == [1.0, 3.0]
