"""Class of B-7: *what failed before it began leaves something behind*.

A run that ends before there is anything to go on from, or to read, takes its folder away; one that
has begun keeps it, and says how to go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym import api
from agentgym.cli.main import main
from agentgym.config import RunConfig
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.runs import RunFolder


class Setup:
    """Stands for `agentgym.trainers.loop.setup`: opening the session does `work` and fails."""

    def __init__(self, work: Any, error: BaseException) -> None:
        self.work = work
        self.error = error

    def check_inputs(self, config: RunConfig) -> RunConfig:
        return config

    async def open_session(self, inputs: RunConfig, folder: RunFolder, **_: Any) -> None:
        self.work(folder)
        raise self.error


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def build_base(folder: RunFolder) -> None:
    (folder.path / "base").mkdir()
    (folder.path / "base" / "config.json").write_text("{}")
    (folder.path / "live.json").write_text("{}")


def keep_warm_start(folder: RunFolder) -> None:
    (folder.path / "warmstart").mkdir()


def record_step(folder: RunFolder) -> None:
    folder.append_metrics({"step": 1})


ERRORS = [
    (KeyError("no such thing"), 1),
    (PolicyError("the model cannot be loaded"), 1),
    (InfrastructureError("a server is away"), 1),
    (ValueError("wrong"), 1),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
@pytest.mark.parametrize(
    ("work", "stays"), [(build_base, False), (keep_warm_start, True), (record_step, True)]
)
def test_b7_a_folder_stays_only_if_there_is_work_in_it(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    work: Any,
    stays: bool,
) -> None:
    pytest.importorskip("torch")
    setup = Setup(work, error)
    monkeypatch.setattr(api, "load_part", lambda name: setup)
    monkeypatch.setattr(api, "write_report", lambda path: None)
    assert main(["train", "math/arithmetic", "eval.at_start=false", "--quiet"]) == code
    err = capsys.readouterr().err
    assert (here / "runs" / "arithmetic-grpo-1").is_dir() == stays
    assert (here / "runs").is_dir() == stays
    assert stays or "--resume" not in err


def test_b7_another_run_beside_it_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create(here / "runs" / "other", RunConfig()).close()
    monkeypatch.setattr(api, "load_part", lambda name: Setup(build_base, PolicyError("no")))
    with pytest.raises(PolicyError):
        api.run_training(RunConfig(), here / "runs" / "new", is_resumed=False)
    assert [path.name for path in (here / "runs").iterdir()] == ["other"]


def test_b7_a_resumed_run_s_folder_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create(here / "run", RunConfig()).close()
    monkeypatch.setattr(api, "load_part", lambda name: Setup(build_base, PolicyError("no")))
    with pytest.raises(PolicyError):
        api.run_training(RunConfig(), here / "run", is_resumed=True)
    assert (here / "run" / "config.yaml").is_file()
