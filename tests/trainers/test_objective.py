"""The whole pipeline on batches of records: golden losses and gradients, layouts, splits."""

import dataclasses
import json
import math
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
from agentgym.trainers.batch import collate
from agentgym.trainers.objective import micro_loss, prepare
from agentgym.trainers.parts import rows as row_parts
from agentgym.trainers.preset import list_presets, load_preset

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make_trajectory(name, turns, *, group="g", failure=None):
    """A trajectory whose turns have the given numbers of sampled ids."""
    built = []
    for index, size in enumerate(turns):
        runs = (VersionRun(version=0, count=size),) if size else ()
        trace = TokenTrace(ids=(5,) * size, versions=runs)
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
        logprobs = leaf[chosen, :width]
        # A value head that reads what the log-probabilities read, and an entropy.
        values = 0.3 * logprobs + 0.1 if preset.critic else None
        part = micro_loss(
            preset, prepared, torch.tensor(chosen), logprobs, values=values, entropy=-logprobs
        )
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


# --- a2tgpo: three trajectories of 3, 3 and 2 turns ----------------------------------------------
# Gains of the turns before the last: (0.2, 0.1), (0.0, 0.3), (0.4); outcomes 1, 0, 1.
GAINS = [[0.2, 0.1], [0.0, 0.3], [0.4]]
A2TGPO_ADVANTAGES = [
    [0.494975, 0.407108, 0.707105],
    [-1.461887, -1.114214, -1.414211],
    [1.074526, 0.707105],
]
A2TGPO_SCALES = [[1.0, 0.861366, 1.0], [0.836262, 1.138634, 1.0], [1.163738, 1.0]]
SIZES = [[2, 3, 1], [1, 2, 2], [3, 1]]


def beliefs(gains):
    """Belief log-probabilities whose differences of probabilities are the gains."""
    table = torch.full((len(gains), 4), torch.nan, dtype=F64)
    for row, numbers in enumerate(gains):
        belief = 0.1
        table[row, 0] = math.log(belief)
        for turn, gain in enumerate(numbers):
            belief += gain
            table[row, turn + 1] = math.log(belief)
    return table


def a2tgpo_batch(layout="trajectory"):
    """The same trajectories as one row each, as two segments each, or as one row a turn."""
    trajectories = [make_trajectory(name, size) for name, size in zip("abc", SIZES, strict=True)]
    samples = []
    for item in trajectories:
        turns = list(range(len(item.turns)))
        if layout == "segments":
            # A template that drops what was thought before: the last turn reads a shorter context.
            samples.append(make_sample(item, turns[:-1]))
            samples.append(make_sample(item, turns[-1:], prompt=4, segment=1))
        else:
            samples.append(make_sample(item, turns))
    if layout == "turns":
        samples = row_parts.turn(samples)
    scores = [score(item, outcome) for item, outcome in zip(trajectories, [1, 0, 1], strict=True)]
    batch = collate(samples, trajectories, scores, pad_id=0)
    return batch.with_turn_fields(belief_logprobs=beliefs(GAINS))


