"""What the commands do when nothing is wrong."""

from __future__ import annotations

import io
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.cli.doctor import EXTRAS
from agentgym.cli.evaluate_settings import settings_of
from agentgym.cli.main import main
from agentgym.config import EnvSource, EvalConfig, LimitsConfig, RolloutConfig, RunConfig
from agentgym.errors import PolicyError
from agentgym.evaluation.result import Attempt
from agentgym.evaluation.summary import summarise
from agentgym.files.checksums import write_checksums
from agentgym.records import Completion, Sampling, Score, StopReason, Trajectory, Turn
from agentgym.renderer.base import History
from agentgym.runs import RunFolder
from agentgym.runs.jsonl import DiskError


def run_folder(path: Path, outcomes: list[float]) -> Path:
    """Return the folder of a run with one episode and one evaluation."""
    config = RunConfig(envs=(EnvSource(name="math/arithmetic-v0"),), policy="some/folder")
    turn = Turn(
        index=0,
        completion=Completion(text="[red]\x1b[31mred\x07"),
        observation="seen",
        rewards={"part": 0.5},
    )
    episode = Trajectory(
        id="g0-e0",
        group_id="g0",
        task_id="t",
        env_id="math/arithmetic-v0",
        turns=(turn,),
        terminated=True,
        stop_reason=StopReason.TERMINATED,
        outcome=1.0,
    )
    attempts = [
        Attempt(task=f"t{i}", index=0, trajectory_id="x", outcome=o, is_success=o == 1)
        for i, o in enumerate(outcomes)
    ]
    about: dict[str, Any] = {"policy_id": "p", "suites": ["s"], "split": "held_out", "seed": 0}
    result = summarise(
        attempts,
        [],
        name="step-000001",
        step=1,
        attempts_per_task=1,
        sampling=Sampling(),
        scorer_id="s",
        **about,
    )
    with RunFolder.create(path, config) as folder:
        folder.append_trajectory(episode)
        score = Score(trajectory_id="g0-e0", scorer_id="s", outcome=1.0, is_success=True)
        folder.append_score(score)
        for step in (1, 2):
            folder.append_metrics({"step": step, "loss": 0.5, "outcome": 0.25})
        folder.write_evaluation(result.name, result.to_dict())
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run", [0.0] * 20)


