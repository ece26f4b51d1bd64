# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Equivalences and invariances of whole objectives, over drawn batches."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.records import Completion, Sample, Score, TokenTrace, Trajectory, Turn, VersionRun
from agentgym.trainers.batch import collate
from agentgym.trainers.objective.prepare import micro_loss, prepare
from agentgym.trainers.objective.preset import load_preset as read_preset

F64 = torch.float64
FEW = settings(max_examples=6)
_READ = {}


def load_preset(name, overrides=None):
    """Each preset is read once for all drawn batches."""
    key = (name, repr(overrides))
    if key not in _READ:
        _READ[key] = read_preset(name, overrides)
    return _READ[key]


def make_trajectory(name, group, sizes):
    turns = tuple(
        Turn(
            index=index,
            parent=index - 1 if index else None,
            prompt_ids=(7,),
            completion=Completion(
                text="",
                tokens=TokenTrace(ids=(5,) * size, versions=(VersionRun(version=0, count=size),)),
            ),
        )
        for index, size in enumerate(sizes)
    )
    return Trajectory(id=name, group_id=group, task_id="t", env_id="e", turns=turns)


def make_sample(trajectory, gaps):
    """One row; `gaps[k]` observation ids stand before turn k."""
    turn_ids = []
    for turn, gap in zip(trajectory.turns, gaps, strict=True):
        turn_ids += [-1] * gap + [turn.index] * len(turn.completion.tokens.ids)
    mask = tuple(turn >= 0 for turn in turn_ids)
    return Sample(
        id=trajectory.id,
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        ids=(5,) * len(mask),
        loss_mask=mask,
        behavior_logprobs=(0.0,) * len(mask),
        versions=tuple(0 if one else -1 for one in mask),
        turn_ids=tuple(turn_ids),
    )


def make_batch(shapes, outcomes, gaps=1, seed=0):
    """Groups of trajectories: shapes [group][trajectory][turn] -> tokens, with drawn log-probs."""
    items, samples, scores = [], [], []
    for g, group in enumerate(shapes):
        for t, sizes in enumerate(group):
            item = make_trajectory(f"{g}-{t}", str(g), sizes)
            items.append(item)
            samples.append(make_sample(item, [gaps] * len(sizes)))
            scores.append(
                Score(
                    trajectory_id=item.id,
                    scorer_id="s",
                    outcome=outcomes[len(items) - 1],
                    is_success=False,
                )
            )
    batch = collate(samples, items, scores, pad_id=0)
    # Beliefs are drawn by trajectory, log-probabilities by trained token in order: neither
    # depends on how many observation ids lie between them.
    generator = torch.Generator().manual_seed(seed)
    width = batch.table.turn_valid.shape[1]
    beliefs = -torch.rand(len(items), width + 1, generator=generator, dtype=F64)
    tokens = int(batch.rows.mask.sum())
    proximal, policy, values = (torch.zeros(batch.ids.shape, dtype=F64) for _ in range(3))
    proximal[batch.rows.mask] = -torch.rand(tokens, generator=generator, dtype=F64)
    policy[batch.rows.mask] = 0.3 * torch.randn(tokens, generator=generator, dtype=F64)
    values[batch.rows.mask] = torch.rand(tokens, generator=generator, dtype=F64)
    batch = batch.with_turn_fields(belief_logprobs=beliefs).with_token_fields(values=values)
    return batch.with_logprobs(proximal=proximal, reference=proximal - 0.1), proximal + policy


def run(preset, batch, policy):
    """The loss, the flat gradient of trained tokens, and what was prepared."""
    prepared = prepare(preset, batch)
    leaf = policy.clone().requires_grad_()
    values = 0.5 * leaf if preset.critic else None
    rows = torch.arange(batch.ids.shape[0])
    loss = micro_loss(preset, prepared, rows, leaf, values=values, entropy=-leaf).loss
    loss.backward()
    return loss.detach(), leaf.grad[batch.rows.mask], prepared


def shapes(turns):
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=turns)
    return st.lists(st.lists(sizes, min_size=2, max_size=4), min_size=1, max_size=3)


