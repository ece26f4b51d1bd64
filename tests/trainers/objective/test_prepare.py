# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
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
from agentgym.trainers.objective.prepare import (
    hook_loss,
    hook_scale,
    micro_loss,
    needs_hook_norm,
    prepare,
)
from agentgym.trainers.objective.preset import list_presets, load_preset
from agentgym.trainers.parts import rows as row_parts

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
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
    "cispo_0_1.28": {
        "gate": {"part": "capped_weight", "ratio_cap": 1.28},
        "aggregation": "token_mean",
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


@pytest.mark.parametrize("name", ["a2tgpo", "ppo", "gspo"])
def test_micro_batches_change_little_in_float32(name):
    batch, policy = with_policies(a2tgpo_batch("turns"))
    batch = with_everything(batch)
    rows = list(range(batch.ids.shape[0]))
    _, whole = run(load_preset(name), batch, policy.float())
    _, gradient = run(load_preset(name), batch, policy.float(), splits=[[row] for row in rows])
    assert gradient.dtype == torch.float32
    assert relative(gradient, whole) < 1e-5


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


def test_a_batch_in_which_nobody_earned_a_named_reward_is_trained_on_its_outcomes():
    batch = golden_batch()
    named = prepare(load_preset("trloo", {"rewards.turn.weights": {"tool": 1.0}}), batch)
    assert named.rewards["turn"].valid.sum() == 0
    plain = prepare(load_preset("trloo"), batch)
    assert named.advantages.abs().sum() > 0
    torch.testing.assert_close(named.advantages, plain.advantages, rtol=0, atol=0)


def test_one_reward_that_is_no_number_leaves_the_others_of_its_group_f4():
    """Turn rewards [1, NaN, 0, 1]: the baseline is 2/3, A = [1/3, 0, -2/3, 1/3]."""
    items = [make_trajectory(name, [1]) for name in "abcd"]
    scores = [
        score(item, 0.0, tool=(reward,))
        for item, reward in zip(items, [1.0, math.nan, 0.0, 1.0], strict=True)
    ]
    batch = collate([make_sample(item, [0]) for item in items], items, scores, pad_id=0)
    mean = {"centre": "mean", "scale": "none", "singleton": "zero"}
    changes = {f"terms.return.ops.1.{key}": value for key, value in mean.items()}
    preset = load_preset("trloo", {"rewards.turn.weights": {"tool": 1.0}, **changes})
    prepared = prepare(preset, batch)
    assert prepared.advantages[:, 2].tolist() == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3])
    assert prepared.mask[:, 2].tolist() == [True, False, True, True]


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


# --- presets with a critic, hooks, corrections, regularizers --------------------------------------


def test_decoupled_weight_matches_golden():
    """One row of three tokens; behavior -1.2 -2.5 -.8, proximal -1, policy -.9 -.9 -.7, A = 1."""
    item = make_trajectory("a", [3])
    batch = collate([make_sample(item, [0])], [item], [score(item, 1)], pad_id=0)
    behavior = scatter(batch, [[[-1.2, -2.5, -0.8]]])
    batch = batch.with_logprobs(behavior=behavior, proximal=scatter(batch, [[[-1.0, -1.0, -1.0]]]))
    preset = load_preset(
        "reinforce",
        {
            "correction": {"part": "truncated", "level": "token", "cap": 2.0},
            "gate": {"part": "clip", "clip_low": 0.2, "clip_high": 0.2},
            "aggregation": "token_mean",
        },
    )
    assert not preset.can_skip_proximal
    loss, gradient = run(preset, batch, scatter(batch, [[[-0.9, -0.9, -0.7]]]))
    assert loss.item() == pytest.approx(GOLDEN["decoupled_C2"]["loss"], rel=1e-4)
    actual = gradient[batch.rows.mask].tolist()
    assert actual == pytest.approx(GOLDEN["decoupled_C2"]["grad"], rel=1e-4, abs=1e-7)
    metrics = prepare(preset, batch).metrics
    assert metrics["mismatch_abs_max"] == pytest.approx(1.5)
    assert metrics["correction_max"] == pytest.approx(2.0)