def drawn(seed, scale, shift=0.0):
    """One number for each token, by trajectory and turn, whatever the layout."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [(torch.randn(size, generator=generator) * scale + shift).tolist() for size in turns]
        for turns in SIZES
    ]


def with_policies(batch):
    proximal = scatter(batch, drawn(1, 0.5, -1.5))
    policy = proximal + scatter(batch, drawn(2, 0.3))
    return batch.with_logprobs(proximal=proximal), policy


def test_a2tgpo_advantages_and_clip_scales_match_golden():
    batch, _ = with_policies(a2tgpo_batch())
    prepared = prepare(load_preset("a2tgpo"), batch)
    for row, wanted in enumerate(A2TGPO_ADVANTAGES):
        actual = prepared.turn_advantages[row, : len(wanted)].tolist()
        assert actual == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    for row, scales in enumerate(A2TGPO_SCALES):
        for turn, scale in enumerate(scales):
            at = (batch.rows.turn_ids[row] == turn).nonzero()[0, 0]
            assert prepared.widths.low[row, at].item() == pytest.approx(0.2 * scale, rel=1e-5)
            assert prepared.widths.high[row, at].item() == pytest.approx(0.2 * scale, rel=1e-5)


TURN_OR_TOKEN = ["a2tgpo", "grpo", "dr_grpo", "rloo", "grpo_turn_ratio", "turn_grpo", "trloo"]


@pytest.mark.parametrize("name", TURN_OR_TOKEN)
def test_row_layouts_give_the_same_loss_and_gradient(name):
    results = []
    for layout in ("trajectory", "segments", "turns"):
        batch, policy = with_policies(a2tgpo_batch(layout))
        loss, gradient = run(load_preset(name), batch, policy)
        results.append((loss, gather(batch, gradient, SIZES)))
        assert int(batch.rows.mask.sum()) == 15  # every sampled id is trained in one row
    for loss, gradient in results[1:]:
        torch.testing.assert_close(loss, results[0][0], rtol=1e-9, atol=1e-12)
        assert relative(gradient, results[0][1]) < 1e-9
    assert results[0][1].norm() > 1e-5


def relative(actual, expected):
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", list_presets())
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_micro_batches_change_nothing(name, size):
    batch, policy = with_policies(a2tgpo_batch("turns"))
    batch = with_everything(batch)
    whole_loss, whole = run(load_preset(name), batch, policy)
    rows = list(range(batch.ids.shape[0]))
    splits = [rows[at : at + size] for at in range(0, len(rows), size)]
    loss, gradient = run(load_preset(name), batch, policy, splits=splits)
    torch.testing.assert_close(loss, whole_loss, rtol=1e-9, atol=1e-12)
    assert relative(gradient, whole) < 1e-9


def with_everything(batch):
    """Attach what a preset may need beside the proximal log-probabilities."""
    more = batch.with_logprobs(
        reference=batch.rows.logprobs["proximal"] - scatter(batch, batch_numbers(batch, 3, 0.2))
    )
    return more.with_token_fields(values=scatter(batch, batch_numbers(batch, 4, 0.5)))


def batch_numbers(batch, seed, scale):
    """Drawn numbers in the order of the batch's trajectories, whatever that order is."""
    numbers = drawn(seed, scale)
    return [numbers["abc".index(name)] for name in batch.trajectory_ids]


@pytest.mark.parametrize("name", list_presets())
def test_ranks_change_nothing_in_any_order(name):
    batch, policy = with_policies(a2tgpo_batch())
    batch = with_everything(batch)
    whole_loss, whole = run(load_preset(name), batch, policy)
    loss, gradient = run(load_preset(name), batch, policy, splits=[[2, 0], [1]])
    torch.testing.assert_close(loss, whole_loss, rtol=1e-9, atol=1e-12)
    assert relative(gradient, whole) < 1e-9


@pytest.mark.parametrize("name", list_presets())
def test_masked_values_change_nothing_and_get_no_gradient(name):
    batch, policy = with_policies(a2tgpo_batch())
    batch = with_everything(batch)
    whole_loss, whole = run(load_preset(name), batch, policy)
    junk = torch.where(batch.rows.mask, policy, torch.nan)
    loss, gradient = run(load_preset(name), batch, junk, widths=False)
    torch.testing.assert_close(loss, whole_loss, rtol=0, atol=0)
    torch.testing.assert_close(gradient, whole, rtol=0, atol=0)
    assert torch.all(gradient[~batch.rows.mask] == 0)


@pytest.mark.parametrize("name", list_presets())
def test_order_of_trajectories_changes_nothing(name):
    order = [2, 0, 1]
    batch, policy = with_policies(a2tgpo_batch())
    loss, gradient = run(load_preset(name), with_everything(batch), policy)
    other = permuted(order, batch.rows.logprobs["proximal"])
    other_loss, other_gradient = run(load_preset(name), with_everything(other), policy[order])
    torch.testing.assert_close(other_loss, loss, rtol=1e-9, atol=1e-12)
    assert relative(other_gradient, gradient[order]) < 1e-9


