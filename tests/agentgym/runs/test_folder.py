"""The folder of a run: what is written, what is never overwritten, what a resume cuts off."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agentgym.config import EnvSource, RunConfig
from agentgym.errors import ConfigError, RecordError
from agentgym.records import Completion, Score, StopReason, Trajectory, Turn
from agentgym.runs import RunFolder
from agentgym.runs.folder import (
    file_name,
    next_free,
    read_config,
    read_evaluations,
    read_metrics,
    read_scores,
    read_trajectories,
    write_atomic,
)
from agentgym.runs.jsonl import DiskError

CONFIG = RunConfig(envs=(EnvSource(name="math/arithmetic-v0"),), seed=7)


def trajectory(name: str) -> Trajectory:
    turn = Turn(index=0, completion=Completion(text=f"said {name}"))
    return Trajectory(
        id=name,
        group_id="g",
        task_id="t",
        env_id="math/arithmetic-v0",
        turns=(turn,),
        terminated=True,
        stop_reason=StopReason.TERMINATED,
        outcome=0.5,
    )


def score(name: str) -> Score:
    return Score(trajectory_id=name, scorer_id="outcome-v1", outcome=0.5, is_success=False)


def test_new_folder_holds_the_config_and_reads_it_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    RunFolder.create(path, CONFIG).close()
    assert read_config(path) == CONFIG
    assert {file.name for file in path.iterdir()} >= {"config.yaml", "metrics.jsonl"}


def test_records_are_read_back_equal(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        for name in ("a", "b"):
            folder.append_trajectory(trajectory(name))
            folder.append_score(score(name))
    assert list(read_trajectories(tmp_path / "run")) == [trajectory("a"), trajectory("b")]
    assert list(read_scores(tmp_path / "run")) == [score("a"), score("b")]


def test_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, CONFIG) as folder:
        folder.append_metrics({"step": 1})
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(ConfigError, match=f"agentgym train --resume {path}"):
        RunFolder.create(path, RunConfig(seed=8))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_folder_with_other_things_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="not an empty folder"):
            RunFolder.create(path, CONFIG)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, CONFIG).close()
    assert read_config(tmp_path).seed == 7


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    with (
        RunFolder.create(tmp_path / "run", CONFIG),
        pytest.raises(ConfigError, match="another process is writing"),
    ):
        RunFolder.open(tmp_path / "run")
    RunFolder.open(tmp_path / "run").close()  # the lock went with the first one


def test_follower_of_another_process_writes_nothing(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG):
        follower = RunFolder.follow(tmp_path / "run", CONFIG)
        assert follower.checkpoints == tmp_path / "run" / "checkpoints"
        assert follower.offsets() == {}


def test_folder_without_a_run_names_the_runs_beside_it(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "first", CONFIG).close()
    with pytest.raises(ConfigError, match=r"is no run folder.*runs beside it: .*first"):
        RunFolder.open(tmp_path / "frist")


def test_opening_with_another_config_stores_that(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", CONFIG).close()
    later = CONFIG.model_copy(update={"steps": 500})
    RunFolder.open(tmp_path / "run", later).close()
    assert read_config(tmp_path / "run").steps == 500


def test_resume_cuts_every_stream_to_the_checkpoint(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        folder.append_trajectory(trajectory("a"))
        folder.append_score(score("a"))
        folder.append_metrics({"step": 1, "loss": 0.5})
        offsets = folder.offsets()
        folder.append_trajectory(trajectory("b"))
        folder.append_metrics({"step": 2, "loss": 0.25})
    # Killed while it wrote a third record.
    with (tmp_path / "run" / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"torn')
    with RunFolder.open(tmp_path / "run") as folder:
        folder.truncate_to(offsets)
        folder.append_trajectory(trajectory("c"))
    assert [t.id for t in read_trajectories(tmp_path / "run")] == ["a", "c"]
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1]


def test_checkpoint_that_counts_on_more_than_there_is_is_refused(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        folder.append_metrics({"step": 1})
        offsets = folder.offsets()
        with pytest.raises(RecordError, match="part of the run's record is lost"):
            folder.truncate_to({**offsets, "metrics": offsets["metrics"] + 1})
        with pytest.raises(RecordError, match="offsets must name"):
            folder.truncate_to({"metrics": 0})


def test_metrics_are_finite_json_and_a_repeated_step_counts_once(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        folder.append_metrics({"step": 1, "loss": math.nan})
        folder.append_metrics({"step": 2, "loss": math.inf})
        folder.append_metrics({"step": 2, "loss": 0.25})
    assert read_metrics(tmp_path / "run") == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.25}]


def test_broken_record_in_the_middle_names_its_line(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        folder.append_trajectory(trajectory("a"))
        folder.append_score(score("a"))
    path = tmp_path / "run" / "trajectories.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + "{broken}\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"trajectories\.jsonl:2"):
        list(read_trajectories(tmp_path / "run"))
    (tmp_path / "run" / "scores.jsonl").rename(path)
    with pytest.raises(RecordError, match="is no Trajectory"):
        list(read_trajectories(tmp_path / "run"))


def test_evaluations_are_listed_in_the_order_of_steps(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        for name, step in (("b", 20), ("c", 3), ("a", 100)):
            outcome = {"mean": 0.5, "low": 0.25, "high": 0.75}
            folder.write_evaluation(name, {"step": step, "outcome": outcome})
    assert list(read_evaluations(tmp_path / "run")) == ["c", "b", "a"]


def test_atomic_write_leaves_the_old_file_where_it_fails(tmp_path: Path) -> None:
    file = write_atomic(tmp_path / "deep" / "a.json", json.dumps({"old": 1}))
    with pytest.raises(UnicodeEncodeError):
        write_atomic(file, "\ud800")  # half a pair cannot be written
    assert json.loads(file.read_text(encoding="utf-8")) == {"old": 1}
    assert [left.name for left in file.parent.iterdir()] == ["a.json"]


def test_next_folder_is_the_first_free_one(tmp_path: Path) -> None:
    assert next_free("a b/c", tmp_path).name == "a-b-c-1"
    (tmp_path / "a-b-c-1").mkdir()
    assert next_free("a b/c", tmp_path).name == "a-b-c-2"


@pytest.mark.parametrize(
    ("text", "name"), [("a/b", "a-b"), ("../..", "run"), ("-x.", "x"), ("é ü", "run")]
)
def test_names_of_files_stay_inside_the_folder(text: str, name: str) -> None:
    assert file_name(text) == name


def test_what_cannot_be_written_says_so_although_its_remains_cannot_be_removed(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    # Below a file nothing can be made, and nothing can be removed either.
    with pytest.raises(DiskError, match=r"x\.json cannot be written"):
        write_atomic(tmp_path / "file" / "x.json", "{}")


@pytest.mark.parametrize("line", ["[3]", "{", '{"step": [3]}'])
def test_a_damaged_line_of_metrics_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n', encoding="utf-8")
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"outcome": {"mean": 0.5}}', '{"outcome": 0.5}']
)
def test_a_damaged_evaluation_is_named(tmp_path: Path, text: str) -> None:
    write_atomic(tmp_path / "evaluations" / "first.json", text)
    with pytest.raises(RecordError, match=r"evaluations/first\.json"):
        read_evaluations(tmp_path)
