"""Probe targets scored in one pass a trajectory, equal to a pass of each."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import Completion, Sample, Trajectory, Turn
from agentgym.trainers.batch import collate
from agentgym.trainers.beliefs import score_requests
from agentgym.trainers.learner import Learner, UpdateOptions
from agentgym.trainers.parts.probes import ScoringRequest
from agentgym.trainers.preset import load_preset

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
    ScoringRequest(trajectory=0, column=0, prefix=ROWS[0][:2], target=(11, 12)),
    ScoringRequest(trajectory=0, column=1, prefix=ROWS[0][:5], target=(11, 12)),
    ScoringRequest(trajectory=0, column=2, prefix=ROWS[0], target=(13,)),
    ScoringRequest(trajectory=1, column=0, prefix=ROWS[1][:1], target=(14, 15, 16)),
    # No beginning of a row: it gets a line of its own.
    ScoringRequest(trajectory=1, column=1, prefix=(7, 8, 10, 2), target=(5, 6)),
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
            for position in range(len(request.prefix), ids.shape[1])
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