def permuted(order, proximal):
    trajectories = [make_trajectory(name, size) for name, size in zip("abc", SIZES, strict=True)]
    outcomes = [1, 0, 1]
    chosen = [trajectories[at] for at in order]
    batch = collate(
        [make_sample(item, range(len(item.turns))) for item in chosen],
        chosen,
        [score(trajectories[at], outcomes[at]) for at in (1, 2, 0)],
        pad_id=9,
    )
    batch = batch.with_turn_fields(belief_logprobs=beliefs(GAINS)[order])
    return batch.with_logprobs(proximal=proximal[order])


@pytest.mark.parametrize("name", list_presets())
def test_equal_outcomes_and_no_gains_give_no_gradient(name):
    if name == "reinforce" or load_preset(name).critic is not None:
        return  # has no group baseline: equal outcomes still teach
    batch, policy = with_policies(a2tgpo_batch())
    # igpo compares gains with outcomes: they are equal where both are 0.
    equal = 0.0 if name == "igpo" else 0.3
    table = dataclasses.replace(batch.table, outcome=torch.full((3,), equal, dtype=F64))
    batch = dataclasses.replace(batch, table=table)
    batch = batch.with_turn_fields(belief_logprobs=torch.zeros(3, 4, dtype=F64))
    # The reference is the policy itself: a KL has no gradient there.
    batch = with_everything(batch).with_logprobs(reference=policy)
    _, gradient = run(load_preset(name), batch, policy)
    assert torch.all(gradient == 0)


def test_infrastructure_failure_is_in_no_statistic_and_not_trained():
    # Outcomes 1, 0 and a failure: the baseline is 1/2, and the failed one trains nothing.
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
    good, bad = make_trajectory("a", [2]), make_trajectory("b", [2])
    lost = make_trajectory("c", [2], failure=failure)
    batch = collate(
        [make_sample(item, [0]) for item in (good, bad, lost)],
        [good, bad, lost],
        [score(good, 1), score(bad, 0), score(lost, 0)],
        pad_id=0,
    )
    prepared = prepare(load_preset("dr_grpo"), batch)
    assert prepared.turn_advantages[:, 0].tolist() == [0.5, -0.5, 0.0]
    assert prepared.mask.sum(dim=1).tolist() == [2, 2, 0]
    # Two trajectories and 1024 tokens in the denominator, not three.
    assert prepared.coefficients[0, 2].item() == pytest.approx(1 / (2 * 1024))
    assert prepared.metrics["unscored_trajectories"] == 1


def test_group_of_one_is_counted_f3():
    item = make_trajectory("a", [2])
    batch = collate([make_sample(item, [0])], [item], [score(item, 0.7)], pad_id=0)
    prepared = prepare(load_preset("grpo"), batch)
    assert prepared.turn_advantages.tolist() == [[0.0]]
    assert prepared.metrics["singleton_groups"] == 1


def test_truncated_trajectories_leave_numerator_and_denominator_b5():
    # 4 truncated tokens of loss 1, 2 tokens of loss 3: mean 6 / 2 = 3, not 6 / 6.
    cut, ended = make_trajectory("a", [4]), make_trajectory("b", [2])
    cut = dataclasses.replace(cut, truncated=True)
    batch = collate(
        [make_sample(cut, [0]), make_sample(ended, [0])],
        [cut, ended],
        [score(cut, 1), score(ended, 0)],
        pad_id=0,
    )
    preset = load_preset(
        "turn_base", {"filters": [{"part": "truncated_trajectory", "statistics": "include"}]}
    )
    prepared = prepare(preset, batch)
    losses = torch.where(batch.rows.trajectory[:, None] == 0, 1.0, 3.0) * batch.rows.mask
    assert (prepared.coefficients * losses).sum().item() == pytest.approx(3.0)
    # It stays in the statistics here: the other one's advantage is not 0.
    assert prepared.turn_advantages[1, 0].item() < 0


