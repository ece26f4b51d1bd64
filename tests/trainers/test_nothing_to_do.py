# pyright: reportOptionalMemberAccess=false
"""An update that has nothing to learn from changes nothing and does not count.

Class of faults: "nothing to do" decided from a stage's input, not from its result.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import Completion, Sample, Score, Trajectory, Turn
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.objective.prepare import micro_loss, prepare
from agentgym.trainers.objective.preset import load_preset

BONUS = [{"part": "entropy_bonus", "coefficient": 0.01}]
FAR = 3.0  # nats between sampler and learner: past every bound below


def learner(preset: str, **overrides: Any) -> Learner:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model: Any = LlamaForCausalLM(config)
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return Learner(
        model,
        preset=load_preset(preset, changes),
        optim=OptimConfig(learning_rate=0.01, weight_decay=0.1),
        total_updates=9,
        temperature=1.0,
    )


def batch_of(outcomes: list[float | None], *, behavior: float = -2.0) -> Batch:
    """One group of one-turn episodes: a prompt of two ids, three sampled."""
    names = [f"e{at}" for at in range(len(outcomes))]
    turn = Turn(index=0, completion=Completion(text=""))
    items = [
        Trajectory(id=name, group_id="g", task_id="t", env_id="e", turns=(turn,), terminated=True)
        for name in names
    ]
    samples = [
        Sample(
            id=name,
            trajectory_id=name,
            group_id="g",
            ids=(1, 2, 3 + at % 5, 4, 5),
            loss_mask=(False, False, True, True, True),
            behavior_logprobs=(0.0, 0.0, *(behavior,) * 3),
            versions=(-1, -1, 0, 0, 0),
            turn_ids=(-1, -1, 0, 0, 0),
        )
        for at, name in enumerate(names)
    ]
    scores = [
        Score(trajectory_id=name, scorer_id="s", outcome=outcome, is_success=outcome == 1)
        for name, outcome in zip(names, outcomes, strict=True)
        if outcome is not None
    ]
    return collate(samples, items, scores, pad_id=0)


def weights(one: Learner) -> list[Any]:
    return [parameter.detach().clone() for parameter in one.model.parameters()]


def is_same(first: list[Any], second: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def moments(one: Learner) -> list[Any]:
    state = one.optimizer.state
    return [
        state[parameter][name].clone()
        for parameter in one.model.parameters()
        for name in ("step", "exp_avg", "exp_avg_sq")
    ]


SIEVE = {"part": "mismatch", "low": 0.9, "high": 1.1, "veto": 0.0, "statistics": "include"}
MASKED = {"part": "masked", "level": "token", "low": 0.9, "high": 1.1}

CASES: dict[str, tuple[dict[str, Any], Batch]] = {
    "every token filtered": ({"filters": [SIEVE]}, batch_of([1.0, 0.0], behavior=-2 - FAR)),
    "every token rejected by the correction": (
        {"correction": MASKED},
        batch_of([1.0, 0.0], behavior=-2 - FAR),
    ),
    "no score": ({}, batch_of([None, None])),
    "every advantage 0": ({}, batch_of([1.0, 1.0])),
    "no trained token": ({}, batch_of([])),
}


@pytest.mark.parametrize("case", CASES)
def test_f2_nothing_to_learn_from_leaves_weights_moments_and_counts(case: str) -> None:
    overrides, batch = CASES[case]
    one = learner("grpo", **overrides)
    # Momentum from an update that taught something: it would carry on by itself.
    one.update(batch_of([1.0, 0.0], behavior=-2.4), is_single=False)
    assert one.updates == 1
    before, kept = weights(one), moments(one)
    metrics = one.update(batch, is_single=False)
    assert is_same(before, weights(one))
    assert is_same(kept, moments(one))
    assert one.updates == 1
    assert "loss" not in metrics
    assert metrics["trained_tokens"] <= 6


@pytest.mark.parametrize("case", ["every advantage 0", "every token rejected by the correction"])
def test_f2_a_regularizer_alone_is_something_to_do(case: str) -> None:
    overrides, batch = CASES[case]
    one = learner("grpo", **overrides, regularizers=BONUS)
    before = weights(one)
    one.update(batch, is_single=False)
    assert one.updates == 1
    assert not is_same(before, weights(one))


def test_f2_a_critic_learns_where_the_policy_has_no_advantage() -> None:
    """Values of 1 for outcomes of 1: A = 0, while the head, at 0, is still to learn."""
    one = learner("ppo", critic__warmup_updates=0, reshape=[])
    first = batch_of([1.0, 0.0])
    one.update(first.with_token_fields(values=torch.zeros(first.ids.shape)), is_single=False)
    before, kept = weights(one), moments(one)
    head = one.critic.head.weight.detach().clone()
    batch = batch_of([1.0, 1.0])
    one.update(batch.with_token_fields(values=torch.ones(batch.ids.shape)), is_single=False)
    assert one.updates == 2
    assert is_same(before, weights(one))
    assert is_same(kept, moments(one))
    assert not torch.equal(head, one.critic.head.weight)


def test_r15_the_warm_up_of_a_critic_takes_no_step_of_the_policys() -> None:
    """Warm-up of 2 for the critic, 4 for the learning rate: the policy's first is 1/4 of .01."""
    one = learner("ppo", critic__warmup_updates=2)
    one.optim = OptimConfig(learning_rate=0.01, warmup_steps=4)
    batch = batch_of([1.0, 0.0])
    batch = batch.with_token_fields(values=torch.zeros(batch.ids.shape))
    rates = [one.update(batch, is_single=False)["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([0.0, 0.0, 0.0025])
    steps = [one.optimizer.state[p]["step"].item() for p in one.model.parameters()]
    own = [one.optimizer.state[p]["step"].item() for p in one.critic.parameters()]
    assert set(steps) == {1.0}
    assert set(own) == {3.0}


def test_f2_what_moves_is_read_from_the_result() -> None:
    batch = batch_of([1.0, 0.0])
    prepared = prepare(load_preset("grpo"), batch)
    assert prepared.moves_policy
    assert not prepared.moves_critic
    nothing = prepare(load_preset("grpo", {"regularizers": BONUS}), batch_of([None, None]))
    assert not nothing.moves_policy  # its coefficients count on the mask alone


# Two tokens, A = -1, loss -1/2 min(r A, ...): the gate caps r at 1.5 for a negative advantage.
@pytest.mark.parametrize(
    ("gate", "clipped"),
    [
        # r = 2 and 1: the first token is above the cap, its loss is constant.
        ({"part": "dual_clip", "clip_low": 0.2, "clip_high": 0.3, "cap": 1.5}, 1.0),
        ({"part": "two_sided_clip", "clip_low": 0.2, "clip_high": 0.3, "cap": 1.5}, 1.0),
        ({"part": "dual_clip", "clip_low": 0.2, "clip_high": 0.3, "cap": 2.5}, 0.0),
        ({"part": "clip", "clip_low": 0.2, "clip_high": 0.3}, 0.0),
    ],
)
def test_r16_what_the_cap_holds_counts_as_clipped(gate: dict[str, Any], clipped: float) -> None:
    batch = batch_of([1.0, 0.0])
    preset = load_preset("grpo", {"gate": gate})
    old = torch.zeros(batch.ids.shape, dtype=torch.float64) - 2
    prepared = prepare(preset, batch.with_logprobs(proximal=old))
    policy = old.clone()
    policy[1, 2] += math.log(2)
    policy.requires_grad_()
    part = micro_loss(preset, prepared, torch.tensor([1]), policy[1:])
    assert part.clip.clipped == clipped
    part.loss.backward()
    assert bool(policy.grad[1, 2] == 0) == bool(clipped)


def test_r16_the_factor_of_hooks_leaves_the_regularizers_alone() -> None:
    """Loss .25 S + R for a factor of .25: a quarter of the surrogate, the whole regularizer."""
    batch = batch_of([1.0, 0.0])
    kl = {"part": "kl", "coefficient": 1.0, "anchor": "proximal", "estimator": "k2"}
    preset = load_preset("grpo", {"regularizers": [{**kl, "log_bound": 20.0}]})
    batch = batch.with_logprobs(proximal=torch.full(batch.ids.shape, -2.0, dtype=torch.float64))
    prepared = prepare(preset, batch)
    policy = torch.full(batch.ids.shape, -1.5, dtype=torch.float64)
    found = [
        micro_loss(preset, prepared, torch.arange(2), policy, surrogate_weight=weight).loss.item()
        for weight in (0.0, 0.25, 1.0)
    ]
    assert found[0] == pytest.approx(0.125)  # d = .5: d^2 / 2, the mean over tokens
    assert found[1] - found[0] == pytest.approx(0.25 * (found[2] - found[0]))
