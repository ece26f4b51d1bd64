"""The arguments of environments in `agentgym eval`: beside the name, as `envs=[…]`, from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.cli.evaluate_settings import settings_of
from agentgym.cli.main import main
from agentgym.config import InvalidInputError

GRID = "games/gridworld"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, *entries: object) -> Path:
    """Return a file that lists `entries` as `envs`."""
    file = folder / "run.yaml"
    file.write_text(json.dumps({"envs": entries}), encoding="utf-8")
    return file


def sources(words: list[str], file: Path | None = None) -> list[tuple[str, dict[str, Any]]]:
    config = settings_of(words, file, policy="expert")
    return [(source.name, dict(source.kwargs)) for source in config.envs]


def levels_of(result: str) -> set[str]:
    """Return the levels in the ids of the tasks, such as games/gridworld/gridworld-1-held_out-7."""
    found = json.loads(result)
    assert found["counts"]["failed"] == 0
    return {attempt["task"].split("-")[-3] for attempt in found["attempts"]}


def test_arguments_of_a_file_are_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(here, {"name": GRID, "kwargs": {"levels": [1]}}))
    arguments = ["eval", GRID, "--policy", "expert", "-n", "4", "--json"]
    assert main(arguments) == 0
    assert len(levels_of(capsys.readouterr().out)) > 1  # without arguments: several levels
    assert main([*arguments, "--config", file]) == 0
    assert levels_of(capsys.readouterr().out) == {"1"}


@pytest.mark.parametrize("name", ["guess-number", "gridworld", "wordle"])
def test_levels_of_a_suite_of_games_choose_its_tasks(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments = ["eval", f"games/{name}:levels=[2]", "--policy", "expert", "-n", "4", "--json"]
    assert main(arguments) == 0
    assert levels_of(capsys.readouterr().out) == {"2"}


@pytest.mark.parametrize("form", ["file", "word", "setting", "alone"])
def test_arguments_that_the_environment_refuses_are_wrong_input(
    here: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file = str(write(here, {"name": GRID, "kwargs": {"levels": [77]}}))
    listed = f"envs=[{{name: {GRID}, kwargs: {{levels: [77]}}}}]"
    words = {
        "file": [GRID, "--config", file],
        "word": [f"{GRID}:levels=[77]"],
        "setting": [GRID, listed],
        "alone": [listed],
    }[form]
    assert main(["eval", *words, "--policy", "expert", "-n", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "77" in line
    assert "level" in line


def test_a_game_without_an_expert_is_the_one_that_a_file_names(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("textarena")
    file = str(write(here, {"name": "games/textarena-v0", "kwargs": {"game": "Sudoku-v0"}}))
    arguments = ["eval", "games/textarena-v0", "--policy", "expert", "-n", "2", "--config", file]
    assert main(arguments) == 1
    assert "there is no expert for Sudoku" in capsys.readouterr().out


def test_an_argument_beside_the_name_wins_over_the_file_one_by_one(here: Path) -> None:
    file = write(here, {"name": GRID, "kwargs": {"levels": [1], "slack": 9}, "weight": 2})
    assert sources([f"{GRID}:levels=[2]"], file) == [(GRID, {"levels": [2], "slack": 9})]
    # As everywhere, a setting of the command line replaces the file's.
    listed = f"envs=[{{name: {GRID}, kwargs: {{slack: 3}}}}]"
    assert sources([GRID, listed], file) == [(GRID, {"slack": 3})]


def test_a_list_of_sources_needs_no_words_before_it(here: Path) -> None:
    assert sources([f"envs={GRID}:levels=[1],math/linear"]) == [
        (GRID, {"levels": [1]}),
        ("math/linear", {}),
    ]
    file = write(here, {"name": GRID, "kwargs": {"levels": [1]}})
    assert sources(["eval.tasks=3"], file) == [(GRID, {"levels": [1]})]


def test_an_entry_that_matches_nothing_is_refused_by_name(here: Path) -> None:
    file = write(here, {"name": "games/gridwolrd", "kwargs": {"levels": [1]}}, "math/linear")
    with pytest.raises(InvalidInputError) as caught:
        sources([GRID], file)
    first, second = str(caught.value).splitlines()
    assert "'games/gridwolrd' is listed in 'envs', but is not evaluated" in first
    assert f"did you mean {GRID!r}?" in first
    assert "'math/linear' is listed in 'envs', but is not evaluated" in second


def test_a_source_listed_twice_with_other_arguments_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{"name": GRID, "kwargs": {"levels": [level]}} for level in (1, 2)]
    file = str(write(here, *entries))
    assert main(["eval", GRID, "--policy", "expert", "--config", file]) == 2
    assert "is given twice for evaluation" in capsys.readouterr().err


def test_share_and_split_of_a_list_are_refused_on_the_command_line_alone(here: Path) -> None:
    # A run's own file says how to train: that is no mistake of an evaluation.
    file = write(here, {"name": GRID, "weight": 2, "split": "train"})
    assert sources([GRID], file) == [(GRID, {})]
    with pytest.raises(InvalidInputError, match="'weight' has no effect here"):
        sources([GRID, f"envs=[{{name: {GRID}, weight: 2}}]"])
    with pytest.raises(InvalidInputError, match="'split' has no effect here"):
        sources([f"envs={GRID}:split=train"])
