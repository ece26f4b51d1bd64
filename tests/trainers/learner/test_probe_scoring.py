"""Probe targets scored in one pass a trajectory, equal to a pass of each."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import Completion, Sample, Trajectory, Turn
from agentgym.trainers.batch import collate
from agentgym.trainers.learner.layout import MicroBatch, UpdateOptions
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.probe_scoring import score_requests
from agentgym.trainers.objective.preset import load_preset
from agentgym.trainers.parts.probes import ScoringRequest, belief_fields

ROWS = [(1, 2, 3, 4, 5, 6), (7, 8, 9)]


def learner(max_tokens: int) -> Learner:
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return Learner(
        LlamaForCausalLM(config).double(),
        preset=load_preset("grpo"),
        optim=OptimConfig(),
        total_updates=1,
        temperature=0.5,  # beliefs are at temperature 1 all the same
        options=UpdateOptions(micro_batch_tokens=max_tokens),
    )


def batch():
    samples = [
        Sample(
            id=f"s{i}",
            trajectory_id=f"t{i}",
            group_id="g",
            ids=ids,
            loss_mask=(False,) + (True,) * (len(ids) - 1),
            behavior_logprobs=None,
            versions=(-1,) + (0,) * (len(ids) - 1),
            turn_ids=(-1,) + (0,) * (len(ids) - 1),
        )
        for i, ids in enumerate(ROWS)
    ]
    trajectories = [
        Trajectory(
            id=f"t{i}",
            group_id="g",
            task_id="task",
            env_id="test/env-v0",
            turns=(Turn(index=0, completion=Completion(text="")),),
            terminated=True,
        )
        for i in range(len(ROWS))
    ]
    return collate(samples, trajectories, (), pad_id=0)


REQUESTS = (
    ScoringRequest(trajectory=0, column=0, prefix=ROWS[0][:2], target=(11, 12), scored=(0, 2)),
    ScoringRequest(trajectory=0, column=1, prefix=ROWS[0][:5], target=(11, 12), scored=(1, 2)),
    ScoringRequest(trajectory=0, column=2, prefix=ROWS[0], target=(13,), scored=(0, 1)),
    ScoringRequest(trajectory=1, column=0, prefix=ROWS[1][:1], target=(14, 15, 16), scored=(1, 3)),
    # No beginning of a row: it gets a line of its own.
    ScoringRequest(trajectory=1, column=1, prefix=(7, 8, 10, 2), target=(5, 6), scored=(0, 1)),
)


@pytest.mark.parametrize("max_tokens", [8, 1000])
def test_score_requests_equals_one_pass_each(max_tokens: int) -> None:
    subject = learner(max_tokens)
    got = score_requests(subject, batch(), REQUESTS)
    for request, mean in zip(REQUESTS, got, strict=True):
        ids = torch.tensor([request.prefix + request.target])
        logprobs = subject.model(input_ids=ids).logits[0].log_softmax(-1)
        chosen = [
            logprobs[position - 1, ids[0, position]].item()
            for position in range(*(len(request.prefix) + at for at in request.scored))
        ]
        assert mean == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


def test_score_requests_does_not_depend_on_the_order() -> None:
    order = list(range(len(REQUESTS)))
    random.Random(1).shuffle(order)
    subject = learner(1000)
    straight = score_requests(subject, batch(), REQUESTS)
    mixed = score_requests(subject, batch(), [REQUESTS[index] for index in order])
    assert mixed == pytest.approx([straight[index] for index in order], abs=1e-12)


def test_score_requests_leaves_no_gradient() -> None:
    subject = learner(1000)
    score_requests(subject, batch(), REQUESTS)
    assert all(parameter.grad is None for parameter in subject.model.parameters())


def told(numbers: list[list[float]]) -> Learner:
    """Return a learner whose model gives each request's target these log-probabilities."""
    subject: Any = learner(1000)

    def scorer(micro: MicroBatch, mask: Tensor, *_: object) -> tuple[Tensor, None, None]:
        padded = torch.tensor([[0.0, *row] for row in numbers], dtype=torch.float64)
        return torch.where(mask, padded, 0.0), None, None

    subject.scorer = scorer
    return subject


@pytest.mark.parametrize("tag", [-0.0, -7.5])
def test_a_belief_is_the_mean_over_the_answer_alone(tag: float) -> None:
    """Golden IG_BELIEF: [-2, -1] before and [-.5, -.3] after; exp(-.4) - exp(-1.5) = .447190.

    The ids of the template's head are context: how likely they are changes nothing.
    """
    requests = [
        ScoringRequest(
            trajectory=0,
            column=at,
            prefix=ROWS[0][: 2 + at],
            target=(11, 12, 13, 14),
            scored=(2, 4),
        )
        for at in range(2)
    ]
    subject = told([[tag, tag, -2.0, -1.0], [tag, tag / 2, -0.5, -0.3]])
    means = score_requests(subject, batch(), requests)
    assert means == pytest.approx((-1.5, -0.4))
    beliefs = belief_fields(requests, means, trajectories=2, turns=1).exp()
    assert float(beliefs[0, 1] - beliefs[0, 0]) == pytest.approx(0.447190, abs=1e-6)


def test_a_window_outside_the_target_is_refused() -> None:
    for scored in [(0, 3), (1, 1), (-1, 1)]:
        with pytest.raises(ValueError, match="must be a stretch of the 2 target ids"):
            ScoringRequest(trajectory=0, column=0, prefix=(1,), target=(2, 3), scored=scored)
