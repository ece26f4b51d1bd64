"""Class of fault F41: *half of a setting travels*.

A policy that is named by its run is played as the run played it: the arguments of its environments
travel with sampling, limits, history and seed, through the command line and Python alike, or what
differs is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentgym import api
from agentgym.cli.evaluate_settings import run_lines, settings_of
from agentgym.config import (
    EnvSource,
    EvalConfig,
    InvalidInputError,
    LimitsConfig,
    RolloutConfig,
    RunConfig,
)
from agentgym.renderer.base import History
from agentgym.runs import RunFolder
from agentgym.runs.inputs import asked_evaluation

PLAIN = {"instructions": False}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with arguments, sampling, limits, history and seed of its own."""
    config = RunConfig(
        envs=(
            EnvSource(name="math/arithmetic", kwargs=PLAIN),
            EnvSource(name="games/gridworld", kwargs={"levels": [1]}),
            EnvSource(name="games/gridworld", kwargs={"levels": [2]}),
        ),
        eval=EvalConfig(temperature=0.7, max_new_tokens=24, seed=5, tasks=7, attempts=3),
        limits=LimitsConfig(max_turns=3),
        rollout=RolloutConfig(history=History.TEMPLATE, max_new_tokens=11),
    )
    RunFolder.create(tmp_path / "run", config).close()
    (tmp_path / "run" / "policy").mkdir()
    return tmp_path / "run"


def command_line(words: list[str], policy: Path) -> Mapping[str, Mapping[str, Any]]:
    config = settings_of(words, None, policy=str(policy))
    return {source.name: source.kwargs for source in config.envs}


@pytest.mark.parametrize("inside", ["", "policy"])
@pytest.mark.parametrize("name", ["math/arithmetic", "math/arithmetic-v0"])
def test_f41_arguments_of_the_run_s_environment_are_taken_over(
    run: Path, name: str, inside: str
) -> None:
    assert command_line([name], run / inside) == {name: PLAIN}
    assert command_line([f"envs={name}"], run / inside) == {name: PLAIN}
    asked = asked_evaluation(name, str(run / inside), settings=None, limits=None, history=None)
    assert asked.sources == {name: PLAIN}


def test_f41_the_whole_setting_travels_in_python_as_on_the_command_line(run: Path) -> None:
    words = ["math/arithmetic", "eval.top_k=4"]
    config = settings_of(words, None, policy=str(run), options={"eval.attempts": 2})
    asked = asked_evaluation(
        "math/arithmetic",
        str(run),
        settings={"top_k": 4, "attempts": 2},
        limits=None,
        history=None,
    )
    assert asked.settings.model_dump() == config.eval.model_dump()
    # How many tasks and attempts belongs to this evaluation, how they are drawn to the run.
    found = asked.settings
    assert (found.tasks, found.attempts, found.seed, found.temperature) == (300, 2, 5, 0.7)
    assert asked.limits == config.limits.to_limits()
    assert asked.limits.max_turns == 3
    assert asked.history is config.rollout.history is History.TEMPLATE


def test_f41_fields_that_are_set_win_over_the_run_and_others_do_not(run: Path) -> None:
    settings = EvalConfig(max_new_tokens=256)  # the default, said on purpose
    asked = asked_evaluation(
        "math/arithmetic", str(run), settings=settings, limits=None, history=None
    )
    assert (asked.settings.max_new_tokens, asked.settings.temperature) == (256, 0.7)


def test_f41_an_argument_of_one_s_own_wins_one_by_one_and_is_said(run: Path) -> None:
    own = {"levels": [2], "instructions": False}
    assert command_line(["math/arithmetic:levels=[2]"], run) == {"math/arithmetic": own}
    words = ["math/arithmetic:instructions=true,math/linear,games/gridworld:levels=[1]"]
    config = settings_of(words, None, policy=str(run))
    assert run_lines(config, str(run)) == [
        f"math/arithmetic with instructions=True; the run {run} has it with instructions=False",
        f"math/linear with no arguments; the run {run} is on math/arithmetic, games/gridworld",
        f"games/gridworld with levels=[1], as in the run {run}",
    ]


def test_f41_a_source_that_the_run_has_in_two_ways_is_asked_about(run: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"with levels=\[1\] and with levels=\[2\]: say"):
        command_line(["games/gridworld"], run)
    assert command_line(["games/gridworld:levels=[3]"], run)["games/gridworld"] == {"levels": [3]}


def test_f41_a_secret_that_a_run_does_not_store_is_asked_for(tmp_path: Path) -> None:
    config = RunConfig(envs=(EnvSource(name="a/b-v0", kwargs={"api_key": "s3cret", "size": 2}),))
    RunFolder.create(tmp_path / "run", config).close()
    with pytest.raises(InvalidInputError, match="'api_key' of 'a/b-v0' is a secret, which"):
        command_line(["a/b-v0"], tmp_path / "run")
    found = command_line(["a/b-v0:api_key=again"], tmp_path / "run")
    assert found == {"a/b-v0": {"api_key": "again", "size": 2}}
    assigned = settings_of(["a/b-v0:api_key=again"], None, policy=str(tmp_path / "run"))
    assert "again" not in "".join(run_lines(assigned, str(tmp_path / "run")))


def test_f41_a_file_says_it_all(run: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("eval: {top_k: 12}\n", encoding="utf-8")
    found = settings_of(["math/arithmetic"], tmp_path / "own.yaml", policy=str(run))
    assert [source.kwargs for source in found.envs] == [{}]


def test_f41_rollout_plays_as_the_run_trained(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    def expert(policy: object, *, history: History) -> object:
        opened.append(history)
        return api.open_policy("expert")

    monkeypatch.setattr("agentgym.api.policy_of", expert)
    (episode,) = api.rollout("math/arithmetic", str(run))
    assert episode.env_kwargs == PLAIN
    assert opened == [History.TEMPLATE]
    (other,) = api.rollout("math/arithmetic", str(run), env_kwargs={})
    assert other.env_kwargs == {}