def test_rejected_tokens_stay_in_the_denominator():
    item = make_trajectory("a", [3])
    batch = collate([make_sample(item, [0])], [item], [score(item, 1)], pad_id=0)
    behavior = scatter(batch, [[[-1.0, -3.0, -1.0]]])
    batch = batch.with_logprobs(behavior=behavior, proximal=scatter(batch, [[[-1.0, -1.0, -1.0]]]))
    band = {"part": "masked", "level": "token", "low": 0.5, "high": 5.0}
    preset = load_preset("reinforce", {"correction": band, "aggregation": "token_mean"})
    prepared = prepare(preset, batch)
    # 1/3 each, not 1/2: the middle one (ratio e^2 = 7.4) is out
    assert prepared.coefficients[batch.rows.mask].tolist() == pytest.approx([1 / 3, 0, 1 / 3])
    assert prepared.metrics["corrected_away_tokens"] == 1


def test_correction_without_its_anchor_is_named():
    band = {"part": "truncated", "level": "token", "cap": 2.0}
    with pytest.raises(LookupError, match="no 'proximal' log-probabilities"):
        prepare(load_preset("grpo", {"correction": band}), a2tgpo_batch())


# Beliefs before turns 0 1 2: .1 .3 .35 and .1 .05 .05; outcomes 1 and 0.
IGPO_JOINT = [[1.774557, 1.774557, 2.184070], [-1.774557, -1.092035, -0.546017]]
IGPO_SEPARATE = [[2.603548, 0.999998, 0.999998], [-2.603548, -1.534515, -0.999998]]


def igpo_batch():
    items = [make_trajectory(name, [1, 1, 1]) for name in "ab"]
    batch = collate(
        [make_sample(item, [0, 1, 2]) for item in items],
        items,
        [score(item, outcome) for item, outcome in zip(items, [1, 0], strict=True)],
        pad_id=0,
    )
    table = torch.tensor([[0.1, 0.3, 0.35, 0], [0.1, 0.05, 0.05, 0]], dtype=F64)
    return batch.with_turn_fields(belief_logprobs=table.log())


def test_igpo_joint_advantages_match_golden():
    prepared = prepare(load_preset("igpo"), igpo_batch())
    for row, expected in enumerate(IGPO_JOINT):
        assert prepared.turn_advantages[row].tolist() == pytest.approx(expected, rel=1e-5)


def test_igpo_separate_advantages_match_golden():
    op = load_preset("igpo").terms[0].ops[0].parameters
    chain = [{"part": "normalise", **op}, {"part": "to_go", "discount": 1.0}]
    terms = [{"name": name, "reward": name, "ops": chain} for name in ("gain", "outcome")]
    prepared = prepare(load_preset("igpo", {"terms": terms}), igpo_batch())
    for row, expected in enumerate(IGPO_SEPARATE):
        assert prepared.turn_advantages[row].tolist() == pytest.approx(expected, rel=1e-5)


def group_of_four(lengths, outcomes):
    items = [make_trajectory(name, [size]) for name, size in zip("abcd", lengths, strict=True)]
    return collate(
        [make_sample(item, [0]) for item in items],
        items,
        [score(item, outcome) for item, outcome in zip(items, outcomes, strict=True)],
        pad_id=0,
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("grpo", "grpo_sample_std"),
        ("rloo", "rloo"),
        ("dr_grpo", "dr_grpo"),
        ("opo", "opo"),
        ("gspo", "grpo_sample_std"),
        ("cispo", "grpo_sample_std"),
        ("dapo", "grpo_sample_std"),
    ],
)
def test_preset_advantages_match_golden(name, key):
    prepared = prepare(load_preset(name), group_of_four([2, 4, 3, 3], [1, 0, 0, 0.5]))
    actual = prepared.turn_advantages[:, 0].tolist()
    assert actual == pytest.approx(GOLDEN["adv"][key], rel=1e-4)


def test_dapo_draws_solved_groups_again_and_punishes_length():
    preset = load_preset("dapo", {"rewards.overlong.max_tokens": 4, "rewards.overlong.buffer": 2})
    flat = prepare(preset, group_of_four([2, 2, 2, 2], [1, 1, 1, 1]))
    assert flat.refill == (0,)
    assert not flat.mask.any()
    # lengths 2 3 4 1: penalties 0 -.5 -1 0; outcomes 1 1 0 0: R = 1 .5 -1 0, mean .125
    prepared = prepare(preset, group_of_four([2, 3, 4, 1], [1, 1, 0, 0]))
    rewards = torch.tensor([1, 0.5, -1, 0], dtype=F64)
    expected = (rewards - 0.125) / (rewards.std() + 1e-6)
    assert prepared.turn_advantages[:, 0].tolist() == pytest.approx(expected.tolist())


