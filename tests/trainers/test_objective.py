"""The whole pipeline on batches of records: golden losses and gradients, layouts, splits."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    Sample,
    Score,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.batch import collate, micro_batches
from agentgym.trainers.objective import micro_loss, prepare
from agentgym.trainers.parts import rows as row_parts
from agentgym.trainers.preset import list_presets, load_preset

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make_trajectory(name, turns, *, group="g", failure=None):
    """A trajectory whose turns have the given numbers of sampled ids."""
    built = []
    for index, size in enumerate(turns):
        trace = TokenTrace(ids=(5,) * size, versions=(VersionRun(version=0, count=size),))
        built.append(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                prompt_ids=(7, 7),
                completion=Completion(text="", tokens=trace),
            )
        )
    return Trajectory(
        id=name, group_id=group, task_id="t", env_id="e", turns=tuple(built), failure=failure
    )


def make_sample(trajectory, turns, *, prompt=2, gap=1, segment=0):
    """One row: a prompt, then the chosen turns with `gap` observation ids between them."""
    ids, turn_ids = [7] * prompt, [-1] * prompt
    for turn in turns:
        size = len(trajectory.turns[turn].completion.tokens.ids)
        ids += [5] * size + [8] * gap
        turn_ids += [turn] * size + [-1] * gap
    mask = tuple(turn >= 0 for turn in turn_ids)
    return Sample(
        id=f"{trajectory.id}/{segment}",
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        segment=segment,
        ids=tuple(ids),
        loss_mask=mask,
        behavior_logprobs=(0.0,) * len(ids),
        versions=tuple(0 if trained else -1 for trained in mask),
        turn_ids=tuple(turn_ids),
    )


def score(trajectory, outcome, **turn_rewards):
    return Score(
        trajectory_id=trajectory.id,
        scorer_id="s",
        outcome=outcome,
        is_success=outcome == 1,
        turn_rewards=turn_rewards,
    )


def scatter(batch, values):
    """Put one number a trained token, in order of trajectory and turn, into [batch, time]."""
    out = torch.zeros(batch.ids.shape, dtype=F64)
    turn_ids = batch.rows.turn_ids
    for trajectory, turns in enumerate(values):
        for turn, numbers in enumerate(turns):
            at = (turn_ids == turn) & (batch.rows.trajectory == trajectory)[:, None]
            out[at] = torch.tensor(numbers, dtype=F64)
    return out


def gather(batch, values, numbers):
    """The opposite of scatter, flat."""
    flat = []
    turn_ids = batch.rows.turn_ids
    for trajectory, turns in enumerate(numbers):
        for turn, _ in enumerate(turns):
            at = (turn_ids == turn) & (batch.rows.trajectory == trajectory)[:, None]
            flat.append(values[at])
    return torch.cat(flat)


def run(preset, batch, policy, *, splits=None, widths=True):
    """Loss and gradient over a split of the rows, by default all rows at once."""
    prepared = prepare(preset, batch)
    leaf = policy.clone().requires_grad_()
    total = torch.zeros((), dtype=policy.dtype)
    for chosen in splits or [list(range(batch.ids.shape[0]))]:
        width = int(batch.lengths[chosen].max()) if widths else batch.ids.shape[1]
        part = micro_loss(preset, prepared, torch.tensor(chosen), leaf[chosen, :width])
        part.loss.backward(retain_graph=True)
        total = total + part.loss.detach()
    return total, leaf.grad


# --- the golden fixture: two trajectories of 2 turns each, A = (1, -0.5) -------------------------
#   turns      [0 0 | 1 1]            [0 | 1]
#   log-ratio  .10 -.20 | .40 .05     .30 | -.10
LOG_RATIOS = [[[0.10, -0.20], [0.40, 0.05]], [[0.30], [-0.10]]]
PROXIMAL = [[[-1.0, -0.5], [-2.0, -0.3]], [[-0.7], [-1.2]]]
ADVANTAGES = [[[1.0, 1.0], [1.0, 1.0]], [[-0.5], [-0.5]]]


def golden_batch():
    first, second = make_trajectory("a", [2, 2]), make_trajectory("b", [1, 1])
    samples = [make_sample(first, [0, 1]), make_sample(second, [0, 1])]
    batch = collate(samples, [first, second], [score(first, 1.0), score(second, 0.0)], pad_id=0)
    return batch.with_logprobs(proximal=scatter(batch, PROXIMAL))


CASES = {
    "ppo_tokmean": {"aggregation": "token_mean"},
    "ppo_seqmean": {},
    "is_token_tokmean": {"gate": "importance", "aggregation": "token_mean"},
    "gspo_.2": {"ratio": {"part": "sequence_mean", "log_bound": 10}},
    "gspo_token_.2": {"ratio": {"part": "sequence_token", "log_bound": 10}},
    "gspo_.0003": {
        "ratio": {"part": "sequence_mean", "log_bound": 10},
        "gate.clip_low": 3e-4,
        "gate.clip_high": 4e-4,
    },
    "turnppo_.2": {
        "ratio": {"part": "turn_mean", "gradient": "through", "log_bound": 20},
        "aggregation": "token_mean",
    },
}


@pytest.mark.parametrize("key", CASES)
def test_micro_loss_matches_golden_loss_and_gradient(key):
    batch = golden_batch()
    preset = load_preset("grpo", CASES[key])
    prepared = dataclasses.replace(prepare(preset, batch), advantages=scatter(batch, ADVANTAGES))
    policy = batch.rows.logprobs["proximal"] + scatter(batch, LOG_RATIOS)
    policy.requires_grad_()
    loss = micro_loss(preset, prepared, torch.arange(2), policy).loss
    loss.backward()
    assert loss.item() == pytest.approx(GOLDEN[key]["loss"], rel=1e-4)
    actual = gather(batch, policy.grad, LOG_RATIOS).tolist()
    assert actual == pytest.approx(GOLDEN[key]["grad"], rel=1e-4, abs=1e-7)
    assert torch.all(policy.grad[~batch.rows.mask] == 0)