def test_empty_turn_keeps_its_reward_and_trains_nothing_b8():
    # Turn 1 has no ids and a reward of 0.5: the return of turn 0 holds it.
    item, other = make_trajectory("a", [2, 0]), make_trajectory("b", [2, 1])
    batch = collate(
        [make_sample(item, [0, 1]), make_sample(other, [0, 1])],
        [item, other],
        [score(item, 0, tool=(None, 0.5)), score(other, 0, tool=(0.0, 0.0))],
        pad_id=0,
    )
    preset = load_preset("trloo", {"rewards.turn.weights": {"tool": 1.0}})
    prepared = prepare(preset, batch)
    assert prepared.turn_advantages[0].tolist() == [0.5, 0.5]
    loss, gradient = run(
        preset,
        batch.with_logprobs(proximal=torch.zeros(batch.ids.shape)),
        torch.zeros(batch.ids.shape, dtype=F64),
    )
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_batch_without_a_trained_token_still_runs_backward():
    item = make_trajectory("a", [0])
    batch = collate([make_sample(item, [])], [item], [score(item, 1)], pad_id=0)
    loss, gradient = run(load_preset("reinforce"), batch, torch.zeros(batch.ids.shape, dtype=F64))
    assert loss.item() == 0
    assert torch.all(gradient == 0)


@pytest.mark.parametrize(("gap", "advantage"), [(1000.0, 0.0), (1000.0, 1.0), (-1000.0, 1.0)])
def test_huge_log_ratio_stays_finite_f12(gap, advantage):
    batch = golden_batch()
    prepared = dataclasses.replace(
        prepare(load_preset("grpo"), batch), advantages=torch.full(batch.ids.shape, advantage)
    )
    policy = (batch.rows.logprobs["proximal"] + gap).float().requires_grad_()
    part = micro_loss(load_preset("grpo"), prepared, torch.arange(2), policy)
    part.loss.backward()
    assert part.loss.isfinite()
    assert policy.grad.isfinite().all()
    if advantage == 0:
        assert part.loss.item() == 0


def test_nan_log_ratio_is_seen_not_clamped_away_f12():
    batch = golden_batch()
    prepared = prepare(load_preset("grpo"), batch)
    policy = torch.where(batch.rows.mask, torch.nan, batch.rows.logprobs["proximal"])
    part = micro_loss(load_preset("grpo"), prepared, torch.arange(2), policy)
    assert part.loss.isnan()
    assert part.metrics["nonfinite_sum"] == 6


def test_on_policy_gradient_is_minus_the_advantage():
    # ratio 1 everywhere: the gradient of a token is -A times its coefficient.
    batch, _ = with_policies(a2tgpo_batch())
    for name in TURN_OR_TOKEN:
        prepared = prepare(load_preset(name), batch)
        policy = batch.rows.logprobs["proximal"].clone().requires_grad_()
        micro_loss(load_preset(name), prepared, torch.arange(3), policy).loss.backward()
        expected = -prepared.advantages * prepared.coefficients
        torch.testing.assert_close(policy.grad, expected.to(F64), rtol=1e-9, atol=1e-12)


def test_policy_is_its_own_anchor_in_a_single_update():
    batch = a2tgpo_batch()
    preset = load_preset("grpo")
    assert preset.can_skip_proximal
    assert prepare(preset, batch).anchor_logprobs is None
    _, policy = with_policies(batch)
    same = batch.with_logprobs(proximal=policy)
    for one, other in zip(run(preset, batch, policy), run(preset, same, policy), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


def test_missing_reference_is_named():
    with pytest.raises(LookupError, match="no turn reward named 'tool' in the scores"):
        prepare(load_preset("trloo", {"rewards.turn.weights": {"tool": 1.0}}), golden_batch())


def test_zero_variance_groups_are_refilled_by_group():
    names = [("a", "g"), ("b", "g"), ("c", "h"), ("d", "h")]
    items = [make_trajectory(name, [2], group=group) for name, group in names]
    outcomes = [1, 1, 0, 1]
    batch = collate(
        [make_sample(item, [0]) for item in items],
        items,
        [score(item, outcome) for item, outcome in zip(items, outcomes, strict=True)],
        pad_id=0,
    )
    part = {
        "part": "zero_variance_group",
        "tolerance": 0.0,
        "refill": True,
        "statistics": "exclude",
    }
    prepared = prepare(load_preset("grpo", {"filters": [part]}), batch)
    assert prepared.refill == (0,)
    assert prepared.mask.sum(dim=1).tolist() == [0, 0, 2, 2]
    assert prepared.metrics["refill_groups"] == 1
