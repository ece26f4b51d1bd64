"""What is looked at before anything slow starts, and reported together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.config import InvalidInputError, RunConfig, load_config
from agentgym.env import registry
from agentgym.env.contract import Action, TextEnv
from agentgym.records import Task
from agentgym.records.limits import Limits
from agentgym.runs.dry_run import implications, most_tokens, parameter_count
from agentgym.runs.preflight import (
    checked_config,
    preflight,
    run_path,
    training_tasks,
)

pytest.importorskip("torch")


def problems_of(*assignments: str, run_dir: Path | None = None) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        checked_config(assignments=["run_dir=never-made", *assignments])
    return str(caught.value).splitlines()


def test_right_config_passes_and_makes_nothing(tmp_path: Path) -> None:
    config = checked_config(assignments=["envs=math/arithmetic", f"run_dir={tmp_path / 'run'}"])
    assert config.envs[0].name == "math/arithmetic"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["envs=math/arithmetik-v0"], "did you mean 'math/arithmetic-v0'?"),
        (["envs=math/arithmetic:levell=3"], "takes no argument 'levell' (did you mean 'levels'?)"),
        (["envs=math/arithmetic:levels=[9]"], "'levels' must be some of (1, 2, 3, 4, 5)"),
        (["envs=math/arithmetic:split=trian"], "has no split 'trian' (did you mean 'train'?)"),
        (["envs=math/arithmetic", "eval.split=test"], "has no split 'test'"),
        (["envs=math/arithmetic", "preset=grop"], "unknown preset 'grop' (did you mean 'grpo'?)"),
        (["envs=math/arithmetic", "preset=a.yaml"], "preset file 'a.yaml' does not exist"),
        (["envs=math/arithmetic", "gate.clip_hi=0.3"], "unknown key 'clip_hi'"),
        (["envs=math/arithmetic", "policy=tiny:smal"], "(did you mean 'small'?)"),
        (["envs=math/arithmetic", "policy=no/folder"], "a model folder or vllm:URL"),
        (["envs=math/arithmetic", "policy=vllm:host"], "vllm"),
        ([], "no environment given"),
    ],
)
def test_wrong_input_is_one_line(assignments: list[str], words: str) -> None:
    (line,) = problems_of(*assignments)
    assert words in line


def test_group_of_one_with_a_group_baseline_is_one_sentence_n9() -> None:
    (line,) = problems_of("envs=math/arithmetic", "rollout.group_size=1")
    assert "a group baseline needs 2 or more trajectories of a task (got group size 1)" in line


def test_group_of_one_without_a_group_baseline_is_fine_n9(tmp_path: Path) -> None:
    settings = ["rollout.group_size=1", "preset=reinforce", f"run_dir={tmp_path / 'run'}"]
    config = checked_config(assignments=["envs=math/arithmetic", *settings])
    assert config.rollout.group_size == 1


def test_everything_wrong_comes_in_one_report_n7() -> None:
    lines = problems_of(
        "envs=math/arithmetik-v0,math/arithmetic:levell=3",
        "policy=no/folder",
        "preset=grop",
        "learning_ratee=1",
        "optim.epochs=0",
    )
    assert len(lines) == 6
    for word in ("learning_ratee", "epochs", "arithmetik", "levell", "no/folder", "grop"):
        assert sum(word in line for line in lines) == 1


def test_setting_that_could_not_be_read_is_not_judged_by_its_default() -> None:
    lines = problems_of("envs=math/arithmetic", "policy=")
    assert lines == ["command line: 'policy' must not be empty"]


def test_used_run_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="holds a run already"):
        checked_config(assignments=["envs=math/arithmetic", f"run_dir={tmp_path}"])


# -------------------------------------------------------------------------------------- leaks


class OneQuestion(TextEnv):
    """Its only task is in every split."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)

    def start(self, task: Task, rng: Any) -> str:
        return task.prompt

    def respond(self, action: Action) -> Any:
        return self.finish(outcome=1.0)


