"""Numbers of a group from a run's files: those of the batch that was trained on, to the digit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.cli.main import main
from agentgym.config import load_config
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, TokenTrace, VersionRun
from agentgym.renderer.base import Renderer
from agentgym.runs.folder import RunFolder
from agentgym.runs.progress import Silent
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.loop.explain_run import explain_run
from agentgym.trainers.loop.setup import Inputs, check_inputs, open_session
from agentgym.trainers.loop.train import run_loop
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.objective.explain import explain

CORPUS = ("12+37*48 <calculator>37*48</calculator> <answer>1776</answer> ",) * 30
SETTINGS: dict[str, Any] = {
    "envs": ["math/arithmetic"],
    "steps": 3,
    "rollout.groups_per_step": 2,
    "rollout.group_size": 3,
    "rollout.max_new_tokens": 24,
    "warmstart.steps": 0,
    "eval.at_start": False,
    "eval.at_end": False,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
}


class Knowing:
    """Asks the calculator, then knows the answer: in the episodes that `knows` names."""

    id = "knowing"
    max_context_tokens = None

    def __init__(self, inputs: Inputs, renderer: Renderer, knows: Callable[[int, int], bool]):
        self.version = 0
        self.renderer = renderer
        self._inputs = inputs
        self._knows = knows

    async def generate(self, request: GenerateRequest) -> Completion:
        group, episode = request.episode_id[1:].split("-e")
        task = self._inputs.stream.draw(int(group))
        answer = task.answers[0] if self._knows(int(group), int(episode)) else "no"
        text = "<calculator>1+1</calculator>" if request.turn == 0 else f"<answer>{answer}</answer>"
        ids = self.renderer.encode_completion(text)
        run = VersionRun(version=self.version, count=len(ids))
        values = tuple(-5.0 - 0.01 * place for place in range(len(ids)))
        trace = TokenTrace(ids=ids, behavior_logprobs=values, versions=(run,))
        return Completion(text=self.renderer.decode(ids), policy_id=self.id, tokens=trace)

    async def begin_episode(self, episode_id: str) -> None:
        pass

    async def end_episode(self, episode_id: str) -> None:
        pass

    async def update_weights(self, weights: Any, version: int) -> None:
        self.version = version

    async def aclose(self) -> None:
        pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), corpus=CORPUS, seed=7)


async def trained(
    monkeypatch: pytest.MonkeyPatch,
    base: Path,
    path: Path,
    knows: Callable[[int, int], bool],
    **settings: Any,
) -> list[tuple[Any, Batch]]:
    """Train, and return preset and batch of each update."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config(settings={**SETTINGS, "policy": str(base), **given})
    inputs = check_inputs(config)
    seen: list[tuple[Any, Batch]] = []
    update = Learner.update

    def spy(self: Learner, batch: Batch, **options: Any) -> dict[str, float]:
        seen.append((self.preset, batch))
        return update(self, batch, **options)

    monkeypatch.setattr(Learner, "update", spy)

    def make(learner: Learner, renderer: Renderer, state: LoopState) -> Knowing:
        return Knowing(inputs, renderer, knows)

    folder = RunFolder.create(path, config)
    session = await open_session(
        inputs, folder, progress=Silent(), is_resumed=False, make_policy=make
    )
    await run_loop(session)
    folder.close()
    return seen


@pytest.mark.parametrize(
    ("preset", "step"), [("trloo", 2), ("grpo", 3), ("a2tgpo", 1), ("igpo", 3), ("ppo", 2)]
)
async def test_numbers_are_those_of_the_batch_that_was_trained_on(
    monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path, preset: str, step: int
) -> None:
    path = tmp_path / "run"
    seen = await trained(monkeypatch, base, path, lambda group, episode: episode < 2, preset=preset)
    used, batch = seen[step - 1]
    group = f"g{2 * step - 1}"
    lines = explain_run(path, preset, {}, step=step, group=group)
    assert lines == explain(used, batch, group)
    assert lines[0] == f"group {group}, preset {preset}: 3 of 6 trajectories"


async def test_replaced_groups_are_left_out_and_the_first_that_differs_is_shown(
    monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path
) -> None:
    # Every third group is solved by all: `dapo` draws another in its place.
    path = tmp_path / "run"
    seen = await trained(
        monkeypatch,
        base,
        path,
        lambda group, episode: group % 3 == 1 or episode < 1,
        preset="dapo",
    )
    assert [batch.group_ids for _, batch in seen] == [("g0", "g2"), ("g3", "g5"), ("g6", "g8")]
    for step, (used, batch) in enumerate(seen, 1):
        lines = explain_run(path, "dapo", {}, step=step)
        assert lines == explain(used, batch, batch.group_ids[0])
    with pytest.raises(Exception, match=r"one that the step trained on, \['g3', 'g5'\].*'g4'"):
        explain_run(path, "dapo", {}, step=2, group="g4")


async def test_updates_of_a_step_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path
) -> None:
    # Two updates a step: the anchor is the policy as the step began, from the checkpoint.
    path = tmp_path / "run"
    seen = await trained(
        monkeypatch, base, path, lambda group, episode: episode < 2, optim__minibatches=2
    )
    used, batch = seen[2 * 1 + 1]
    assert batch.group_ids == ("g3",)
    assert explain_run(path, "grpo", {}, step=2, group="g3") == explain(used, batch, "g3")


async def test_command_prints_them_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run"
    await trained(monkeypatch, base, path, lambda group, episode: episode < 1, checkpoint__every=0)

    def said(*given: str) -> tuple[int, str]:
        code = main(["presets", "explain", *given])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    code, text = said("grpo", "--run", str(path), "--step", "2")
    assert (code, text.splitlines()[0]) == (0, "group g2, preset grpo: 3 of 6 trajectories")
    code, text = said("grpo", "--run", str(path))
    assert (code, "need both --run FOLDER and --step N" in text) == (2, True)
    code, text = said("grpo", "--run", str(path), "--step", "9")
    assert (code, "has no step 9: it has 1 to 3" in text) == (2, True)
    code, text = said("igpo", "--run", str(path), "--step", "3")
    assert (code, "step_000002 is not there (there are: step_000003)" in text) == (2, True)
