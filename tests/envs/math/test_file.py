"""`math/file-v0` and the files it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.env.suites import load_suite
from agentgym.envs.math.problem_files import read_problems
from agentgym.errors import TaskError

pytest.importorskip("math_verify")

ENV_ID = "math/file-v0"
GSM8K = {
    "question": "Tom has 48 clips and sells half. How many has he had in all?",
    "answer": "He sold 48/2 = <<48/2=24>>24. 48+24 = <<48+24=72>>72.\n#### 72",
}
MATH = {
    "problem": "What is $\\frac12+\\frac13$?",
    "level": "Level 3",
    "type": "Algebra",
    "solution": "We get $\\boxed{\\frac{5}{6}}$.",
}


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_read_problems_takes_both_shapes(tmp_path: Path) -> None:
    file = _write(tmp_path / "train.jsonl", [GSM8K, MATH])
    gsm8k, math = read_problems(file)
    assert (gsm8k.gold, math.gold) == ("72", r"\frac{5}{6}")
    assert gsm8k.solution == GSM8K["answer"]
    assert (math.tags, math.difficulty) == (("Level 3", "Algebra"), 3.0)
    assert (gsm8k.id, math.id) == ("train-000000", "train-000001")


def test_bare_answers_go_before_solutions(tmp_path: Path) -> None:
    row = {
        "problem": "q",
        "solution": r"… \boxed{7}",
        "answer": "8",
        "subject": "Algebra",
        "level": 2,
    }
    (problem,) = read_problems(_write(tmp_path / "a.jsonl", [row]))
    assert (problem.gold, problem.solution, problem.difficulty) == ("8", r"… \boxed{7}", 2.0)


def test_folder_names_its_splits(tmp_path: Path) -> None:
    _write(tmp_path / "train" / "algebra.jsonl", [GSM8K])
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "1.json").write_text(json.dumps(MATH))  # as MATH lies: a problem a file
    problems = read_problems(tmp_path)
    assert [(p.id, p.split) for p in problems] == [
        ("test/1-000000", "held_out"),
        ("train/algebra-000000", "train"),
    ]
    suite = load_suite(ENV_ID, env_kwargs={"path": str(tmp_path)})
    assert [suite.size(split) for split in ("train", "held_out")] == [1, 1]


def test_without_names_one_question_in_eight_is_held_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": f"What is {i}?", "answer": str(i)} for i in range(400)
    ]
    # A repeated question lands in the split of the first.
    problems = read_problems(_write(tmp_path / "all.jsonl", [*rows, *rows]))
    held_out = [p for p in problems if p.split == "held_out"]
    assert 60 <= len(held_out) <= 140  # 100 of 800 expected
    assert not {p.question for p in held_out} & {p.question for p in problems if p.split == "train"}


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([GSM8K, GSM8K]), tmp_path / "train.parquet")
    assert [p.gold for p in read_problems(tmp_path)] == ["72", "72"]


def test_gold_answers_that_cannot_be_read_are_named_d10(tmp_path: Path) -> None:
    bad = {"question": "?", "answer": "???"}
    file = _write(tmp_path / "x.jsonl", [GSM8K, bad, *[bad] * 6])
    with pytest.raises(TaskError, match=r"row x-000001: .*'\?\?\?'") as caught:
        agentgym.make(ENV_ID, path=str(file))
    assert "and 2 more rows" in str(caught.value)
    assert len(read_problems(file, skip_unreadable=True)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "a"}', "row b-000000 needs one of the fields answer"),
        ('{"answer": "1"}', "needs one of the fields question"),
        ("{not json", "b.jsonl line 1 is not JSON"),
        ("[1, 2]", "must be an object"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "b.jsonl").write_text(content)
    with pytest.raises(TaskError, match=message):
        read_problems(tmp_path)


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="there is no file or folder"):
        read_problems(tmp_path / "nothing")
    with pytest.raises(TaskError, match="holds none of"):
        read_problems(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    file = _write(tmp_path / "c.jsonl", [GSM8K])
    assert read_problems(file)[0].gold == "72"
    _write(file, [{"question": "q", "answer": "5"}])
    os.utime(file, ns=(1, 1))
    assert read_problems(file)[0].gold == "5"


# -- the environment ---------------------------------------------------------------------------


@pytest.fixture
def env(tmp_path: Path) -> Any:
    path = _write(tmp_path / "train.jsonl", [GSM8K])
    _write(tmp_path / "test.jsonl", [MATH])
    made = agentgym.make(ENV_ID, path=str(path.parent))
    made.reset(seed=0)
    return made


@pytest.mark.parametrize(
    ("action", "outcome", "unreadable"),
    [
        ("<answer>72</answer>", 1.0, 0.0),
        ("<answer>so it is $72$ clips</answer>", 0.0, 1.0),
        (r"<answer>\boxed{72}</answer>", 1.0, 0.0),
        (r"I think it is \boxed{72}.", 1.0, 0.0),
        ("Well.\n#### 72", 1.0, 0.0),
        ("<answer>71</answer>", 0.0, 0.0),
        ("<answer>48+24</answer>", 0.0, 0.0),
        ("<answer></answer>", 0.0, 1.0),
        (r"<answer>\frac{</answer>", 0.0, 1.0),
    ],
)
def test_answers_are_graded_and_unreadable_ones_counted_d17(
    env: Any, action: str, outcome: float, unreadable: float
) -> None:
    _, _, terminated, _, info = env.step(action)
    assert terminated
    assert info["outcome"] == outcome
    assert info["rewards"] == {"unreadable": unreadable, "needed_call": 0.0}


def test_expert_follows_the_solution(env: Any) -> None:
    assert env.expert() == "<calculator>48/2</calculator>"
    assert env.step(env.expert())[0] == "24"
    assert env.step("<calculator>(48 + 24)</calculator>")[4]["rewards"]["needed_call"] == 1.0
    assert env.expert() == "<answer>72</answer>"


def test_text_without_an_answer_goes_on(env: Any) -> None:
    observation, _, terminated, _, info = env.step("Let me think.")
    assert not terminated
    assert "<answer>" in observation
    assert "outcome" not in info


def test_env_passes_its_check(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "question": f"What is {a} times {a + 7}?",
            "answer": f"{a} * {a + 7} = {a * (a + 7)}\n#### {a * (a + 7)}",
        }
        for a in range(20, 120)
    ]
    file = _write(tmp_path / "rows.jsonl", rows)
    report = agentgym.check_env(ENV_ID, env_kwargs={"path": str(file)}, episodes_each=12)
    assert [line for line in str(report).splitlines() if line.startswith("failed")] == []
    assert report.scores["expert"] == 1.0


# Class: *asking the raw text instead of the answer*.
@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (r"<think>maybe \boxed{72}</think> I do not know", None),
        (r"maybe \boxed{72}</think> I do not know", None),
        (r"<think>maybe \boxed{72}", None),
        ("<think>#### 72</think>", None),
        (r"<think>maybe \boxed{72}</think> it is \boxed{71}", 0.0),
        (r"<think>maybe \boxed{71}</think> it is \boxed{72}", 1.0),
        (r"I need no <calculator> here: \boxed{72}", 1.0),
        (r"The <b>sum</b> is \boxed{72}", 1.0),
    ],
)
def test_f29_answer_is_asked_from_the_answer_and_not_from_the_reasoning(
    tmp_path: Path, text: str, outcome: float | None
) -> None:
    env = agentgym.make(ENV_ID, path=str(_write(tmp_path / "train.jsonl", [GSM8K])))
    env.reset(seed=1)
    _, _, terminated, _, info = env.step(text)
    assert (terminated, info.get("outcome")) == (outcome is not None, outcome)
