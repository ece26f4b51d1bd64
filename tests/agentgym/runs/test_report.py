"""The report says what the files of a run say."""

from __future__ import annotations

from pathlib import Path

from agentgym.config import EnvSource, RunConfig
from agentgym.evaluation.result import Attempt
from agentgym.evaluation.summary import summarise
from agentgym.records import Sampling, Task
from agentgym.runs import RunFolder
from agentgym.runs.report import report_text, table, thinned


def test_report_has_headline_intervals_failures_and_settings(tmp_path: Path) -> None:
    tasks = [Task(id=f"t{i}", env_id="a/b-v0", difficulty=i) for i in (1, 2)]
    attempts = [
        Attempt(task="t1", index=0, trajectory_id="x", outcome=1.0, is_success=True),
        Attempt(
            task="t2",
            index=0,
            trajectory_id="y",
            outcome=None,
            is_success=False,
            failure="infrastructure",
        ),
    ]
    result = summarise(
        attempts,
        tasks,
        name="step-000003",
        step=3,
        policy_id="p|q",
        suites=["a/b"],
        split="held_out",
        attempts_per_task=1,
        sampling=Sampling(temperature=0.7, max_new_tokens=9),
        seed=0,
        scorer_id="outcome-v1",
    )
    config = RunConfig(envs=(EnvSource(name="a/b-v0", kwargs={"api_key": "s3cret"}),), seed=5)
    with RunFolder.create(tmp_path / "run", config) as folder:
        folder.write_evaluation(result.name, result.to_dict())
        folder.append_metrics({"step": 1, "outcome": 0.25, "loss": None})
        text = report_text(folder.path)
    assert f"| step-000003 | 3 | {result.outcome} | {result.success} | 2 | 1 |" in text
    assert "temperature 0.7, top_p 1, top_k 0, min_p 0, max_new_tokens 9" in text
    assert "| level=2 | 0.000 [0.000, 1.000] | 1 |" in text
    assert "1 of 2 attempts failed for a reason that is not the agent's" in text
    assert "| 1 | 0.25 |" in text
    assert "seed: 5" in text
    assert "s3cret" not in text


def test_report_of_a_run_that_did_nothing(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", RunConfig()) as folder:
        text = report_text(folder.path)
    assert "No evaluation was made." in text
    assert "No step was made." in text


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_thinned_rows_keep_the_ends() -> None:
    rows = [{"step": i} for i in range(100)]
    steps = [row["step"] for row in thinned(rows, 4)]
    assert steps == [0, 33, 66, 99]
    assert thinned(rows[:3], 4) == rows[:3]


def test_f49_settings_cannot_end_their_block_of_the_report(tmp_path: Path) -> None:
    kwargs = {"text": "a\n```\n![x](http://h/a.png)\n", "mark": "a\u2028b"}
    config = RunConfig(envs=(EnvSource(name="a/b-v0", kwargs=kwargs),))
    with RunFolder.create(tmp_path / "run", config) as folder:
        text = report_text(folder.path)
    assert "\u2028" not in text
    _, _, block = text.partition("````yaml\n")
    assert "![x]" in block.partition("````")[0]
    assert "![x]" not in block.partition("````")[2]
