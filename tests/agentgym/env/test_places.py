"""An environment is found only where a package was installed.

A file, a module in the current folder and a suite made in Python are places of environments and
suites wherever an id is taken; what is missing is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.env import registry, suites
from agentgym.env.suite import Suite
from agentgym.env.suites import check_leaks, load_suite, register_suite
from agentgym.env.task_files import Origin, splits_of
from agentgym.errors import RegistryError, TaskError
from agentgym.records import Task

CODE = """
from agentgym import Suite, TextEnv, register_env, register_suite

@register_env("place/{name}-v0")
class Backwards(TextEnv):
    def start(self, task, rng):
        return task.prompt or "ab"

    def respond(self, action):
        return self.finish(outcome=float(action.strip() == (self.task.prompt or "ab")[::-1]))

    def expert(self):
        return (self.task.prompt or "ab")[::-1]
"""
SUITE = """
register_suite(
    Suite.from_jsonl(
        "{path}", env_id="place/{name}-v0", question="word", answer="drow", held_out=0.5
    )
)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The console script's own folder, and not the current one, is first on its path.
    code = "import sys; sys.path.pop(0); from agentgym.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"word": f"w{n}x{n * 7}", "n": n} for n in range(10)]
    for row in rows:
        row["drow"] = str(row["word"])[::-1]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    (tmp_path / "one.py").write_text(CODE.format(name="one"), "utf-8")
    both = CODE.format(name="both") + SUITE.format(path="rows.jsonl", name="both")
    (tmp_path / "both.py").write_text(both, "utf-8")
    (tmp_path / "none.py").write_text("x = 1\n", "utf-8")
    (tmp_path / "needs.py").write_text("import not_there_at_all\n", "utf-8")
    (tmp_path / "two.py").write_text(
        CODE.format(name="two") + '\nregister_env("place/three-v0")(Backwards)\n', "utf-8"
    )
    return tmp_path


def test_a3_file_and_module_in_the_current_folder_are_places(folder: Path) -> None:
    for name in ("one.py", "one.py:place/one-v0", "one:place/one-v0"):
        done = run(folder, "envs", "show", name)
        assert (done.returncode, "first observation of seed 0:\nab" in done.stdout) == (0, True), (
            name
        )
    done = run(folder, "eval", "both.py", "--policy", "expert", "-n", "4", "-k", "1")
    assert done.returncode == 0, done.stderr
    assert "1.000" in done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nosuch:demo/x-v0", "no module 'nosuch' on the path or in"),
        ("nosuch.py", "there is no file 'nosuch.py'"),
        ("none.py", "none.py registers no environment: decorate a class with @register_env"),
        ("two.py", "two.py:place/three-v0, two.py:place/two-v0"),
        ("needs.py", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("one.py:place/onne-v0", "did you mean 'place/one-v0'?"),
    ],
)
def test_a3_what_is_missing_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(RegistryError, match=says.replace("(", r"\(").replace("?", r"\?")):
        registry.spec(name)


def test_a5_rows_become_a_suite_whose_splits_share_no_question(folder: Path) -> None:
    path = folder / "rows.jsonl"
    lines = path.read_text("utf-8")
    path.write_text(lines + json.dumps({"word": "W0X0", "drow": "0x0w", "n": -1}) + "\n", "utf-8")
    suite = Suite.from_jsonl(
        path, env_id="place/x-v0", question="word", answer="drow", held_out=0.3
    )
    # 10 different questions: 3 held out, and w0x0 stands twice in one split.
    questions = {split: {t.prompt.casefold() for t in suite.tasks(split)} for split in suite.splits}
    assert {split: len(found) for split, found in questions.items()} == {"train": 7, "held_out": 3}
    assert sum(len(suite.tasks(split)) for split in suite.splits) == 11
    assert check_leaks(suite.tasks("train"), suite.tasks("held_out")) == ()
    assert (suite.name, suite.source) == ("place/rows", None)
    first = next(t for split in suite.splits for t in suite.tasks(split) if t.prompt == "w3x21")
    assert (first.answers, dict(first.payload)) == (("12x3w",), {"n": 3})


def test_a5_source_beside_the_rows_is_taken(folder: Path) -> None:
    (folder / "SOURCE").write_text("licence: MIT\norigin: made here\n", "utf-8")
    suite = Suite.from_jsonl(folder / "rows.jsonl", env_id="p/x-v0", question="word", answer="drow")
    assert suite.source == Origin(licence="MIT", origin="made here")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"wrod": "a", "answer": "b"}', r"line 1 has no field 'word' \(did you mean 'wrod'\?\)"),
        ('{"word": 3, "answer": "b"}', "'word' must be a text that is not empty"),
        ('{"word": "a", "answer": {}}', "'answer' must be a text, a number or a list"),
        ('["a", "b"]', "line 1 must be an object"),
        ('{"word": ', "line 1 is not JSON"),
        ("", "holds no row"),
    ],
)
def test_a5_bad_rows_are_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n", "utf-8")
    with pytest.raises(TaskError, match=says):
        splits_of(path, env_id="p/x-v0", question="word", answer="answer", held_out=0.2)


def test_a5_share_outside_its_range_and_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"'held_out' must be a share in \[0, 1\] \(got 2\)"):
        Suite.from_jsonl(tmp_path / "x", env_id="p/x-v0", held_out=2)
    with pytest.raises(TaskError, match="cannot be read"):
        Suite.from_jsonl(tmp_path / "x", env_id="p/x-v0")


def test_a5_registered_suite_is_known_by_its_name_and_refuses_a_taken_one() -> None:
    suite = Suite(
        name="place/sums", env_id="p/x-v0", splits={"train": (Task(id="a", env_id="p/x-v0"),)}
    )
    try:
        assert register_suite(suite) is suite
        register_suite(suite)  # the same module again, as a notebook does
        assert load_suite("place/sums") == suite
        assert "place/sums" in suites.list_suites()
        taken = Suite(name="math/arithmetic", env_id="p/x-v0", splits=suite.splits)
        with pytest.raises(TaskError, match=r"'math/arithmetic' is taken by agentgym\.tasks\.math"):
            register_suite(taken)
    finally:
        suites.unregister_suite("place/sums")
