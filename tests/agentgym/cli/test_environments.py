"""Playing an episode by hand: the hint, the header of a turn, the end of the input."""

from __future__ import annotations

import io

import pytest

from agentgym.cli.main import main

PLAY = ["envs", "play", "games/guess-number-v0", "levels=1"]


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_play_says_once_how_a_turn_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "1\n\n2\n\n")
    assert main(PLAY) == 0
    out = capsys.readouterr().out
    hint = "An empty line ends your turn, Ctrl-D the episode."
    assert out.count(hint) == 1
    assert out.index(hint) < out.index("--- turn 1")


def test_play_hints_at_no_keys_where_the_expert_plays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAY, "--expert"]) == 0
    assert "empty line" not in capsys.readouterr().out


def test_play_plays_what_was_typed_before_the_input_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "500\n")
    assert main(PLAY) == 0
    said = capsys.readouterr()
    assert said.err == ""
    # The answer to the one guess is read; the empty rest of the input is no second one.
    assert "--- turn 2\n" in said.out
    assert said.out.splitlines()[-1] == "the input ended after 1 turns; outcome so far 0"


def test_play_without_any_input_takes_no_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "")
    assert main(PLAY) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "the input ended after 0 turns; outcome so far 0"


def test_play_names_the_bound_of_the_task_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bound of this environment is that of its largest size, which the task has not.
    type_in(monkeypatch, "")
    assert main(PLAY) == 0
    assert "--- turn 1\n" in capsys.readouterr().out
    # Arithmetic sets its bound by the level of the task.
    assert main(["envs", "play", "math/arithmetic-v0", "levels=1", "--expert"]) == 0
    assert "--- turn 1 of " in capsys.readouterr().out


# ------------------------------------------------------------ B-5: one way to write arguments


@pytest.mark.parametrize(
    "words",
    [
        ["envs", "show", "math/arithmetic:levels=[1]:tools=false"],
        ["envs", "show", "math/arithmetic-v0", "levels=[1]", "tools=false"],
        ["envs", "show", "math/arithmetic-v0:tools=true:levels=[1]", "tools=false"],
        ["tasks", "show", "math/arithmetic:levels=[1]", "-n", "2"],
        ["envs", "play", "games/guess-number:levels=1", "--expert"],
        ["train", "math/arithmetic:levels=[1]", "--dry-run"],
    ],
)
def test_b5_arguments_stand_beside_the_name_with_or_without_a_version(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["envs", "show", "math/arithmetic:levell=1"], "takes no argument 'levell'"),
        (["envs", "show", "math/arithmetic:weight=2"], "'weight' has no effect here"),
        (["envs", "show", "math/arithmetic,games/wordle"], "one environment is taken here"),
        (
            ["train", "math/arithmetic", "levels=[1,2]"],
            "it is an argument of math/arithmetic, which stands beside its name: math/arithmetic:l",
        ),
        (
            ["eval", "math/arithmetic", "levels=[1,2]", "--policy", "expert"],
            "'levels' is no setting of an evaluation; it is an argument of math/arithmetic",
        ),
    ],
)
def test_b5_what_is_written_elsewhere_is_told_its_place(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    if words[0] == "train":
        pytest.importorskip("torch")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
