"""The command line as a user meets it: exit codes, one line for each mistake, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.cli.main import main
from agentgym.records import Task

pytest.importorskip("torch")

# (what is wrong, arguments, words of the line)
BAD_INPUT = [
    ("env", ["train", "math/arithmetik-v0"], "did you mean 'math/arithmetic-v0'?"),
    ("preset", ["train", "math/arithmetic", "--preset", "grop"], "did you mean 'grpo'?"),
    ("preset list", ["presets", "show", "nope"], "; `agentgym presets list` shows all of them"),
    ("presets", ["train", "math/arithmetic", "--preset", "foo"], "`agentgym presets list` shows"),
    ("key", ["train", "math/arithmetic", "optim.learning_ratee=1"], "did you mean"),
    ("section", ["train", "math/arithmetic", "model.group_size=4"], "belongs in section 'rollout'"),
    ("type", ["train", "math/arithmetic", "steps=many"], "must be a whole number"),
    ("missing file", ["train", "--config", "none.yaml"], "cannot be read"),
    ("yaml", ["train", "--config", "bad.yaml"], "bad.yaml:3:2: malformed YAML"),
    ("model folder", ["train", "math/arithmetic", "--policy", "empty"], "is no model folder"),
    ("half a run", ["eval", "math/arithmetic", "--policy", "half"], "--resume half"),
    ("empty suite", ["train", "test/empty"], "is empty"),
    ("group of one", ["train", "math/arithmetic", "rollout.group_size=1"], "2 or more"),
    ("option", ["train", "math/arithmetic", "--precet", "grpo"], "--precet"),
    ("command", ["trian"], "trian"),
    ("no run", ["train", "--resume", "nowhere"], "is no run folder"),
    ("eval env", ["eval", "math/arithmetik", "--policy", "expert"], "did you mean"),
    ("eval policy", ["eval", "math/arithmetic", "--policy", "nope"], "unknown policy 'nope'"),
    ("eval new model", ["eval", "math/arithmetic", "--policy", "tiny"], "knows nothing"),
    ("show", ["envs", "show", "math/arithmetic-v0", "levell=1"], "takes no argument 'levell'"),
    ("suite", ["tasks", "show", "math/arithmetik"], "did you mean"),
    ("split", ["tasks", "show", "math/arithmetic", "--split", "trian"], "did you mean 'train'?"),
    ("preset key", ["presets", "show", "grpo", "gate.clip_hig=1"], "did you mean 'clip_high'?"),
    ("view", ["view", "nowhere"], "is no run folder"),
    ("plot", ["plot", "nowhere"], "is no run folder"),
    ("compare", ["compare", "nowhere"], "two sides or more"),
    ("init", ["init", "My-Env"], "lower-case word"),
    ("number", ["tasks", "show", "math/arithmetic", "-n", "abc"], "'-n': "),
    ("number got", ["tasks", "show", "math/arithmetic", "-n", "abc"], "(got 'abc')"),
    ("seed", ["envs", "play", "math/arithmetic-v0", "--seed", "-1"], "'--seed': "),
    ("no policy", ["eval", "math/arithmetic"], "Missing option '--policy'"),
    ("not text", ["presets", "show", "bin.yaml"], "bin.yaml: the file is not UTF-8 text"),
    ("init file", ["init", "okay", "--folder", "bad.yaml/x/y"], "(got 'bad.yaml/x/y': Not a dir"),
    ("init json", ["init", "json"], "a module 'json' is here already"),
    ("init math", ["init", "math"], "a module 'math' is here already"),
    ("init own", ["init", "agentgym"], "a module 'agentgym' is here already"),
    ("cycle", ["train", "--config", "cycle.yaml"], "cycle.yaml:1: an alias (*) names what it is"),
    ("policies", ["eval", "math/arithmetic", "--policy", "exprt"], "expert, human or openai:URL"),
    ("slot", ["train", "--config", "slot.yaml"], "written below 'preset_overrides', or with dots"),
    ("levels", ["envs", "show", "math/arithmetic-v0", "levels=abc"], "(got 'abc')"),
    ("tools", ["envs", "show", "math/arithmetic-v0", "tools=maybe"], "(got 'maybe')"),
    ("path", ["envs", "play", "math/file-v0"], "math/file-v0 needs path=…"),
    ("tasks path", ["tasks", "show", "math/file-v0"], "math/file-v0 needs path=…"),
    ("validated path", ["tasks", "validate", "math/file-v0"], "math/file-v0 needs path=…"),
    ("train path", ["train", "math/file-v0"], "math/file-v0 needs path=…"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a malformed file, an empty model folder and an empty suite."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("a:\n  b: 1\n c: 2\n", encoding="utf-8")
    (tmp_path / "bin.yaml").write_bytes(b"name: \xff\xfe")
    (tmp_path / "cycle.yaml").write_text("model: &a\n  x: *a\n", encoding="utf-8")
    slot = "envs: [math/arithmetic]\ngate: {clip_high: 0.4}\n"
    (tmp_path / "slot.yaml").write_text(slot, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    (tmp_path / "half" / "checkpoints").mkdir()
    from agentgym import tasks
    from agentgym.env.suite import Suite

    module = type(sys)("agentgym_test_suites")
    held_out = Task(id="a", env_id="math/arithmetic-v0", split="held_out")
    splits = {"train": (), "held_out": (held_out,)}
    module.__dict__["empty"] = lambda: Suite(
        name="test/empty", env_id="math/arithmetic-v0", splits=splits
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(tasks.SUITES, "test/empty", f"{module.__name__}:empty")
    return tmp_path


@pytest.mark.parametrize(("arguments", "words"), [case[1:] for case in BAD_INPUT])
def test_bad_input_is_one_line_and_exit_code_2_n6(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    before = sorted(here.rglob("*"))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert words in lines[0]
    assert "Traceback" not in captured.err
    assert sorted(here.rglob("*")) == before  # nothing has started


def test_each_mistake_has_its_own_line_n7(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "math/arithmetik", "--preset", "grop", "foo=1", "steps=0"]
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_installed_command_ends_with_its_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentgym.cli.main", "train", "--config", "none.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "none.yaml: the file cannot be read (No such file or directory)\n"


def test_failure_of_the_work_is_one_line_and_exit_code_1(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "notes.json").write_text("{}", encoding="utf-8")
    assert main(["compare", "notes.json", "notes.json"]) == 1  # it can be read, and is no result
    (line,) = capsys.readouterr().err.splitlines()
    assert "notes.json: an evaluation of schema version 1 is needed (got None)" in line
    assert "AGENTGYM_TRACEBACK=1" in line
    monkeypatch.setenv("AGENTGYM_TRACEBACK", "1")
    assert main(["compare", "notes.json", "notes.json"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_help_and_version_are_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("init", "envs", "tasks", "presets", "train", "eval", "compare", "view"):
        assert command in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


@pytest.mark.parametrize("group", ["envs", "tasks", "presets"])
def test_group_without_a_command_lists(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 0
    plain = capsys.readouterr().out
    assert main([group, "list"]) == 0
    assert capsys.readouterr().out == plain
    assert main([group, "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 1


def test_dry_run_prints_the_config_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert main(["train", "math/arithmetic", "--dry-run", "gate.clip_high=0.3", "seed=4"]) == 0
    out = capsys.readouterr().out
    for words in ("gate.clip_high: 0.3", "seed: 4", "episodes a step", "staleness", "memory"):
        assert words in out
    # What matters comes first.
    assert out.index("512 episodes that the tokenizer learns from") < out.index("seed: 4")
    assert "runs/arithmetic-grpo-1" in out
    assert sorted(here.rglob("*")) == before


def test_flag_reaches_the_config_and_its_absence_does_not_n3_n4(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "run.yaml").write_text("allow_leak: true\nenvs: [math/arithmetic]\n", encoding="utf-8")
    shown: list[bool] = []
    for flags in ([], ["--no-allow-leak"], ["--allow-leak"], ["allow_leak=False"]):
        assert main(["train", "--config", "run.yaml", "--dry-run", *flags]) == 0
        shown.append("allow_leak: true" in capsys.readouterr().out)
    assert shown == [True, False, True, False]


def test_closed_pipe_is_no_failure(tmp_path: Path) -> None:
    command = f"{sys.executable} -m agentgym.cli.main tasks show math/arithmetic -n 1500 | head -1"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


def test_one_level_needs_no_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "show", "math/arithmetic-v0", "levels=1"]) == 0
    assert "first observation" in capsys.readouterr().out


def test_command_alone_prints_its_help_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Usage: ")
    assert "Commands:" in lines


def test_interruption_is_said_and_has_the_shells_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    assert main(["envs", "play", "math/arithmetic-v0"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