def critic_batch(*, truncated):
    """a: two tokens, an observation, one token; outcome .5; values .1 .2 | .4, final prompt .7."""
    item = dataclasses.replace(make_trajectory("a", [2, 1]), truncated=truncated)
    batch = collate([make_sample(item, [0, 1])], [item], [score(item, 0.5)], pad_id=0)
    values = torch.full(batch.ids.shape, 9.0, dtype=F64)
    values[batch.rows.mask] = torch.tensor([0.1, 0.2, 0.4], dtype=F64)
    batch = batch.with_token_fields(values=values)
    return batch.with_logprobs(proximal=torch.zeros(batch.ids.shape, dtype=F64))


def unwhitened(name="ppo", /, **changes):
    return load_preset(name, {"reshape": [], "critic.decay_critic": 0.95, **changes})


# Residuals .1 .2 and .5 (or .7 in its place where the final prompt counts) - .4; lambda .95.
@pytest.mark.parametrize(("value", "last"), [(math.nan, 0.1), (0.7, 0.3)])
def test_ppo_bootstraps_in_place_of_the_outcome(value, last):
    batch = critic_batch(truncated=True)
    bootstrap = torch.tensor([[value]], dtype=F64)
    preset = unwhitened(**{"critic.at_truncation": "bootstrap"})
    prepared = prepare(preset, batch.with_turn_fields(bootstrap_values=bootstrap))
    second = 0.2 + 0.95 * last
    expected = [0.1 + 0.95 * second, second, last]
    assert prepared.advantages[batch.rows.mask].tolist() == pytest.approx(expected)
    targets = [a + v for a, v in zip(expected, [0.1, 0.2, 0.4], strict=True)]
    assert prepared.value_targets.returns[batch.rows.mask].tolist() == pytest.approx(targets)
    assert prepared.turn_advantages is None


def test_ppo_names_what_is_missing():
    with pytest.raises(LookupError, match="the batch has no 'values'"):
        prepare(unwhitened(), golden_batch())
    batch = critic_batch(truncated=False)
    prepared = prepare(unwhitened(), batch)
    with pytest.raises(LookupError, match="needs 'values' in micro_loss"):
        micro_loss(unwhitened(), prepared, torch.arange(1), torch.zeros(batch.ids.shape))


def test_value_loss_is_a_token_mean_and_warm_up_trains_it_alone():
    batch = critic_batch(truncated=False)
    preset = unwhitened("ppo", **{"critic.value_coefficient": 0.25})
    prepared = prepare(preset, batch)
    values = (batch.rows.fields["values"] + 0.1).requires_grad_()
    policy = torch.zeros(batch.ids.shape, dtype=F64, requires_grad=True)
    rows = torch.arange(1)
    part = micro_loss(preset, prepared, rows, policy, values=values, trains_policy=False)
    part.loss.backward()
    mask = batch.rows.mask
    error = (values.detach() - prepared.value_targets.returns)[mask]
    # .1 is inside the width of .2: half the mean square, times .25
    assert part.loss.item() == pytest.approx((0.25 * 0.5 * error.square().mean()).item())
    assert values.grad[mask].tolist() == pytest.approx((0.25 / 3 * error).tolist())
    assert torch.all(values.grad[~mask] == 0)
    assert torch.all(policy.grad == 0)
    whole = micro_loss(preset, prepared, rows, policy, values=values).loss
    assert (whole - part.loss).item() == pytest.approx(-prepared.advantages[mask].mean().item())


def test_ppo_whitens_over_trained_tokens_and_keeps_the_returns():
    batch = critic_batch(truncated=False)
    plain, white = prepare(unwhitened(), batch), prepare(unwhitened(reshape=WHITEN), batch)
    advantages = white.advantages[batch.rows.mask]
    assert advantages.mean().item() == pytest.approx(0, abs=1e-9)
    assert advantages.std().item() == pytest.approx(1, rel=1e-6)
    assert torch.equal(plain.value_targets.returns, white.value_targets.returns)


WHITEN = [{"part": "whiten", "ddof": 1, "eps": 1e-8}]


