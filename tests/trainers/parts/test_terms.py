# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Advantages of groups and turns: golden values, and the faults that others reported."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts import terms
from agentgym.trainers.parts.tables import TurnTable, TurnValues

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
REWARDS = [1.0, 0.0, 0.0, 0.5]
DEFAULTS = {
    "keys": ("group",),
    "centre": "mean",
    "scale": "std",
    "ddof": 1,
    "eps": 1e-6,
    "variance_eps": 0.0,
    "floor": 1e-3,
    "singleton": "zero",
    "source_rows": "all",
}


def make_table(turns, groups=None, agents=None, on_policy=None):
    """A table of trajectories with the given numbers of turns."""
    count, width = len(turns), max(turns)
    return TurnTable(
        group=torch.tensor(groups or [0] * count),
        turn_valid=torch.arange(width) < torch.tensor(turns)[:, None],
        agent=torch.tensor(agents) if agents else torch.zeros(count, width, dtype=torch.long),
        outcome=torch.zeros(count, dtype=torch.float64),
        scored=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
        on_policy=torch.tensor(on_policy or [True] * count),
        length=torch.ones(count, dtype=torch.long),
        rewards={},
        fields={},
    )


def ragged(rows):
    """TurnValues of rows of different length; None is no value."""
    width = max(len(row) for row in rows)
    padded = [[*row, *[None] * (width - len(row))] for row in rows]
    return TurnValues(
        values=torch.tensor([[x or 0.0 for x in row] for row in padded], dtype=torch.float64),
        valid=torch.tensor([[x is not None for x in row] for row in padded]),
    )


def normalise(rewards, table=None, **changes):
    """One number a trajectory in, a flat list out."""
    values = ragged([[x] for x in rewards])
    table = table or make_table([1] * len(rewards))
    return terms.normalise(values, table, **{**DEFAULTS, **changes}).values[:, 0].tolist()


def check(actual, expected):
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("grpo_sample_std", {}),
        ("grpo_pop_std", {"ddof": 0}),
        ("grpo_trl", {"eps": 1e-4}),
        ("dr_grpo", {"scale": "none"}),
        ("rloo", {"scale": "none", "centre": "leave_one_out"}),
    ],
)
def test_normalise_matches_golden_advantages(key, changes):
    check(normalise(REWARDS, **changes), GOLDEN["adv"][key])


def test_length_weighted_baseline_matches_golden():
    # lengths 2 4 3 3: b = (2 + 0 + 0 + 1.5) / 12 = 0.291667
    table = dataclasses.replace(make_table([1] * 4), length=torch.tensor([2, 4, 3, 3]))
    actual = normalise(REWARDS, table, scale="none", centre="length_weighted")
    check(actual, GOLDEN["adv"]["opo"])
    assert GOLDEN["adv"]["opo_b"] == pytest.approx(3.5 / 12, rel=1e-5)


def test_length_weighted_baseline_of_one_token_is_the_reward_of_that_token():
    table = dataclasses.replace(make_table([1] * 2), length=torch.tensor([1, 0]))
    actual = normalise([2.0, 4.0], table, scale="none", centre="length_weighted")
    check(actual, [0.0, 2.0])


def test_leave_one_out_is_the_mean_difference_scaled():
    loo = normalise(REWARDS, scale="none", centre="leave_one_out")
    centred = normalise(REWARDS, scale="none")
    check(loo, [4 / 3 * x for x in centred])  # N/(N-1) with N = 4


def test_grouping_by_task_whatever_the_agent_f1():
    table = make_table([1] * 4, agents=[[0], [1], [2], [3]])
    check(normalise([1.0, 0.0, 1.0, 0.0], table, scale="none"), [0.5, -0.5, 0.5, -0.5])


