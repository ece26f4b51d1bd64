"""Training where nobody scripted an expert: our own environment, and one of Gymnasium's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest

from agentgym import ToolEnv, api, tool
from agentgym.cli.main import main
from agentgym.config import InvalidInputError, load_config
from agentgym.env import registry
from agentgym.env.registry import register_env
from agentgym.records import Task
from agentgym.renderer.folder import load_renderer
from agentgym.runs.expert_check import lack_of_expert
from agentgym.runs.folder import read_metrics, read_trajectories
from agentgym.runs.preflight import checked_config
from agentgym.trainers.models.tokenizer_corpus import tags_of

pytest.importorskip("torch")

OURS = "test/capitals-v0"
FOREIGN = "some-package/Riddle-v0"
SETTINGS = [
    *("steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "limits.max_turns=2"),
    *("rollout.max_new_tokens=8", "eval.at_start=false", "eval.at_end=false", "run_dir=run"),
]


class Capitals(ToolEnv):
    """The README's example."""

    system_prompt = "Name the capital."

    def start(self, task: Task, rng: random.Random) -> str:
        """Name a country."""
        return "France"

    @tool
    def lookup(self, country: str) -> str:
        """Look a country's capital up."""
        return "Paris" if country == "France" else "unknown"

    def grade(self, answer: str) -> float:
        """Return 1 for the capital."""
        return float(answer == "Paris")


class Riddle(gymnasium.Env[str, str]):
    """Says a word of two; the first letter of the action is the answer."""

    observation_space = action_space = gymnasium.spaces.Text(max_length=4000, charset="anything é<")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.word = ("yes", "no")[int(self.np_random.integers(2))]
        return f"riddle {self.word} {self.np_random.integers(10**6)}", {}

    def step(self, action: str) -> Any:
        """End."""
        return "thing", float(action[:1] == self.word[0]), True, False, {}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(OURS)(Capitals)
    gymnasium.register(id=FOREIGN, entry_point=cast("Any", Riddle))
    yield
    registry.unregister_env(OURS)
    registry.unregister_env(FOREIGN)
    del gymnasium.registry[FOREIGN]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_a2_a_new_model_is_not_trained_where_it_cannot_hit_the_form_of_an_action(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class of A-2: *a run that cannot learn is begun, and advised in the wrong direction*."""
    for extra in ([], ["--dry-run"]):
        cold = ["--policy", "tiny", "warmstart.steps=0", *SETTINGS, *extra]
        assert main(["train", OURS, *cold]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "cannot be learned by a new 'tiny' model" in line
        assert "write an expert(), or take a policy that can read already" in line
        assert main(["train", "math/arithmetic", *cold]) == 2
        assert "leave 'warmstart.steps' at its default" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_new_model_is_trained_without_an_expert(here: Path) -> None:
    assert main(["train", FOREIGN, "--policy", "tiny", "warmstart.steps=0", *SETTINGS]) == 0
    run = here / "run"
    assert [row["step"] for row in read_metrics(run)] == [1]
    episodes = list(read_trajectories(run))
    assert len(episodes) == 2 * 2
    assert {episode.failure for episode in episodes} == {None}


def test_tokenizer_learns_from_what_is_there_and_can_write_the_rest(here: Path) -> None:
    settings = [f"envs={OURS}", "policy=tiny", "warmstart.steps=0", *SETTINGS]
    api.run_training(load_config(assignments=settings), here / "run", is_resumed=False)
    renderer = load_renderer(here / "run" / "base")
    # Of the system prompt and the first observation: one token a word.
    assert len(renderer.encode_completion("France")) <= 2 + 1
    for text in ("zebra \U0001f993 ünïcode\n\t<tag>", "<answer>Paris</answer>"):
        assert text in renderer.decode(renderer.encode_completion(text))


@pytest.mark.parametrize("env_id", [OURS, FOREIGN])
@pytest.mark.parametrize("extra", [[], ["warmstart.steps=5"], ["--dry-run"]])
def test_a_warm_start_without_an_expert_is_refused_before_there_is_a_folder(
    here: Path, capsys: pytest.CaptureFixture[str], env_id: str, extra: list[str]
) -> None:
    assert main(["train", env_id, "--policy", "tiny", *SETTINGS, *extra]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{env_id} has no expert that a warm start could learn from" in line
    fix = {
        OURS: "write an expert(), or take a policy that can read already: smollm2",
        FOREIGN: "train without one (warmstart.steps=0), or write an expert()",
    }
    assert fix[env_id] in line
    assert list(here.iterdir()) == []


def test_python_is_refused_alike(here: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"write an expert\(\)"):
        api.train({"envs": [OURS], "policy": "tiny", "run_dir": "run"})
    assert list(here.iterdir()) == []


def test_the_source_without_an_expert_is_named_among_others() -> None:
    with pytest.raises(InvalidInputError) as caught:
        checked_config(settings={"envs": ["math/arithmetic", OURS], "policy": "tiny"})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{OURS} has no expert")
    without = {"envs": ["math/arithmetic", OURS], "policy": "tiny", "warmstart.steps": 0}
    with pytest.raises(InvalidInputError) as caught:
        checked_config(settings=without)
    first, second = str(caught.value).splitlines()
    assert "leave 'warmstart.steps' at its default" in first
    assert "write an expert()" in second


def test_guesses_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capitals, "expert", lambda self: "<answer>Paris</answer>")
    settings: dict[str, Any] = {"envs": [OURS], "policy": "tiny"}
    assert checked_config(settings=settings).warmstart.steps == 2200
    with pytest.raises(InvalidInputError, match=r"no guess\(rng\).*\(got 0\.25\)"):
        checked_config(settings={**settings, "warmstart.guess_share": 0.25})


def test_an_expert_for_other_tasks_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def choosy(env: ToolEnv) -> str:
        assert env.task is not None
        if env.task.payload["seed"] == 1:
            raise NotImplementedError("nobody knows seed 1")
        return "<answer>Paris</answer>"

    monkeypatch.setattr(Capitals, "expert", choosy)
    tasks = [Task(id=str(n), env_id=OURS, payload={"seed": n}) for n in (1, 2)]
    assert [lack_of_expert(task) for task in tasks] == ["nobody knows seed 1", None]


def test_too_many_tags_leave_room_for_words() -> None:
    rare = [f"<{chr(97 + i // 26)}{chr(97 + i % 26)}>" for i in range(200)]
    found = tags_of([*rare, "<zz></zz>", "<zz></zz>", "<1>"])
    assert len(found) == 64
    assert {"<zz>", "</zz>"} < set(found)
    assert found == tuple(sorted(found))
    assert tags_of(["b </answer>", "<answer> a"]) == ("</answer>", "<answer>")