@pytest.fixture
def leaking_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    registry.register_env("test/question-v0")(OneQuestion)
    rows = [
        {"id": "a", "env_id": "test/question-v0", "prompt": "How  many?", "split": "train"},
        # The same content under another id, in other letters and spaces.
        {"id": "b", "env_id": "test/question-v0", "prompt": "how many?", "split": "held_out"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "SOURCE").write_text("licence: CC0-1.0\norigin: test\n", encoding="utf-8")
    from agentgym import tasks

    monkeypatch.setitem(tasks.SUITES, "test/question", str(file))
    yield "test/question"
    registry.unregister_env("test/question-v0")


def test_held_out_task_among_the_training_tasks_is_refused(leaking_suite: str) -> None:
    config = load_config(assignments=[f"envs={leaking_suite}"])
    with pytest.raises(InvalidInputError, match="1 held-out tasks are training tasks too"):
        preflight(config)


def test_leak_is_allowed_where_it_is_asked_for(leaking_suite: str) -> None:
    # Its environment has no expert: a new model begins without a warm start.
    settings = [f"envs={leaking_suite}", "allow_leak=true", "warmstart.steps=0"]
    preflight(load_config(assignments=settings))


# --------------------------------------------------------------------------------------- rest


def test_several_processes_need_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInputError, match="give 'run_dir'"):
        run_path(RunConfig())


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(max_turns=4), 40),
        (Limits(max_turns=4, max_tokens=30), 30),
        (Limits(max_turns=None, max_tokens=30), 30),
        (Limits(max_turns=None), None),
    ],
)
def test_most_tokens_of_an_episode(limits: Limits, most: int | None) -> None:
    assert most_tokens(limits, 10) == most


def test_dry_run_says_what_the_config_implies() -> None:
    config = load_config(
        settings={
            "envs": ["math/arithmetic"],
            "steps": 10,
            "rollout": {"groups_per_step": 3, "group_size": 4, "max_new_tokens": 20},
            "limits": {"max_turns": 2},
            "optim": {"epochs": 2, "minibatches": 3},
            "eval": {"every": 4, "tasks": 7},
            "budget": {"minutes": 5},
        }
    )
    found = {line.name: line.value for line in implications(config)}
    assert found["episodes a step"] == "3 tasks x 4 = 12, 12 live at once"
    assert found["episodes in all"] == "120 in 10 steps"
    assert found["turns an episode"] == "at most 2"
    # 2 turns x 20 tokens, 12 episodes, 10 steps
    assert found["sampled tokens"] == "at most 40 an episode, 480 a step, 4,800 in all"
    assert found["updates"] == "6 a step, 60 in all"
    assert "the last of 6 updates is 5 ahead" in found["staleness"]
    # at the start, after steps 4 and 8, at the end
    assert found["evaluation"].startswith("4 times 7 tasks x 1")
    assert "0.4 million weights" in found["memory"]
    assert found["ends after"] == "10 steps or 5 minutes"


def test_weights_are_counted_from_the_header_of_the_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    tensors = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    assert parameter_count(str(tmp_path)) == 17
    assert parameter_count(str(tmp_path / "none")) is None


def test_vast_split_is_compared_by_its_first_tasks_only() -> None:
    # A million generated puzzles would take minutes before anything is said.
    config = load_config(assignments=["envs=games/wordle", "steps=3", "rollout.groups_per_step=5"])
    assert sum(1 for _ in training_tasks(config)) == 15


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["gate.clip_high=-1"], "'clip_high': Input should be greater than 0 (got -1)"),
        (
            ["warmstart.path=no/folder", "warmstart.steps=0"],
            "'no/folder' is no model folder: there is no such",
        ),
        (["run_dir={tmp}/full/x/y"], "full is none)"),
        (["run_dir=/proc/foo"], "(got '/proc/foo'; /proc is none)"),
        (["envs=code/functions:sandbox=foo"], "(got 'foo')"),
        (["envs=code/shell-v0:sandbox=dokcer"], "(did you mean 'docker'?)"),
    ],
)
def test_what_would_fail_after_the_start_is_said_before_it(
    assignments: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "full").write_text("a file", encoding="utf-8")
    given = [word.replace("{tmp}", str(tmp_path)) for word in assignments]
    (line,) = problems_of("envs=math/arithmetic", *given)
    assert words in line


def test_folder_of_a_warm_start_must_hold_a_model(tmp_path: Path) -> None:
    settings = [f"warmstart.path={tmp_path}", "warmstart.steps=0", "envs=math/arithmetic"]
    (line,) = problems_of(*settings)
    assert "'warmstart.path': " in line
    assert "config.json cannot be read" in line