def test_statistics_stay_inside_the_group_f2():
    table = make_table([1] * 4, groups=[0, 0, 1, 1])
    check(normalise([1.0, 0.0, 5.0, 5.0], table, scale="none"), [0.5, -0.5, 0.0, 0.0])
    # std of (1, 0) is 0.707107; 0.5 / (0.707107 + 1e-4) = 0.70701
    check(normalise([1.0, 0.0, 5.0, 5.0], table, eps=1e-4), [0.70701, -0.70701, 0.0, 0.0])


@pytest.mark.parametrize(("singleton", "expected"), [("zero", 0.0), ("keep", 0.7)])
def test_group_of_one_gives_what_the_preset_says_f3(singleton, expected):
    assert normalise([0.7], singleton=singleton) == [expected]
    assert normalise([0.7], singleton=singleton, centre="leave_one_out") == [expected]


def test_unscored_sample_is_in_no_baseline_f4():
    # mean of (1, 0, 1) = 2/3; the second has no value, and gets none
    values = ragged([[1.0], [None], [0.0], [1.0]])
    result = terms.normalise(values, make_table([1] * 4), **{**DEFAULTS, "scale": "none"})
    check(result.values[:, 0].tolist(), [1 / 3, 0.0, -2 / 3, 1 / 3])
    assert result.valid[:, 0].tolist() == [True, False, True, True]


def test_rejected_sample_does_not_shift_the_baseline_f5():
    # rewards (1, 0, 1, -5), the last one rejected: baseline 2/3, not -0.75
    values = TurnValues(
        values=torch.tensor([[1.0], [0.0], [1.0], [-5.0]], dtype=torch.float64),
        valid=torch.tensor([[True], [True], [True], [False]]),
    )
    result = terms.normalise(values, make_table([1] * 4), **{**DEFAULTS, "scale": "none"})
    check(result.values[:, 0].tolist(), [1 / 3, -2 / 3, 1 / 3, 0.0])


def test_nearly_equal_rewards_are_no_variance_f6():
    assert normalise([0.1 + 0.2, 0.3, 0.3, 0.3]) == [0.0] * 4
    third = float(torch.tensor(1 / 3, dtype=torch.float32))
    assert normalise([third] * 6 + [third + 3e-8]) == [0.0] * 7
    # One step above the floor there is variance: the range is what is compared.
    assert max(normalise([0.3, 0.3011])) > 0.7


def test_floor_compares_the_range_and_the_boundary_counts_as_flat():
    assert normalise([0.0, 0.5], floor=0.5) == [0.0, 0.0]
    assert normalise([0.0, 0.5], floor=0.499)[0] < 0


def test_floor_holds_without_a_baseline_too_where_a_deviation_divides_f6():
    # 1 / (0 + 1e-6) would be a million.
    assert normalise([1.0, 1.0, 1.0], centre="none") == [0.0] * 3
    # Nothing divides: the values are what they are.
    assert normalise([1.0, 1.0, 1.0], centre="none", scale="none") == [1.0] * 3
    check(normalise([1.0, 0.0], centre="none", ddof=0, eps=0.5), [1.0, 0.0])


def test_variance_eps_goes_under_the_root():
    # (1, 0): population variance 0.25; 0.5 / (sqrt(0.25 + 0.11) + 0.4) = 0.5
    check(normalise([1.0, 0.0], ddof=0, variance_eps=0.11, eps=0.4), [0.5, -0.5])


def test_on_policy_source_rows_leave_the_expert_out_of_the_statistics():
    # on-policy (1, 0, 0): mean 1/3, sample std 0.57735; the expert has 1: (1 - 1/3)/0.57735
    table = make_table([1] * 4, on_policy=[True, True, True, False])
    actual = normalise([1.0, 0.0, 0.0, 1.0], table, source_rows="on_policy")
    check(actual, [1.154699, -0.577349, -0.577349, 1.154699])
    # Leave one out, for one who is not in the statistics: the mean of all the others.
    loo = normalise(
        [1.0, 0.0, 0.0, 1.0], table, source_rows="on_policy", centre="leave_one_out", scale="none"
    )
    check(loo, [1.0, -0.5, -0.5, 2 / 3])


