"""Class of fault F42: *two answers to one question*, here what the name of a policy means.

A name that one command takes means the same to all of them: training, evaluation, serving, Python.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentgym.config import InvalidInputError, RunConfig, WarmstartConfig
from agentgym.files.checksums import write_checksums
from agentgym.runs import RunFolder
from agentgym.runs.policies import (
    PolicyKind,
    check_policy,
    policy_problems,
    read_policy,
    start_of,
)


def folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def test_unreadable_model_folder_says_all_that_is_missing(tmp_path: Path) -> None:
    (line,) = [p.text for p in policy_problems(str(tmp_path), trained=True)]
    assert "config.json cannot be read" in line
    for file, text, reason in (
        ("config.json", '{"x": 1}', "config.json has no model_type"),
        ("config.json", '{"model_type": "llama"}', "has no .safetensors weights"),
        ("model.safetensors", "\2\0\0\0\0\0\0\0{}", "has no tokenizer"),
    ):
        (tmp_path / file).write_text(text, encoding="utf-8")
        (line,) = [p.text for p in policy_problems(str(tmp_path), trained=True)]
        assert reason in line
    folder(tmp_path, config__json="{broken")
    (line,) = [p.text for p in policy_problems(str(tmp_path), trained=True)]
    assert "config.json cannot be read" in line


@pytest.mark.parametrize("policy", ["expert", "human"])
def test_policies_without_ids_act_but_are_not_trained(policy: str) -> None:
    assert list(policy_problems(policy, trained=False)) == []
    assert len(list(policy_problems(policy, trained=True))) == 1


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("openai:http://host/v1", "openai:http://HOST:PORT/v1#MODEL"),
        ("openai:host#model", "openai:http://HOST:PORT/v1#MODEL"),
        ("openai:http://host/v1#model", None),
    ],
)
def test_server_is_written_with_address_and_model(policy: str, words: str | None) -> None:
    texts = [problem.text for problem in policy_problems(policy, trained=False)]
    assert len(texts) == (words is not None)
    assert words is None or words in texts[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs the extra train")
    from agentgym.trainers.models.tiny import build_tiny

    return build_tiny(tmp_path_factory.mktemp("tiny"), seed=2)


def run_of(
    path: Path, *models: str, config: RunConfig | None = None, model: Path | None = None
) -> Path:
    """Return the folder of a run with model folders in it: copies of `model`, or a config alone."""
    RunFolder.create(path, config or RunConfig()).close()
    for name in models:
        if model is not None:
            shutil.copytree(model, path / name)
        else:
            (path / name).mkdir()
            folder(path / name, config__json='{"model_type": "llama"}')
    return path


def checkpoint_of(run: Path, name: str) -> Path:
    path = run / "checkpoints" / name
    (path / "tensors").mkdir(parents=True)
    (path / "tensors" / ".metadata").touch()
    (path / "state.json").write_text("{}")
    write_checksums(path)
    return path


def test_f42_a_finished_run_is_trained_and_acts(tiny: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "qs", "policy", "warmstart", "base", model=tiny)
    (run / "checkpoints").mkdir()
    for trained in (True, False):
        name = check_policy(str(run), trained=trained)
        assert (name.kind, name.run, name.folder) == (PolicyKind.RUN, run, run / "policy")


def test_f42_every_model_of_a_run_is_of_that_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "qs", "policy", "warmstart", "base", "other")
    for inside in ("policy", "warmstart", "base"):
        assert read_policy(str(run / inside)).run == run
    assert read_policy(str(run / "other")).run is None


def test_b10_a_checkpoint_is_a_policy(tmp_path: Path) -> None:
    run = run_of(tmp_path / "qs", "base")
    path = checkpoint_of(run, "step_000060")
    name = check_policy(str(path), trained=False)
    assert (name.kind, name.run, name.folder) == (PolicyKind.CHECKPOINT, run, path)
    (path / "state.json").unlink()
    checkpoint_of(run, "step_000040")
    with pytest.raises(
        InvalidInputError, match=r"no whole checkpoint \(state.json.*; whole ones: step_000040"
    ):
        check_policy(str(path), trained=False)


def test_f42_of_a_run_under_way_all_that_can_be_taken_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "half", "warmstart")
    checkpoint_of(run, "step_000020")
    path = checkpoint_of(run, "step_000040")
    (line,) = [problem.text for problem in policy_problems(str(run), trained=True)]
    assert line.startswith(f"the run {str(run)!r} has not ended, and has no policy yet: end it")
    assert f"--resume {run}`, or take {path}, or take {run / 'warmstart'}" in line


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("tiny", PolicyKind.TINY), ("tiny:large", PolicyKind.TINY)),
        *(("smollm2", PolicyKind.SMOLLM2), ("expert", PolicyKind.EXPERT)),
        *(("human", PolicyKind.HUMAN), ("vllm:http://a", PolicyKind.VLLM)),
        *(("openai:http://a#b", PolicyKind.OPENAI), ("models/mine", PolicyKind.FOLDER)),
    ],
)
def test_f42_names_mean_one_thing(text: str, kind: PolicyKind) -> None:
    assert read_policy(text).kind is kind


def test_a_run_begins_from_its_warm_start_or_else_from_what_it_was_given(tmp_path: Path) -> None:
    config = RunConfig(policy="some/folder")
    run = run_of(tmp_path / "a", "base", "warmstart", config=config)
    assert start_of(run, config) == str(run / "warmstart")
    bare = run_of(tmp_path / "b", config=config)
    assert start_of(bare, config) == "some/folder"
    warm = RunConfig(policy="tiny", warmstart=WarmstartConfig(path="w"))
    assert start_of(bare, warm) == "w"
