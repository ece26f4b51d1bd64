# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""The plain file is the oracle: the library gives the same loss and gradient on its batches."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from agentgym.records import (
    Completion,
    Sample,
    Score,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.batch import collate
from agentgym.trainers.objective.prepare import micro_loss, prepare
from agentgym.trainers.objective.preset import load_preset

PATH = Path(__file__).parents[2] / "examples" / "grpo_one_file.py"
SPEC = importlib.util.spec_from_file_location("grpo_one_file", PATH)
assert SPEC is not None
plain = importlib.util.module_from_spec(SPEC)
sys.modules["grpo_one_file"] = plain
SPEC.loader.exec_module(plain)


@pytest.fixture
def episodes():
    """Three groups of four played by a fresh policy; the second has nothing but equal rewards."""
    torch.manual_seed(3)
    played = plain.rollout(plain.Policy(), [2, 5, 0], 4, torch.Generator().manual_seed(11))
    for at, reward in enumerate([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.25]):
        played[at].reward = reward
    return played


def library_batch(episodes):
    """The same episodes as records: what the engine would have stored."""
    trajectories, samples, scores = [], [], []
    for at, episode in enumerate(episodes):
        turns = []
        for index in range(max(episode.turns) + 1):
            ids = tuple(
                i for i, turn in zip(episode.ids, episode.turns, strict=True) if turn == index
            )
            trace = TokenTrace(ids=ids, versions=(VersionRun(version=0, count=len(ids)),))
            turns.append(
                Turn(
                    index=index,
                    parent=index - 1 if index else None,
                    prompt_ids=(0,),
                    completion=Completion(text="", tokens=trace),
                )
            )
        name = f"t{at}"
        group = f"g{episode.group}"
        trajectories.append(
            Trajectory(id=name, group_id=group, task_id="t", env_id="e", turns=tuple(turns))
        )
        samples.append(
            Sample(
                id=name,
                trajectory_id=name,
                group_id=group,
                ids=tuple(episode.ids),
                loss_mask=tuple(turn >= 0 for turn in episode.turns),
                behavior_logprobs=tuple(episode.logprobs),
                versions=tuple(0 if turn >= 0 else -1 for turn in episode.turns),
                turn_ids=tuple(episode.turns),
            )
        )
        scores.append(
            Score(trajectory_id=name, scorer_id="s", outcome=episode.reward, is_success=False)
        )
    return collate(samples, trajectories, scores, pad_id=0)


RATIOS = {
    "token": {},
    "turn": {"ratio": {"part": "turn_mean", "gradient": "through", "log_bound": 20.0}},
}


@pytest.mark.parametrize("level", RATIOS)
def test_library_agrees_with_the_plain_file(episodes, level):
    policy = plain.Policy().double()
    proximal = policy.logprobs(episodes).detach()
    # Moved weights, so that the ratios are not 1 and some tokens are clipped.
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for weight in policy.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    loss = plain.grpo_loss(
        policy.logprobs(episodes), proximal, episodes, clip_low=0.2, clip_high=0.3, level=level
    )
    expected = torch.autograd.grad(loss, list(policy.parameters()))

    batch = library_batch(episodes).with_logprobs(proximal=proximal)
    preset = load_preset("grpo", {**RATIOS[level], "gate.clip_high": 0.3})
    prepared = prepare(preset, batch)
    rows = torch.arange(len(episodes))
    actual = micro_loss(preset, prepared, rows, policy.logprobs(episodes)).loss
    gradient = torch.autograd.grad(actual, list(policy.parameters()))

    torch.testing.assert_close(actual, loss, rtol=1e-9, atol=1e-12)
    for one, other in zip(gradient, expected, strict=True):
        assert float((one - other).norm()) <= 1e-9 * float(other.norm())
    assert float(expected[0].norm()) > 1e-3
    ratio = torch.exp(policy.logprobs(episodes) - proximal)[batch.rows.mask]
    assert ((ratio < 0.8) | (ratio > 1.3)).any()  # the clip was at work


def test_plain_log_probs_are_those_that_were_sampled(episodes):
    torch.manual_seed(3)
    policy = plain.Policy()
    played = plain.rollout(policy, [2, 5, 0], 4, torch.Generator().manual_seed(11))
    scored = policy.logprobs(played).detach()
    for row, episode in enumerate(played):
        for time, turn in enumerate(episode.turns):
            if turn >= 0:
                assert float(scored[row, time]) == pytest.approx(episode.logprobs[time], abs=1e-5)


def test_plain_training_learns_the_game():
    # Steps of 64 episodes; a fresh policy solves 2 % of them, chance alone cannot reach 10 %.
    solved = plain.train(steps=30, seed=0, report_every=0)
    assert sum(solved[:3]) / 3 < 0.1
    assert sum(solved[-5:]) / 5 > 0.15