@pytest.mark.parametrize("level", ["token", "turn_mean"])
def test_clip_bias_is_what_the_clip_takes_away(level):
    """Gradient of the clipped loss = gradient of the unclipped loss + C (losses are negated)."""
    ratio = {"part": level, "log_bound": 20.0}
    if level == "turn_mean":
        ratio["gradient"] = "through"
    batch = golden_batch()
    policy = batch.rows.logprobs["proximal"] + scatter(batch, LOG_RATIOS)
    hook = {"part": "clip_bias", "measure": "norm", "strength": 30.0, "trigger": 0.0}
    preset = load_preset("turn_base", {"ratio": ratio, "hooks": [hook]})
    assert needs_hook_norm(preset)
    prepared = dataclasses.replace(prepare(preset, batch), advantages=scatter(batch, ADVANTAGES))

    def gradient(function):
        leaf = policy.clone().requires_grad_()
        function(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    rows = torch.arange(2)
    unclipped = load_preset("turn_base", {"ratio": ratio, "gate": "importance"})
    bias = gradient(lambda leaf: hook_loss(preset, prepared, rows, leaf))
    clipped = gradient(lambda leaf: micro_loss(preset, prepared, rows, leaf).loss)
    whole = gradient(lambda leaf: micro_loss(unclipped, prepared, rows, leaf).loss)
    assert bias.norm() > 0
    torch.testing.assert_close(clipped - whole, bias)
    part = micro_loss(preset, prepared, rows, policy)
    halves = [micro_loss(preset, prepared, torch.tensor([at]), policy[[at]]) for at in (0, 1)]
    assert halves[0].clip + halves[1].clip == part.clip
    scale = hook_scale(preset, part.clip, float(bias.norm()))
    assert scale == pytest.approx(1 / (30 * bias.norm().item()))
    assert scale < 1


def test_hooks_of_a_preset_without_any_leave_the_gradient_alone():
    batch = golden_batch()
    preset = load_preset("grpo")
    prepared = prepare(preset, batch)
    policy = batch.rows.logprobs["proximal"].clone().requires_grad_()
    part = micro_loss(preset, prepared, torch.arange(2), policy)
    assert part.clip.clipped == 0  # ratio 1: nothing is clipped
    assert hook_scale(preset, part.clip) == 1.0
    assert not needs_hook_norm(preset)
    # The extra loss is connected to the graph even so.
    hook_loss(preset, prepared, torch.arange(2), policy).backward()
    assert torch.all(policy.grad == 0)


def test_regularizer_has_its_own_coefficient_and_aggregation():
    batch = golden_batch()
    d = scatter(batch, [[[0.1, 0.2], [0.3, 0.4]], [[0.5], [0.6]]])
    policy = batch.rows.logprobs["proximal"].clone()
    batch = batch.with_logprobs(reference=policy - d)
    base = {"part": "kl", "anchor": "reference", "estimator": "k1", "log_bound": 20.0}
    own = {**base, "coefficient": 0.5, "aggregation": "token_mean"}
    without, _ = run(load_preset("grpo"), batch, policy)
    loss, _ = run(load_preset("grpo", {"regularizers": [own]}), batch, policy)
    # token mean: 2.1 / 6 = .35
    assert (loss - without).item() == pytest.approx(0.5 * 0.35)
    inherited = {**base, "coefficient": 2.0}
    loss, _ = run(load_preset("grpo", {"regularizers": [inherited, own]}), batch, policy)
    # sequence mean of token means: (1/4 + 1.1/2) / 2 = .4
    assert (loss - without).item() == pytest.approx(2 * 0.4 + 0.175)


def test_entropy_bonus_raises_the_entropy():
    batch = golden_batch()
    policy = batch.rows.logprobs["proximal"].clone()
    bonus = {"part": "entropy_bonus", "coefficient": 0.01, "aggregation": "token_mean"}
    preset = load_preset("grpo", {"regularizers": [bonus]})
    prepared = prepare(preset, batch)
    entropy = torch.full_like(policy, 1.5).requires_grad_()
    part = micro_loss(preset, prepared, torch.arange(2), policy, entropy=entropy)
    part.loss.backward()
    assert entropy.grad[batch.rows.mask].tolist() == pytest.approx([-0.01 / 6] * 6)
    assert part.metrics["entropy_sum"] == pytest.approx(9.0)
