"""Class of fault F43: *written last, under a name nobody checked*.

A file that holds the outcome of long work is taken before the work: its name, its folder, the right
to write, and that nobody else takes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.errors import ConfigError
from agentgym.runs.folder import file_name, next_free
from agentgym.runs.reserved import reserve, reserve_new


def test_f43_any_text_makes_a_name_that_every_file_system_takes(tmp_path: Path) -> None:
    long = "-".join(["code/functions", "games/wordle"] * 40)
    name = file_name(long)
    assert len(name) == 100
    assert name != file_name(f"{long}-other")  # both begin alike
    (tmp_path / f".{name}-1234.json.tmp").touch()
    (tmp_path / file_name("ü" * 300)).touch()
    assert file_name("a/b c") == "a-b-c"


def test_f43_run_folders_of_long_names_can_be_made(tmp_path: Path) -> None:
    next_free("x" * 400, tmp_path).mkdir()


def test_f43_two_that_begin_together_take_two_files(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "evaluations"
    with reserve_new(folder, "a") as first, reserve_new(folder, "a") as second:
        assert [first.path.name, second.path.name] == ["a-1.json", "a-2.json"]
        # Nobody who lists results meanwhile finds one that is not there yet.
        assert list(folder.glob("*.json")) == []
        second.write("two")
        first.write("one")
    with reserve_new(folder, "a") as third:
        assert third.path.name == "a-3.json"
    assert sorted(path.name for path in folder.iterdir()) == ["a-1.json", "a-2.json"]
    assert (folder / "a-1.json").read_text() == "one"


def test_f43_what_was_taken_and_not_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), reserve_new(tmp_path / "runs" / "evaluations", "a"):
        raise RuntimeError("the work failed")
    assert list(tmp_path.iterdir()) == []


def test_f43_an_error_of_the_work_is_not_taken_for_a_wrong_name(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), reserve(tmp_path / "a.json"):
        raise ConnectionError("reset by peer")


def test_f43_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    with reserve(tmp_path / "a.json") as taken:
        assert (tmp_path / "a.json").read_text() == "old"
        taken.write("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "new"


@pytest.mark.parametrize("name", ["file/a.json", "folder", f"{'n' * 300}.json"])
def test_f43_a_name_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"), reserve(tmp_path / name):
        pytest.fail("the work has begun")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
