"""The loop with a policy that answers as the test says: what is trained on, once, and how old."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.config import load_config
from agentgym.errors import InfrastructureError
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, StopReason, TokenTrace, Trajectory, VersionRun
from agentgym.renderer.base import Renderer
from agentgym.runs.folder import (
    RunFolder,
    read_config,
    read_evaluations,
    read_metrics,
    read_scores,
    read_trajectories,
)
from agentgym.runs.progress import Silent
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.loop.collect import sampled_tokens
from agentgym.trainers.loop.session import Session
from agentgym.trainers.loop.setup import check_inputs, open_session
from agentgym.trainers.loop.train import run_loop
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.rollout.staleness import token_lags

CORPUS = ("12+37*48 <calculator>37*48</calculator> <answer>1776</answer> ",) * 30
SETTINGS: dict[str, Any] = {
    "envs": ["math/arithmetic"],
    "preset": "trloo",
    # Every answer is wrong, so no advantage would move anything.
    "preset_overrides": {"regularizers": [{"part": "entropy_bonus", "coefficient": 0.01}]},
    "steps": 4,
    "rollout.groups_per_step": 2,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 24,
    "rollout.retries": 0,
    "warmstart.steps": 0,
    "eval.at_start": False,
    "eval.at_end": False,
    "checkpoint.every": 0,
}


class Told:
    """Asks the calculator, then answers 1; what it says of itself is for the test to change."""

    id = "told"
    max_context_tokens = None

    def __init__(self, renderer: Renderer, version: int) -> None:
        self.renderer = renderer
        self.version = version
        self.version_of: Callable[[str], int] = lambda episode: self.version
        self.before: Callable[[GenerateRequest], Any] = lambda request: asyncio.sleep(0)

    async def generate(self, request: GenerateRequest) -> Completion:
        await self.before(request)
        text = "<calculator>1+1</calculator>" if request.turn == 0 else "<answer>1</answer>"
        ids = self.renderer.encode_completion(text)
        run = VersionRun(version=self.version_of(request.episode_id), count=len(ids))
        trace = TokenTrace(ids=ids, behavior_logprobs=(-5.0,) * len(ids), versions=(run,))
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


async def opened(
    base: Path, path: Path, prepare: Callable[[Told], None] | None = None, **settings: Any
) -> Session:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config(settings={**SETTINGS, "policy": str(base), **given})

    def make(learner: Learner, renderer: Renderer, state: LoopState) -> Told:
        policy = Told(renderer, state.policy_version)
        if prepare is not None:
            prepare(policy)
        return policy

    folder = RunFolder.create(path, config)
    return await open_session(
        check_inputs(config), folder, progress=Silent(), is_resumed=False, make_policy=make
    )


def records(path: Path) -> list[Trajectory]:
    return list(read_trajectories(path))


def column(path: Path, name: str) -> list[float]:
    return [row[name] for row in read_metrics(path)]


def newest_state(path: Path) -> dict[str, Any]:
    newest = sorted((path / "checkpoints").glob("step_*"))[-1]
    return json.loads((newest / "state.json").read_text())["loop"]


async def test_every_episode_is_trained_on_once_and_within_the_bound_h11(
    base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    summary = await run_loop(await opened(base, path, rollout__max_staleness=2))
    assert summary.steps == 4
    ids = [score.trajectory_id for score in read_scores(path)]
    assert len(ids) == len(set(ids)) == 4 * 2 * 2
    assert sorted(ids) == sorted(t.id for t in records(path))
    assert column(path, "staleness_max") == [0, 1, 2, 2]  # three steps' groups begin at version 0
    assert column(path, "groups_ahead") == [4, 4, 2, 0]
    assert (newest_state(path)["next_draw"], newest_state(path)["outstanding"]) == (8, [])


async def test_synchronous_training_is_the_same_loop_with_nothing_ahead(
    base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    await run_loop(await opened(base, path))
    assert column(path, "staleness_max") == [0, 0, 0, 0]
    assert column(path, "groups_ahead") == [0, 0, 0, 0]
    versions = [lag for lag, _ in token_lags(records(path), version=0)]
    assert sorted(set(versions)) == [-3, -2, -1, 0]  # each step's with the weights of its time


async def test_every_row_says_where_the_time_went(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    await run_loop(await opened(base, path, rollout__max_staleness=1, preset="igpo"))
    rows = read_metrics(path)
    own = {"collate_s", "beliefs_s", "logprob_s", "update_s"}
    assert [own <= set(row) for row in rows] == [True] * 4
    # What the weights took that a step's episodes were sampled with: the first ones were there.
    assert ["publish_s" in row for row in rows] == [False, True, True, True]
    for row in rows:
        assert 0 < row["beliefs_s"] <= row["collate_s"]
        assert 0 < row["logprob_s"] + row["update_s"] <= row["learn_s"]
        assert row["turn_policy_s"] > 0
        assert row["turn_env_s"] > 0


async def test_a_preset_that_asks_the_model_nothing_says_no_seconds_of_it(
    base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    await run_loop(await opened(base, path, steps=1))
    (row,) = read_metrics(path)
    assert "beliefs_s" not in row
    assert "logprob_s" not in row
    assert 0 < row["update_s"] <= row["learn_s"]


async def test_what_is_too_old_is_dropped_and_counted_h2(base: Path, tmp_path: Path) -> None:
    def prepare(policy: Told) -> None:
        # One episode of group 6, and all of group 7, claim to be of version 0.
        old = ("g6-e1", "g7-e0", "g7-e1")
        policy.version_of = lambda episode: 0 if episode in old else policy.version

    path = tmp_path / "run"
    await run_loop(await opened(base, path, prepare, rollout__max_staleness=2))
    # The last step, at version 3, takes them: the first goes on with one episode, 8 takes the
    # other's place.
    assert column(path, "stale_episodes") == [0, 0, 0, 3]
    assert column(path, "stale_groups") == [0, 0, 0, 1]
    assert column(path, "episodes") == [4, 4, 4, 6]  # of three groups: all that was sampled
    assert max(column(path, "staleness_max")) == 2
    assert newest_state(path)["next_draw"] == 9
    assert len(records(path)) == 9 * 2  # dropped ones are on record all the same


async def test_a_policy_that_always_fails_stops_the_run_with_its_reason_h8(
    base: Path, tmp_path: Path
) -> None:
    def prepare(policy: Told) -> None:
        def fail(request: GenerateRequest) -> Any:
            raise InfrastructureError("the server is gone")

        policy.before = fail

    path = tmp_path / "run"
    session = await opened(base, path, prepare, rollout__max_staleness=1, rollout__retries=1)
    with pytest.raises(InfrastructureError, match=r"all 8 episodes of a step failed.*is gone"):
        await run_loop(session)
    failures = [t.failure for t in records(path)]
    # Two steps' groups of two episodes, two tries each; none has a score.
    assert len(failures) == 2 * 2 * 2 * 2
    assert {(str(f.kind), f.where) for f in failures if f is not None} == {
        ("infrastructure", "policy")
    }
    assert list(read_scores(path)) == []
    assert newest_state(path)["next_step"] == 0
    assert newest_state(path)["outstanding"] == [0, 1, 2, 3]


async def resumed(path: Path) -> Session:
    config = read_config(path)

    def make(learner: Learner, renderer: Renderer, state: LoopState) -> Told:
        return Told(renderer, state.policy_version)

    return await open_session(
        check_inputs(config),
        RunFolder.open(path),
        progress=Silent(),
        is_resumed=True,
        make_policy=make,
    )


async def test_a_run_that_an_outage_stopped_goes_on_once_it_is_over(
    base: Path, tmp_path: Path
) -> None:
    def prepare(policy: Told) -> None:
        def fail(request: GenerateRequest) -> Any:
            raise InfrastructureError("the server is gone")

        policy.before = fail

    path = tmp_path / "run"
    session = await opened(base, path, prepare, rollout__retries=1)
    with pytest.raises(InfrastructureError, match="is gone"):
        await run_loop(session)
    session.folder.close()
    assert (await run_loop(await resumed(path))).steps == 4
    ids = [score.trajectory_id for score in read_scores(path)]
    assert len(ids) == len(set(ids)) == 4 * 2 * 2


async def test_weights_and_counters_agree_where_publishing_fails(
    base: Path, tmp_path: Path
) -> None:
    def prepare(policy: Told) -> None:
        async def update_weights(weights: Any, version: int) -> None:
            if version == 2:
                raise InfrastructureError("no answer within 600 s")
            policy.version = version

        policy.update_weights = update_weights

    path = tmp_path / "run"
    session = await opened(base, path, prepare)
    with pytest.raises(InfrastructureError, match="no answer"):
        await run_loop(session)
    session.folder.close()
    assert (newest_state(path)["next_step"], newest_state(path)["policy_version"]) == (2, 2)
    again = await resumed(path)
    assert again.learner.updates == 2
    assert (await run_loop(again)).steps == 4
    assert again.learner.updates == 4
    assert column(path, "step") == [1, 2, 3, 4]
    groups = [score.trajectory_id.partition("-")[0] for score in read_scores(path)]
    assert sorted(set(groups)) == [f"g{draw}" for draw in range(8)]
    tokens = sum(sampled_tokens(trajectory) for trajectory in records(path))
    assert column(path, "sampled_tokens_total")[-1] == tokens


async def test_evaluation_that_is_due_at_the_last_step_is_held_once(
    base: Path, tmp_path: Path
) -> None:
    for at_end in (False, True):
        path = tmp_path / f"run-{at_end}"
        settings = {"eval__every": 2, "eval__tasks": 2, "eval__at_end": at_end}
        await run_loop(await opened(base, path, **settings))
        assert sorted(read_evaluations(path)) == ["step-000002", "step-000004"]


async def test_dropping_partial_rollouts_leaves_no_episode_of_two_versions_h4(
    base: Path, tmp_path: Path
) -> None:
    def prepare(policy: Told) -> None:
        async def hold(request: GenerateRequest) -> None:
            # Its last turn waits for an update to come in between, the first time.
            while request.episode_id == "g2-e0" and request.turn == 1 and policy.version == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        policy.before = hold

    def versions(trajectory: Trajectory) -> set[int]:
        return {-lag for lag, _ in token_lags([trajectory], version=0)}

    found: dict[str, list[tuple[str, set[int], str]]] = {}
    for partial in ("keep", "drop"):
        path = tmp_path / partial
        session = await opened(
            base, path, prepare, rollout__max_staleness=1, rollout__partial=partial
        )
        await run_loop(session)
        held = [t for t in records(path) if t.id.startswith("g2-e0")]
        found[partial] = [(t.id, versions(t), str(t.stop_reason)) for t in held]
        trained = {score.trajectory_id for score in read_scores(path)}
        assert len(trained) == 4 * 2 * 2
    assert found["keep"] == [("g2-e0", {0, 1}, "terminated")]
    assert found["drop"] == [
        ("g2-e0", {0}, str(StopReason.CANCELLED)),
        ("g2-e0-a1", {1}, "terminated"),
    ]


async def test_an_interrupted_update_is_finished_and_counted(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    session = await opened(base, path, rollout__max_staleness=1)
    loop = asyncio.create_task(run_loop(session))
    while session.phase != "learn":  # noqa: ASYNC110
        await asyncio.sleep(0.0005)
    step = session.step
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    state = newest_state(path)
    assert state["next_step"] == step + 1 == state["policy_version"]
    assert len(read_metrics(path)) == step + 1
    used = {score.trajectory_id.partition("-")[0] for score in read_scores(path)}
    left = {f"g{draw}" for draw in state["outstanding"]}
    assert used.isdisjoint(left)
    assert used | left == {f"g{draw}" for draw in range(state["next_draw"])}


@pytest.mark.parametrize(
    ("settings", "is_said"),
    [
        ({"rollout.max_staleness": 3}, True),
        ({"rollout.max_staleness": 0}, False),
        (
            {
                "rollout.max_staleness": 3,
                "preset_overrides": {
                    "correction.part": "masked",
                    "correction.level": "turn",
                    "correction.low": 0.5,
                    "correction.high": 2.0,
                },
            },
            False,
        ),
        ({"rollout.max_staleness": 3, "preset_overrides": {"anchor.part": "behavior"}}, False),
    ],
)
def test_age_without_a_correction_is_said_at_the_start(
    base: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], is_said: bool
) -> None:
    check_inputs(load_config(settings={**SETTINGS, "policy": str(base), **settings}))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = "trains tokens that are up to 3 updates old as if they were fresh"
    assert [expected in text for text in said] == [True] * is_said