def test_batch_key_compares_everything():
    table = make_table([1] * 4, groups=[0, 0, 1, 1])
    # mean of (1, 0, 5, 2) = 2
    check(normalise([1.0, 0.0, 5.0, 2.0], table, scale="none", keys=("batch",)), [-1, -2, 3, 0])


def test_agent_and_trajectory_keys():
    values = ragged([[1.0, 4.0], [3.0, 8.0]])
    table = make_table([2, 2], agents=[[0, 1], [1, 0]])
    by_agent = terms.normalise(
        values, table, **{**DEFAULTS, "scale": "none", "keys": ("group", "agent")}
    )
    # agent 0: (1, 8) mean 4.5; agent 1: (4, 3) mean 3.5
    check(by_agent.values.tolist()[0], [-3.5, 0.5])
    check(by_agent.values.tolist()[1], [-0.5, 3.5])
    own = terms.normalise(values, table, **{**DEFAULTS, "scale": "none", "keys": ("trajectory",)})
    check(own.values.tolist()[0], [-1.5, 1.5])
    check(own.values.tolist()[1], [-2.5, 2.5])


@pytest.mark.parametrize("keys", [("group", "agent"), ("agent", "group"), ("agent", "turn")])
def test_cells_are_equal_where_and_only_where_all_keys_are(keys):
    # Numbers with gaps, -1 among them: an agent that is none.
    agents = [[-1, 0, 3], [0, 0, 1], [3, -1, 2], [1, 5, 0]]
    groups = [2, 0, 2, 7]
    table = make_table([3] * 4, groups=groups, agents=agents)
    cells = terms.cell_index(table, 3, keys)
    columns = {"group": groups, "agent": agents}
    places = [(row, turn) for row in range(4) for turn in range(3)]

    def key(name, row, turn):
        found = turn if name == "turn" else columns[name][row]
        return found[turn] if name == "agent" else found

    for one in places:
        for other in places:
            same = all(key(name, *one) == key(name, *other) for name in keys)
            assert (cells[one] == cells[other]) == same, (one, other)
    assert cells.min() >= 0


def test_turn_key_needs_a_number_a_turn():
    with pytest.raises(ValueError, match="need one number a turn"):
        terms.normalise(
            ragged([[1.0], [2.0]]), make_table([2, 2]), **{**DEFAULTS, "keys": ("group", "turn")}
        )


# Three trajectories of 3, 2 and 1 turns; returns to go by hand: 0.1+0.5+0.2, 0.5+0.2, 0.2; …
def test_leave_one_out_at_each_turn_matches_golden():
    values = ragged([[0.1, 0.5, 0.2], [0.0, 0.4], [0.3]])
    table = make_table([3, 2, 1])
    returns = terms.to_go(values, table, discount=1.0)
    check(returns.values.tolist()[0], [0.8, 0.7, 0.2])
    check(returns.values.tolist()[1], [0.4, 0.4, 0.0])
    changes = {"keys": ("group", "turn"), "floor": 0.0, "eps": 0.0}
    loo = terms.normalise(
        returns,
        table,
        **{**DEFAULTS, **changes, "centre": "leave_one_out", "scale": "none", "singleton": "keep"},
    )
    check(loo.values.tolist()[0], [0.45, 0.3, 0.2])
    check(loo.values.tolist()[1], [-0.15, -0.3, 0.0])
    check(loo.values.tolist()[2], [-0.3, 0.0, 0.0])
    z = terms.normalise(returns, table, **{**DEFAULTS, **changes, "eps": 1e-6})
    check(z.values[:, 0].tolist(), [1.133889, -0.377963, -0.755926])


def test_leave_one_out_at_each_turn_matches_policy_golden():
    returns, expected = GOLDEN["trloo"]["returns"], GOLDEN["trloo"]["adv"]
    loo = terms.normalise(
        ragged(returns),
        make_table([2, 2, 1]),
        **{
            **DEFAULTS,
            "keys": ("group", "turn"),
            "centre": "leave_one_out",
            "scale": "none",
            "singleton": "keep",
            "floor": 0.0,
        },
    )
    for row, wanted in zip(loo.values.tolist(), expected, strict=True):
        check(row[: len(wanted)], wanted)