def outcomes_for(shape, draw):
    count = sum(len(group) for group in shape)
    return draw.draw(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=count, max_size=count)
    )


PRESETS = ["grpo", "rloo", "dr_grpo", "trloo", "turn_grpo", "a2tgpo", "igpo", "gspo", "opo", "ppo"]


@pytest.mark.parametrize("name", PRESETS)
@FEW
@given(shape=shapes(3), draw=st.data())
def test_observation_ids_and_padding_change_nothing(name, shape, draw):
    outcomes = outcomes_for(shape, draw)
    preset = load_preset(name)
    narrow = run(preset, *make_batch(shape, outcomes, gaps=0))
    wide = run(preset, *make_batch(shape, outcomes, gaps=3))
    torch.testing.assert_close(wide[0], narrow[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(wide[1], narrow[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo", "turn_grpo", "trloo"])
@FEW
@given(shape=shapes(2), draw=st.data())
def test_group_advantages_sum_to_zero(name, shape, draw):
    """In each group (and turn), unless a preset lets a single trajectory keep its return."""
    batch, _ = make_batch(shape, outcomes_for(shape, draw))
    advantages = prepare(load_preset(name), batch).turn_advantages
    for group in range(len(shape)):
        for turn in range(advantages.shape[1]):
            members = (batch.table.group == group) & batch.table.turn_valid[:, turn]
            if int(members.sum()) > 1 and (name in ("turn_grpo", "trloo") or turn == 0):
                assert abs(float(advantages[members, turn].sum())) < 1e-9


@FEW
@given(shape=shapes(2), draw=st.data())
def test_rloo_is_dr_grpo_times_n_over_n_minus_1(shape, draw):
    batch, _ = make_batch(shape, outcomes_for(shape, draw))
    sizes = torch.tensor([float(len(group)) for group in shape], dtype=F64)[batch.table.group]
    centred = prepare(load_preset("dr_grpo"), batch).turn_advantages
    loo = prepare(load_preset("rloo"), batch).turn_advantages
    torch.testing.assert_close(loo, centred * (sizes / (sizes - 1))[:, None])


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo", "opo", "turn_grpo", "trloo"])
@FEW
@given(shape=shapes(2), shift=st.sampled_from([0.1, 0.25, 0.5]), draw=st.data())
def test_shifting_a_group_s_outcomes_changes_no_advantage(name, shape, shift, draw):
    outcomes = [0.5 * outcome for outcome in outcomes_for(shape, draw)]
    batch, _ = make_batch(shape, outcomes)
    moved, _ = make_batch(shape, [outcome + shift for outcome in outcomes])
    one = prepare(load_preset(name), batch).turn_advantages
    other = prepare(load_preset(name), moved).turn_advantages
    if name == "trloo":  # alone at a turn, a trajectory keeps its return: shifted there
        alone = one == prepare(load_preset("trloo"), batch).rewards["outcome"].values
        counts = torch.stack([
            batch.table.turn_valid[batch.table.group == group].sum(0)
            for group in batch.table.group
        ])  # fmt: skip
        keep = counts > 1
        assert alone.shape == keep.shape
        one, other = one[keep], other[keep]
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@FEW
@given(shape=shapes(1), scale=st.sampled_from([0.25, 0.5]), draw=st.data())
def test_scaling_outcomes_changes_no_grpo_advantage(shape, scale, draw):
    outcomes = outcomes_for(shape, draw)
    exact = {"terms.0.ops.0.eps": 0.0}
    one = prepare(load_preset("grpo", exact), make_batch(shape, outcomes)[0])
    scaled = [scale * outcome for outcome in outcomes]
    other = prepare(load_preset("grpo", exact), make_batch(shape, scaled)[0])
    torch.testing.assert_close(one.turn_advantages, other.turn_advantages)


# On episodes of one turn a turn is a sequence: the turn-level preset is its parent.
COLLAPSE = {
    "grpo_turn_ratio": ("turn_base", {"ratio": {"part": "sequence_mean", "log_bound": 20.0}}),
    "turn_grpo": ("turn_base", {}),
    "turn_ppo": ("ppo", {"ratio": {"part": "sequence_mean", "log_bound": 20.0}}),
    "trloo": ("rloo", {
        "gate": {"part": "dual_clip", "clip_low": 0.2, "clip_high": 0.28, "cap": 3.0},
        "aggregation": "token_mean",
    }),
    "a2tgpo": ("grpo", {
        "ratio": {"part": "sequence_token", "log_bound": 10.0},
        "terms.0.ops.0.ddof": 0,
        "terms.0.ops.0.variance_eps": 1e-8,
    }),
    "igpo": ("turn_base", {
        "terms.0.ops.0.ddof": 0,
        "regularizers": [{"part": "kl", "coefficient": 0.001, "anchor": "reference",
                          "estimator": "k3", "log_bound": 20.0}],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLAPSE)
@FEW
@given(shape=shapes(1), draw=st.data())
def test_turn_level_presets_collapse_to_their_parents_on_one_turn(name, shape, draw):
    batch, policy = make_batch(shape, outcomes_for(shape, draw))
    parent, overrides = COLLAPSE[name]
    one = run(load_preset(name), batch, policy)
    other = run(load_preset(parent, overrides), batch, policy)
    torch.testing.assert_close(one[0], other[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one[1], other[1], rtol=1e-9, atol=1e-12)


@FEW
@given(shape=shapes(3), draw=st.data())
def test_correction_of_the_sampler_itself_is_one_and_a_far_cap_is_plain_importance(shape, draw):
    batch, policy = make_batch(shape, outcomes_for(shape, draw))
    proximal = batch.rows.logprobs["proximal"]
    same = batch.with_logprobs(behavior=proximal)
    part = {"part": "truncated", "level": "token", "cap": 2.0}
    capped = load_preset("turn_base", {"correction": part})
    plain = run(load_preset("turn_base"), same, policy)
    torch.testing.assert_close(run(capped, same, policy)[0], plain[0])
    moved = batch.with_logprobs(behavior=proximal - 1.5)
    far = load_preset("turn_base", {"correction": {**part, "cap": 1e9}})
    weighted = run(far, moved, policy)
    torch.testing.assert_close(weighted[1], plain[1] * torch.tensor(1.5, dtype=F64).exp())


@FEW
@given(shape=shapes(3), draw=st.data())
def test_more_groups_only_rescale_what_a_group_teaches(shape, draw):
    """A group's advantages do not depend on the other groups of the batch."""
    outcomes = outcomes_for(shape, draw)
    whole, _ = make_batch(shape, outcomes)
    alone, _ = make_batch(shape[:1], outcomes[: len(shape[0])])
    count, width = alone.table.turn_valid.shape
    for name in ("grpo", "trloo", "turn_grpo"):
        every = prepare(load_preset(name), whole).turn_advantages[:count, :width]
        torch.testing.assert_close(every, prepare(load_preset(name), alone).turn_advantages)


@FEW
@given(shape=shapes(3), draw=st.data())
def test_no_gradient_reaches_anything_but_the_policy(shape, draw):
    batch, policy = make_batch(shape, outcomes_for(shape, draw))
    tensors = {
        "proximal": batch.rows.logprobs["proximal"].clone().requires_grad_(),
        "beliefs": batch.table.fields["belief_logprobs"].clone().requires_grad_(),
    }
    fields = {"belief_logprobs": tensors["beliefs"]}
    table = dataclasses.replace(batch.table, fields=fields)
    batch = dataclasses.replace(batch, table=table)
    batch = batch.with_logprobs(proximal=tensors["proximal"])
    prepared = prepare(load_preset("a2tgpo"), batch)
    assert not prepared.advantages.requires_grad
    assert not prepared.widths.low.requires_grad
    assert not prepared.coefficients.requires_grad
    leaf = policy.clone().requires_grad_()
    part = micro_loss(load_preset("a2tgpo"), prepared, torch.arange(len(batch.sample_ids)), leaf)
    part.loss.backward()
    assert tensors["proximal"].grad is None
    assert tensors["beliefs"].grad is None
