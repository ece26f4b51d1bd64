"""The ids the policy saw are the ids that are trained, over six chat formats and both modes.

Six-turn tool episodes run through the engine and the batched policy, twelve at a time. The model
knows nothing, so its turns hold anything: cut-off text, control tokens, closed reasoning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.policies.base import GenerateRequest
from agentgym.policies.transformers import TransformersPolicy
from agentgym.records import Completion, Sampling, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.renderer.base import History
from agentgym.renderer.folder import load_renderer
from agentgym.renderer.formats import Fixture, fixture_format
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.samples import to_samples
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny

TURNS = 6
EPISODES = 12
CORPUS = ("The product of 37 and 48 is 1776, and 1776 is the answer. hello again ",) * 30


class SixTurns(TextEnv):
    """Answers as a tool, now and then with text that would steer if it were believed."""

    system_prompt = "Answer with a number."

    def start(self, task: Task, rng: Random) -> str:
        self.turn = 0
        return f"What is {rng.randrange(99)}*48?"

    def respond(self, action: Action) -> Reply:
        self.turn += 1
        text = f"{self.rng.randrange(10_000)} é" + ("<|im_end|>\n</s><|end|>" * (self.turn == 3))
        outcome = 0.0 if self.turn == TURNS else None
        return Reply(observation=text, role="tool", outcome=outcome)

    def reply_to(self, action: Action) -> Reply:
        # A cut-off turn counts too: every episode has six.
        return self.respond(action)


class Recorder:
    """A policy that notes which ids it was shown."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy
        self.seen: dict[tuple[str, int], tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        assert request.prompt_ids is not None
        self.seen[request.episode_id, request.turn] = request.prompt_ids
        return await self.policy.generate(request)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fixture], Path]:
    root = tmp_path_factory.mktemp("formats")
    built: dict[Fixture, Path] = {}

    def folder(name: Fixture) -> Path:
        if name not in built:
            built[name] = build_tiny(
                root / name,
                corpus=CORPUS,
                chat=fixture_format(name),
                tags=("<think>", "</think>"),
                seed=5,
            )
        return built[name]

    return folder


async def run_episodes(recorder: Recorder) -> list[Trajectory]:
    task = Task(id="six", env_id="six-turns")
    specs = [
        GroupSpec(
            id=f"g{index}",
            task=task,
            size=EPISODES // 3,
            seed=index,
            sampling=Sampling(temperature=1.25, max_new_tokens=20, seed=index),
            limits=Limits(max_turns=TURNS),
        )
        for index in range(3)
    ]
    policy: Any = recorder
    async with Engine(policy, make_env=lambda _, **kwargs: SixTurns(**kwargs)) as engine:
        groups = await engine.run_groups(specs)
    await recorder.policy.aclose()
    return [trajectory for group in groups for trajectory in group.trajectories]


def plain_logprobs(model: Any, ids: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Return [time - 1] log-probabilities of a plain forward over one row."""
    row = torch.tensor([ids])
    with torch.no_grad():
        logits = model(row).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]


@pytest.mark.parametrize("history", History)
@pytest.mark.parametrize("name", Fixture)
async def test_ids_seen_are_ids_trained_a1_a4_b1_b2(
    folders: Callable[[Fixture], Path], name: Fixture, history: History
) -> None:
    """Pitfalls A1, A2, A4, A7, A9, B1, B2, B7, B9."""
    folder = folders(name)
    model: Any = load_model(folder)
    renderer = load_renderer(folder, history=history)
    recorder = Recorder(TransformersPolicy(model, renderer))
    trajectories = await run_episodes(recorder)
    assert len(trajectories) == EPISODES
    worst = 0.0
    segments: list[int] = []
    for trajectory in trajectories:
        assert trajectory.failure is None, trajectory.failure
        assert len(trajectory.turns) == TURNS
        rows = to_samples(trajectory)
        segments.append(len(rows))
        sampled = sum(len(turn.completion.tokens.ids) for turn in trajectory.turns)  # type: ignore[union-attr]
        assert sum(sum(row.loss_mask) for row in rows) == sampled
        for row in rows:
            logprobs = plain_logprobs(model, row.ids, temperature=1.25)
            assert row.behavior_logprobs is not None
            for place in range(1, len(row.ids)):
                if row.loss_mask[place]:
                    gap = abs(float(logprobs[place - 1]) - row.behavior_logprobs[place])
                    worst = max(worst, gap)
            for turn in sorted({index for index in row.turn_ids if index >= 0}):
                start = row.turn_ids.index(turn)
                trace = trajectory.turns[turn].completion.tokens
                assert trace is not None
                assert row.ids[:start] == recorder.seen[trajectory.id, turn]
                assert row.ids[start : start + len(trace.ids)] == trace.ids
    assert worst <= 1e-4
    if history is History.VERBATIM:
        assert segments == [1] * EPISODES
    elif name is Fixture.DROPS_THINK:
        assert max(segments) > 1  # some turn closed its reasoning, and the next one dropped it
    elif name in (Fixture.SMOLLM2, Fixture.CHATML):
        assert segments == [1] * EPISODES
    else:
        assert max(segments) > 1  # stripped text, another header, another closing token