def test_view_lists_and_shows_episodes_with_escapes_written_out(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(run)]) == 0
    assert main(["view", str(run), "g0-e0"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]\\x1b[31mred\\x07" in out
    assert "part 0.5" in out
    assert "outcome 1 by s, solved: True" in out


@pytest.mark.parametrize(
    ("flags", "count"),
    [([], 1), (["--solved"], 1), (["--unsolved"], 0), (["--failed"], 0), (["--task", "u"], 0)],
)
def test_view_chooses_episodes(
    run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], count: int
) -> None:
    assert main(["view", str(run), "--json", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["g0-e0"] * count


def test_view_says_that_nothing_matches(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--solved", "--failed"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"no episode of {run} matches\n")


def test_eval_takes_a_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["eval", "math/arithmetic", "--policy", "expert", "-n", "2", "--json"]
    assert main([*arguments, "--split", "train"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "train"
    assert main([*arguments, "--split", "trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


def test_eval_at_a_server_that_is_none_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentgym.policies.vllm.connect", refuse)
    arguments = ["eval", "math/arithmetic", "--policy", "vllm:http://127.0.0.1:9", "-n", "1"]
    assert main(arguments) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "'vllm:http://127.0.0.1:9' cannot be used: /v1/models answered 404"
    assert list(tmp_path.iterdir()) == []


async def refuse(*args: Any, **kwargs: Any) -> None:
    raise PolicyError("/v1/models answered 404")


def test_view_of_an_unknown_episode_is_wrong_input(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(run), "nope"]) == 2
    assert "has no episode 'nope'" in capsys.readouterr().err


def test_compare_shows_paired_differences_to_the_first(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    better = run_folder(tmp_path / "better", [1.0, 0.0] * 10)
    assert main(["compare", str(run), str(better), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["difference"] is None
    assert second["difference"]["mean"] == 0.5
    assert second["is_paired"] is True
    assert second["difference"]["low"] > 0
    assert main(["compare", str(run), f"{run},{better}"]) == 0
    assert "+0.250" in capsys.readouterr().out  # two runs are one side


def test_c2_compare_refuses_one_policy_under_two_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, out in (("", "a.json"), (":instructions=false", "b.json"), ("", "c.json")):
        words = ["eval", f"math/arithmetic{name}", "--policy", "expert", "-n", "2", "--out", out]
        assert main(words) == 0
    capsys.readouterr()
    for sides in (["a.json", "b.json"], ["a.json", "a.json,b.json"]):
        assert main(["compare", *sides]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "has no arguments in one, and instructions=False in the other" in line
    assert main(["compare", "a.json", "c.json"]) == 0


def test_c5_an_evaluation_of_many_suites_has_a_card_and_a_short_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["math/arithmetic", "games/wordle", "games/gridworld", "games/guess-number"]
    assert main(["eval", ",".join(names), "--policy", "expert", "-n", "2"]) == 0
    out = capsys.readouterr().out
    assert "mean outcome over all 4 suites" in out
    for name in names:
        assert any(name in line and " 2 " in line for line in out.splitlines())
    (file,) = (tmp_path / "runs" / "evaluations").iterdir()
    assert file.name == ("math-arithmetic-games-wordle-games-gridworld-and-1-more-expert-1.json")
    assert json.loads(file.read_text(encoding="utf-8"))["counts"]["tasks"] == 8


def test_compare_needs_an_evaluation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(tmp_path / "none", RunConfig()).close()
    assert main(["compare", str(run), str(tmp_path / "none")]) == 2
    assert "has no evaluation" in capsys.readouterr().err


def test_b10_runs_are_listed_the_broken_ones_too(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(tmp_path / "new", RunConfig(steps=7)).close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("stepps: 3\n", encoding="utf-8")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    rows = {Path(row["run"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert rows["run"]["environments"] == "math/arithmetic-v0"
    assert rows["run"]["steps"] == "2 of 100"
    assert rows["run"]["last evaluation"].startswith("0.000 [0.000, ")
    assert (rows["new"]["steps"], rows["new"]["last evaluation"]) == ("0 of 7", "")
    assert "unknown setting 'stepps'" in rows["broken"]["state"]
    assert main(["runs", str(tmp_path)]) == 0
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_b10_completion_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out


def test_b11_the_help_names_every_kind_of_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for word in ("run's folder", "RUN/checkpoints/step_N", "smollm2", "vllm:", "openai:", "human"):
        assert word in told


def test_c7_a_person_plays_one_episode_after_the_other_and_sees_its_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("no idea\nno idea\n"))
    arguments = ["eval", "math/arithmetic", "--policy", "human", "-n", "2", "limits.max_turns=1"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    places = [out.index(word) for word in ("--- episode 1. An answer is", "--- episode 2.")]
    outcome = out.index("outcome 0 after 1 turns")
    assert places[0] < outcome < places[1]


def test_plot_draws_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").is_file()
    assert (run / "curves.svg").is_file()
    assert str(run / "curves.svg") in capsys.readouterr().out


def test_doctor_describes_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {row["what"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert {"agentgym", "python", "extra train", "program git"} <= set(found)


def test_doctor_finds_what_is_torn_and_what_is_broken(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(run)]) == 0
    capsys.readouterr()
    (run / "checkpoints" / ".step_000001.partial").mkdir(parents=True)
    with (run / "scores.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"torn')
    assert main(["doctor", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["live"]) == ("ended", None)
    found = {row["what"]: row["state"] for row in shown["findings"]}
    assert found["scores.jsonl"] == "torn"
    assert found["checkpoint .step_000001.partial"] == "incomplete"
    assert (found["episodes"], found["scores"]) == ("ok", "ok")
    with (run / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write("{broken}\n")
    assert main(["doctor", str(run)]) == 1


def test_eval_prints_a_table_and_writes_json_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["eval", "math/arithmetic", "--policy", "expert", "-k", "2", "-n", "6"]
    assert main([*arguments, "eval.temperature=0.5"]) == 0
    out = capsys.readouterr().out
    for words in ("pass@2", "temperature 0.5", "failed attempts", "level=1", "6 tasks x 2"):
        assert words in out
    file = tmp_path / "runs" / "evaluations" / "math-arithmetic-expert-1.json"
    tree = json.loads(file.read_text(encoding="utf-8"))
    assert tree["success"]["mean"] == 1.0
    assert tree["counts"]["attempts"] == 12
    assert tree["rules"]["intervals"].startswith("95 %")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts_per_task"] == 2
    assert file.with_name("math-arithmetic-expert-2.json").is_file()  # nothing is overwritten


def test_eval_refuses_a_source_that_is_given_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    twice = "math/arithmetic,math/arithmetic:levels=[4]"
    assert main(["eval", twice, "--policy", "expert", "-n", "4"]) == 2
    assert "'math/arithmetic' is given twice" in capsys.readouterr().err


def test_eval_looks_at_its_target_before_it_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "agentgym.api.run_evaluation", lambda *args, **kwargs: pytest.fail("it ran")
    )
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for out in ("file/result.json", "folder", f"{'n' * 300}.json"):
        arguments = ["eval", "math/arithmetic", "--policy", "expert", "--out", out]
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert "cannot be written" in err
        assert out in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_eval_prints_its_result_although_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def full(path: Path, text: str) -> Path:
        raise DiskError(f"{path} cannot be written (No space left on device)")

    monkeypatch.setattr("agentgym.runs.reserved.write_atomic", full)
    assert main(["eval", "math/arithmetic", "--policy", "expert", "-n", "2"]) == 1
    shown = capsys.readouterr()
    assert "mean outcome" in shown.out
    assert "No space left" in shown.err


def test_eval_in_which_every_attempt_failed_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = "openai:http://127.0.0.1:9/v1#m"  # nobody listens on port 9
    arguments = ["eval", "math/arithmetic", "--policy", policy, "-n", "1", "rollout.retries=0"]
    assert main([*arguments, "--out", "result.json"]) == 1
    shown = capsys.readouterr()
    assert "every attempt failed: no mean can be given" in shown.out
    assert "0.000" not in shown.out
    assert "cannot be reached" in shown.out
    assert list(tmp_path.iterdir()) == []  # nothing was measured that could be kept


def test_eval_prints_its_own_sampling_default_m8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("rollout: {temperature: 0.3}\n", encoding="utf-8")
    arguments = ["eval", "math/arithmetic", "--policy", "expert", "-n", "2"]
    assert main([*arguments, "--config", "run.yaml"]) == 0
    assert "evaluation's own sampling: temperature 1," in capsys.readouterr().out


def test_eval_refuses_every_setting_that_it_does_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {
        "optim.learning_rate=3": "accepted are eval.attempts,",
        "rollout.temperature=0.3": "limits.*, rollout.history, rollout.max_concurrent",
        "policy=tiny": "--policy",
        "eval.every=3": "accepted are eval.attempts,",
        "eval.suites=[math/linear]": "before the settings",
        "eval.temprature=0.5": "eval.temperature",
    }
    assert main(["eval", "math/arithmetic", *wrong, "--policy", "expert"]) == 2
    lines = capsys.readouterr().err.splitlines()
    for setting, fix in wrong.items():
        (line,) = [line for line in lines if f"'{setting.partition('=')[0]}'" in line]
        assert fix in line
    assert main(["eval", "math/arithmetic:split=train:weight=3", "--policy", "expert"]) == 2
    err = capsys.readouterr().err
    assert "--split train" in err
    assert "'weight'" in err


def test_eval_of_a_run_draws_as_the_run_s_own_evaluations_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = RunConfig(
        envs=(EnvSource(name="math/arithmetic-v0"),),
        eval=EvalConfig(temperature=0.7, top_k=11, max_new_tokens=24, seed=5, tasks=7),
        limits=LimitsConfig(max_turns=3, max_tokens=90),
        rollout=RolloutConfig(history=History.TEMPLATE, max_concurrent=9),
    )
    with RunFolder.create(tmp_path / "run", stored):
        pass
    asked: dict[str, Any] = {"policy": str(tmp_path / "run")}
    found = settings_of(["math/arithmetic", "limits.max_turns=4"], None, **asked)
    assert found.eval.sampling() == stored.eval.sampling()
    assert (found.eval.seed, found.limits.max_turns, found.limits.max_tokens) == (5, 4, 90)
    assert found.rollout.history == History.TEMPLATE
    # How many, and how many at once, belongs to this evaluation.
    assert (found.eval.tasks, found.rollout.max_concurrent) == (300, 256)
    # A file says it all.
    (tmp_path / "run.yaml").write_text("eval: {top_k: 12}\n", encoding="utf-8")
    named = settings_of(["math/arithmetic"], tmp_path / "run.yaml", **asked)
    assert (named.eval.top_k, named.eval.temperature, named.limits.max_turns) == (12, 1.0, None)


def test_play_shows_the_expert(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "play", "math/arithmetic-v0", "--expert", "--seed", "3"]) == 0
    assert "outcome 1 after" in capsys.readouterr().out


def test_play_says_where_nobody_scripted_an_expert(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(env: agentgym.TextEnv) -> str:
        raise NotImplementedError(f"{env.env_id} ships no scripted expert")

    monkeypatch.setattr("agentgym.envs.math.arithmetic.ArithmeticEnv.expert", nobody)
    assert main(["envs", "play", "math/arithmetic-v0", "--expert"]) == 1
    said = capsys.readouterr().err
    assert "math/arithmetic-v0 ships no scripted expert; play it yourself, without --expert" in said
    assert "Traceback" not in said


def test_play_asks_a_person(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = iter(["<answer>", "0.123</answer>", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(words))
    assert main(["envs", "play", "math/arithmetic-v0"]) == 0
    assert "outcome 0 after 1 turns" in capsys.readouterr().out


def test_tasks_are_shown_with_answers_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "math/arithmetic", "-n", "2"]) == 0
    assert "answers" not in capsys.readouterr().out
    assert main(["tasks", "show", "math/arithmetic", "-n", "2", "--answers"]) == 0
    assert "answers" in capsys.readouterr().out


def test_validate_looks_at_every_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "validate", "math/arithmetic", "-n", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["subject"] == "math/arithmetic"
    names = [finding["name"] for finding in report["findings"]]
    assert {"tasks of train", "tasks of held_out", "splits", "source"} <= set(names)


def test_check_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "check", "math/arithmetic-v0"]) == 0
    out = capsys.readouterr().out
    assert "passed" in out
    assert "mean outcomes" in out


def test_presets_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["presets", "explain", "grpo", "gate.clip_high=0.31"]) == 0
    out = capsys.readouterr().out
    assert "clip_high=0.31" in out
    assert "needs:" in out
    assert main(["presets", "show", "grpo"]) == 0
    assert "clip_low: 0.2" in capsys.readouterr().out


DAMAGE = {
    "evaluations/a.json": ("{", "evaluation a"),
    "evaluations/b.json": ("[]", "evaluation b"),
    "evaluations/c.json": ("{}", "evaluation c"),
    "metrics.jsonl": ("[3]\n", "metrics"),
    "trajectories.jsonl": ("[3]\n", "episodes"),
    "scores.jsonl": ("\udcff\n", "scores"),  # a byte that is no UTF-8
    "live.json": ("{", "live.json"),
    "checkpoints/step_000002/state.json": ("{", "checkpoint step_000002"),
    "checkpoints/step_000003/state.json": ("{}", "checkpoint step_000003"),
    "config.yaml": ("", "config"),
}
"""File of a run -> what stands in it, and who finds that."""


def checkpoint(run: Path, name: str) -> Path:
    """Make a checkpoint with its checksums, and return its folder."""
    folder = run / "checkpoints" / name
    (folder / "tensors").mkdir(parents=True, exist_ok=True)
    (folder / "tensors" / ".metadata").touch()
    (folder / "state.json").write_text('{"loop": {}}', encoding="utf-8")
    write_checksums(folder)
    return folder


def test_f45_doctor_takes_a_checkpoint_for_whole_only_with_all_its_files(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 5):
        checkpoint(run, f"step_00000{number}")
    (run / "checkpoints" / "step_000002" / "state.json").unlink()
    (run / "checkpoints" / "step_000003" / "tensors" / ".metadata").write_text("x")
    (run / "checkpoints" / "step_000004" / "SHA256SUMS").unlink()
    assert main(["doctor", str(run), "--json"]) == 1
    states = {f["what"]: f["state"] for f in json.loads(capsys.readouterr().out)["findings"]}
    found = [states[f"checkpoint step_00000{number}"] for number in range(1, 5)]
    assert found == ["ok", "broken", "broken", "broken"]


def damage(run: Path, name: str) -> None:
    if name.startswith("checkpoints/"):
        checkpoint(run, Path(name).parent.name)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(DAMAGE[name][0], encoding="utf-8", errors="surrogateescape")


def test_doctor_reports_all_that_is_damaged_each_with_its_file(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in DAMAGE:
        damage(run, name)
    assert main(["doctor", str(run), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    broken = {f["what"]: f["detail"] for f in findings if f["state"] == "broken"}
    assert set(broken) == {what for _, what in DAMAGE.values()}
    for name, (_, what) in DAMAGE.items():
        assert name in broken[what]
    states = {f["what"]: f["state"] for f in findings}
    assert (states["process"], states["evaluation step-000001"]) == ("unknown", "ok")


@pytest.mark.parametrize("name", ["evaluations/a.json", "evaluations/b.json", "evaluations/c.json"])
def test_a_damaged_evaluation_is_named_by_compare(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run, name)
    assert main(["compare", str(run), str(run)]) == 1
    assert name in capsys.readouterr().err
    assert main(["compare", str(run / name), str(run / name)]) == 1
    assert name in capsys.readouterr().err


def test_compare_names_a_file_that_is_no_evaluation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    assert main(["compare", str(run), str(tmp_path / "empty.yaml")]) == 1
    assert "empty.yaml is not JSON" in capsys.readouterr().err


def test_doctor_says_that_a_run_without_checkpoints_begins_anew(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(run)]) == 0
    assert f"--resume {run} begins the run anew" in capsys.readouterr().out


def test_doctor_knows_every_extra() -> None:
    # Tools of whoever works on the project itself are left out.
    metadata = tomllib.loads(
        (Path(agentgym.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert set(EXTRAS) == set(metadata["project"]["optional-dependencies"]) - {"dev"}


# ------------------------------------------------------------- paths that the system does not give
# Class: *an error of the system at a path that somebody gave*: one line with the path, exit code 2.


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize("command", ["view", "plot", "compare", "doctor", "train --resume"])
@pytest.mark.parametrize("name", ["x" * 300, "loop", "file/inside", "a\0b", ""])
def test_f49_a_run_that_cannot_be_opened_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    loop(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name)
    more = [path] if command == "compare" else []
    assert main([*command.split(), path, *more]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1, captured.err
    assert "Error" not in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", ["file/inside", "x" * 300, "loop/inside", "."])
def test_f49_curves_are_drawn_only_where_they_can_be_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("matplotlib")
    loop(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    out = name if name == "." else str(tmp_path / name)
    assert main(["plot", str(run), "--out", out]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1, captured.err
    assert "Error" not in captured.err


@pytest.mark.parametrize("stream", ["trajectories.jsonl", "scores.jsonl"])
def test_f49_a_stream_that_is_no_file_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], stream: str
) -> None:
    (run / stream).unlink(missing_ok=True)
    os.mkfifo(run / stream)
    assert main(["view", str(run)]) in (1, 2)
    captured = capsys.readouterr()
    assert f"{run / stream}: the file cannot be read" in captured.err
    assert len(captured.err.splitlines()) == 1