def test_to_go_discounts():
    # 1; 0.5 + 0.8 * 1; 0 + 0.8 * 1.3
    result = terms.to_go(ragged([[0.0, 0.5, 1.0]]), make_table([3]), discount=0.8)
    check(result.values.tolist()[0], [1.04, 1.3, 1.0])


def test_to_go_reaches_turns_without_a_reward_of_their_own():
    values = ragged([[None, 1.0], [None, None]])
    result = terms.to_go(values, make_table([2, 2]), discount=0.5)
    assert result.values.tolist() == [[0.5, 1.0], [0.0, 0.0]]
    # The second trajectory has no reward at all: no value, which differs from 0.
    assert result.valid.tolist() == [[True, True], [False, False]]


def test_to_go_without_any_weight_for_later_turns_is_the_reward_itself():
    result = terms.to_go(ragged([[0.5, 1.0]]), make_table([2]), discount=0.0)
    assert result.values.tolist() == [[0.5, 1.0]]


def test_to_go_refuses_bad_input():
    with pytest.raises(ValueError, match=r"'discount' must be in \[0, 1\] \(got 1.5\)"):
        terms.to_go(ragged([[1.0]]), make_table([1]), discount=1.5)
    with pytest.raises(ValueError, match="needs one number a turn"):
        terms.to_go(ragged([[1.0]]), make_table([2]), discount=1.0)


def test_total_adds_the_turns_that_have_a_value():
    result = terms.total(ragged([[0.5, 1.0, None], [None, None, None]]), make_table([3, 3]))
    assert result.values.tolist() == [[1.5], [0.0]]
    assert result.valid.tolist() == [[True], [False]]


def test_clamp_cuts_both_sides():
    result = terms.clamp(ragged([[-4.0, 0.5, 4.0]]), make_table([3]), bound=3.0)
    assert result.values.tolist() == [[-3.0, 0.5, 3.0]]
    with pytest.raises(ValueError, match="'bound' must be > 0"):
        terms.clamp(ragged([[1.0]]), make_table([1]), bound=0.0)


def test_matchtir_advantages():
    # sums (1.5, 1, 1) over trajectories; returns with 0.9 over (group, turn); halves of both
    values = ragged([[0.5, 1.0], [1.0, 0.0], [0.0, 1.0]])
    table = make_table([2, 2, 2])
    whole = terms.normalise(terms.total(values, table), table, **DEFAULTS)
    turns = terms.normalise(
        terms.to_go(values, table, discount=0.9), table, **{**DEFAULTS, "keys": ("group", "turn")}
    )
    mixed = (whole.values + turns.values) / 2
    check(whole.values[:, 0].tolist(), [1.154697, -0.577348, -0.577348])
    check(mixed.flatten().tolist(), [1.144293, 0.866023, -0.477656, -0.866023, -0.666637, 0.0])


def test_values_that_are_not_valid_change_nothing():
    a = TurnValues(
        values=torch.tensor([[1.0], [0.0], [math.nan]], dtype=torch.float64),
        valid=torch.tensor([[True], [True], [False]]),
    )
    result = terms.normalise(a, make_table([1] * 3), **{**DEFAULTS, "scale": "none"})
    assert result.values[:, 0].tolist() == [0.5, -0.5, 0.0]


def test_a_value_that_is_no_number_is_seen_not_taken_for_no_variance_f12():
    values = ragged([[1.0], [math.nan], [0.0]])
    result = terms.normalise(values, make_table([1] * 3), **{**DEFAULTS, "scale": "none"})
    assert result.values.isnan().all()
    # An empty cell is flat.
    empty = terms.cell_extremes(
        values.values, torch.zeros(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.long)
    )
    assert empty.flatten().tolist() == [0.0, 0.0, 0.0]
