# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Rewards, filters, combine, bounds and spread, on small tables worked by hand."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts import bounds, combine, filters, registry, rewards, spread
from agentgym.trainers.parts.combine import Term
from agentgym.trainers.parts.registry import Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues, to_tokens

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make_table(turns, **changes):
    count, width = len(turns), max(turns)
    table = TurnTable(
        group=torch.zeros(count, dtype=torch.long),
        turn_valid=torch.arange(width) < torch.tensor(turns)[:, None],
        agent=torch.zeros(count, width, dtype=torch.long),
        outcome=torch.zeros(count, dtype=F64),
        scored=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
        on_policy=torch.ones(count, dtype=torch.bool),
        length=torch.ones(count, dtype=torch.long),
        rewards={},
        fields={},
    )
    return dataclasses.replace(table, **changes)


def make_rows(turn_rows, trajectory=None, **changes):
    width = max(len(row) for row in turn_rows)
    turn_ids = torch.tensor([[*row, *[-1] * (width - len(row))] for row in turn_rows])
    rows = RowTable(
        mask=turn_ids >= 0,
        turn_ids=turn_ids,
        role_ids=turn_ids,
        trajectory=torch.tensor(trajectory or list(range(len(turn_rows)))),
        versions=turn_ids,
        logprobs={},
        fields={},
    )
    return dataclasses.replace(rows, **changes)


def problem(slot, name, **parameters):
    """What a part says of its parameters together; nothing is an empty text."""
    says = registry.find(slot, name).problem_of
    assert says is not None
    return says(parameters) or ""


def values(rows):
    width = max(len(row) for row in rows)
    padded = [[*row, *[None] * (width - len(row))] for row in rows]
    return TurnValues(
        values=torch.tensor([[x or 0.0 for x in row] for row in padded], dtype=F64),
        valid=torch.tensor([[x is not None for x in row] for row in padded]),
    )


NO_ROWS = make_rows([[0]])


# --- rewards --------------------------------------------------------------------------------------


def test_outcome_is_placed_on_the_last_turn_of_scored_trajectories():
    table = make_table(
        [2, 1, 2],
        outcome=torch.tensor([1.0, 0.0, 0.5], dtype=F64),
        scored=torch.tensor([True, True, False]),
    )
    placed = rewards.outcome(table, place="last_turn")
    assert placed.values.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert placed.valid.tolist() == [[False, True], [True, False], [False, False]]
    whole = rewards.outcome(table, place="trajectory")
    assert whole.zeroed().tolist() == [[1], [0], [0]]
    assert whole.valid.tolist() == [[True], [True], [False]]


def test_turn_rewards_add_names_with_weights_and_keep_none_apart_from_zero():
    table = make_table(
        [2, 2],
        rewards={"tool": values([[1, None], [None, None]]), "form": values([[3, 0], [None, 4]])},
    )
    added = rewards.turn_rewards(table, weights={"tool": 2.0, "form": 0.5})
    assert added.values.tolist() == [[3.5, 0], [0, 2]]
    assert added.valid.tolist() == [[True, True], [False, True]]
    assert not rewards.turn_rewards(table, weights={}).valid.any()


def test_a_name_that_nobody_earned_has_no_value_anywhere():
    table = make_table([2, 2], rewards={"tool": values([[1, None], [None, None]])})
    alone = rewards.turn_rewards(table, weights={"form": 3.0})
    assert alone.values.shape == (2, 2)
    assert not alone.valid.any()
    beside = rewards.turn_rewards(table, weights={"form": 3.0, "tool": 2.0})
    assert beside.values.tolist() == [[2, 0], [0, 0]]
    assert beside.valid.tolist() == [[True, False], [False, False]]


# Token log-probabilities of the gold answer: before (-2, -1), after (-.5, -.3): means -1.5, -.4.
@pytest.mark.parametrize(("mode", "gain"), [("prob", 0.44719), ("log", 1.1)])
def test_belief_gain_matches_golden(mode, gain):
    logprobs = torch.tensor([[-1.5, -0.4, math.nan]], dtype=F64)
    table = make_table([2], fields={"belief_logprobs": logprobs})
    found = rewards.belief_gain(table, mode=mode, final_turn=False)
    assert found.values[0].tolist() == pytest.approx([gain, 0.0], rel=1e-5)
    assert found.valid.tolist() == [[True, False]]


def test_belief_gain_of_the_last_turn_reads_the_final_prompt():
    logprobs = torch.tensor([[0.1, 0.3, 0.35], [0.1, 0.4, math.nan]], dtype=F64).log()
    table = make_table([2, 1], fields={"belief_logprobs": logprobs})
    with_last = rewards.belief_gain(table, mode="prob", final_turn=True)
    assert with_last.values[0].tolist() == pytest.approx([0.2, 0.05])
    assert with_last.values[1].tolist() == pytest.approx([0.3, 0.0])
    assert with_last.valid.tolist() == [[True, True], [True, False]]
    without = rewards.belief_gain(table, mode="prob", final_turn=False)
    assert without.valid.tolist() == [[True, False], [False, False]]


def test_gain_of_zero_is_a_value_and_an_unscored_belief_is_none():
    logprobs = torch.tensor([[-1.0, -1.0, math.nan, -1.0]], dtype=F64)
    table = make_table([3], fields={"belief_logprobs": logprobs})
    found = rewards.belief_gain(table, mode="prob", final_turn=True)
    assert found.valid.tolist() == [[True, False, False]]
    assert found.values.tolist() == [[0, 0, 0]]


def test_soft_overlong_matches_golden():
    lengths = torch.tensor(GOLDEN["overlong"]["L"])
    table = make_table([1] * 4, length=lengths)
    found = rewards.soft_overlong(table, max_tokens=20480, buffer=4096)
    assert found.values[:, 0].tolist() == pytest.approx(GOLDEN["overlong"]["r"])
    for buffer in (0, 11):
        with pytest.raises(ValueError, match=rf"'buffer' must be in \(0, 10\] \(got {buffer}\)"):
            rewards.soft_overlong(table, max_tokens=10, buffer=buffer)


def test_the_slope_of_the_length_may_begin_at_no_token():
    table = make_table([1, 1], length=torch.tensor([0, 5]))
    found = rewards.soft_overlong(table, max_tokens=10, buffer=10)
    assert found.values[:, 0].tolist() == [0.0, -0.5]
    assert problem(Slot.REWARD, "soft_overlong", max_tokens=10, buffer=10) == ""
    found_problem = problem(Slot.REWARD, "soft_overlong", max_tokens=10, buffer=11)
    assert "at most 'max_tokens', 10 (got 11)" in found_problem


# --- filters --------------------------------------------------------------------------------------


def test_zero_variance_group_reads_raw_scored_outcomes():
    # group 0: .2 .2 and an unscored 1; group 1: 0 .5
    table = make_table(
        [1] * 5,
        group=torch.tensor([0, 0, 0, 1, 1]),
        outcome=torch.tensor([0.2, 0.2, 1.0, 0.0, 0.5], dtype=F64),
        scored=torch.tensor([True, True, False, True, True]),
    )
    options = {"tolerance": 0.0, "refill": True, "statistics": "exclude"}
    found = filters.zero_variance_group(table, NO_ROWS, (), **options)
    assert found.mask[:, 0].tolist() == [False, False, False, True, True]
    assert found.statistics[:, 0].tolist() == [False, False, False, True, True]
    assert found.refill.tolist() == [True, True, True, False, False]
    kept = filters.zero_variance_group(
        table, NO_ROWS, (), tolerance=0.5, refill=False, statistics="include"
    )
    assert not kept.mask.any()
    assert kept.statistics.all()
    assert not kept.refill.any()


def test_truncated_and_over_turn_filters():
    table = make_table([1, 3, 3], truncated=torch.tensor([True, True, False]))
    cut = filters.truncated_trajectory(table, NO_ROWS, statistics="exclude")
    assert cut.mask[:, 0].tolist() == [False, False, True]
    over = filters.over_turn(table, NO_ROWS, turns=3, statistics="include")
    assert over.mask[:, 0].tolist() == [True, False, True]
    assert over.statistics.all()


def test_stale_masks_tokens_not_trajectories():
    """Versions 7 7 8 9 trained at 10, lags 3 3 2 1, at most 2: the first two go."""
    lag = torch.tensor([[3.0, 3.0, 2.0, 1.0]])
    rows = make_rows([[0, 0, 1, 1]], fields={"lag": lag})
    found = filters.stale(make_table([2]), rows, max_lag=2, statistics="exclude")
    assert found.tokens.tolist() == [[False, False, True, True]]
    assert found.mask.all()
    assert found.statistics.all()
    with pytest.raises(LookupError, match="no 'lag', which 'stale' needs"):
        filters.stale(make_table([2]), NO_ROWS, max_lag=2, statistics="exclude")


def test_mismatch_rejects_by_the_mean_over_all_rows_and_by_a_single_token():
    # a: .02 -.01 | .005 -.012 in two rows: mean .00075; b: .9 -.1: mean .4; c: one token at -10
    gap = torch.tensor([[0.02, -0.01], [0.005, -0.012], [0.9, -0.1], [-10.0, 10.0]])
    behavior = torch.tensor([[-1.0, -2.0], [-0.5, -3.0], [-1.5, -0.7], [-2.5, -11.0]])
    rows = make_rows([[0, 0], [1, 1], [0, 0], [0, 0]], trajectory=[0, 0, 1, 2])
    rows = dataclasses.replace(rows, logprobs={"proximal": behavior + gap, "behavior": behavior})
    table = make_table([2, 1, 1])
    options = {"veto": 1e-4, "statistics": "exclude"}
    found = filters.mismatch(table, rows, low=0.999, high=1.001, **options)
    assert found.mask[:, 0].tolist() == [True, False, False]
    wide = filters.mismatch(table, rows, low=0.1, high=2.0, **options)
    assert wide.mask[:, 0].tolist() == [True, True, False]  # e^-10 = 4.5e-5 is below the veto
    low = filters.mismatch(table, rows, low=1.0, high=2.0, veto=0.0, statistics="include")
    assert low.mask[:, 0].tolist() == [True, True, True]
    # A mean over tokens, not over places: 1.2 / 3 for the four ids of which one is not trained.
    gap = torch.tensor([[0.3, 0.4, 0.5, 9.0], [0.6, 0.0, 0.0, 0.0]])
    rows = make_rows([[0, 0, 0, -1], [0, -1, -1, -1]])
    rows = dataclasses.replace(rows, logprobs={"proximal": gap, "behavior": torch.zeros(2, 4)})
    for high, kept in ((math.exp(0.41), [True, False]), (math.exp(0.39), [False, False])):
        found = filters.mismatch(make_table([1, 1]), rows, low=0.5, high=high, **options)
        assert found.mask[:, 0].tolist() == kept
    found = filters.mismatch(make_table([1, 1]), rows, low=math.exp(0.5), high=2.0, **options)
    assert found.mask[:, 0].tolist() == [False, True]  # the single token's own 0.6


def test_the_accepted_range_of_a_ratio_is_not_empty():
    assert problem(Slot.FILTER, "mismatch", low=0.5, high=0.75) == ""
    found = problem(Slot.FILTER, "mismatch", low=0.5, high=0.5)
    assert "must be below 'high', 0.5 (got 0.5)" in found


# --- combine, bounds, spread ----------------------------------------------------------------------


def test_sum_weighs_the_terms_and_fills_turns_that_exist():
    table = make_table([2, 1])
    terms = (
        Term(name="a", weight=2.0, result=values([[1, 3], [5]])),
        Term(name="b", weight=0.5, result=values([[4], [8]])),
    )
    assert combine.weighted_sum(terms, table).tolist() == [[4, 8], [14, 0]]


def test_cumsum_sqrt_counts_values_not_turns():
    """Gains 1 _ 4 _ (none on turns 1 and 3), weight .5, discount .5, outcome 10.

    D = 1 + .5*(0 + .5*4) = 2 over 2 values; 4 over 1: .5*2/sqrt(2) + 10 and .5*4 + 10.
    """
    table = make_table([4])
    terms = (
        Term(name="gain", weight=0.5, result=values([[1, None, 4, None]])),
        Term(name="outcome", weight=1.0, result=values([[10]])),
    )
    found = combine.cumsum_sqrt(terms, table, accumulate="gain", discount=0.5)
    assert found[0].tolist() == pytest.approx([10 + 1 / math.sqrt(2), 10, 12, 10])
    with pytest.raises(LookupError, match="no term named 'gian'"):
        combine.cumsum_sqrt(terms, table, accumulate="gian", discount=1.0)


def test_cumsum_sqrt_of_single_turns_is_the_value_itself():
    term = Term(name="a", weight=1.0, result=values([[3], [-2]]))
    found = combine.cumsum_sqrt((term,), make_table([1, 1]), accumulate="a", discount=0.5)
    assert found.tolist() == [[3.0], [-2.0]]


def test_turn_adaptive_widths():
    """z = -1, none, 2 on turns 0 1 2; widths .1/.4 times 1 + .3 (2 sigmoid(z) - 1)."""
    rows = make_rows([[0, -1, 1, 2]])
    found = bounds.turn_adaptive(
        0.1, 0.4, rows, {"gain": values([[-1, None, 2]])}, term="gain", width=0.3
    )
    scales = [1 + 0.3 * (2 / (1 + math.exp(-z)) - 1) for z in (-1, 0, 0, 2)]
    assert found.low[0].tolist() == pytest.approx([0.1 * scale for scale in scales])
    assert found.high[0].tolist() == pytest.approx([0.4 * scale for scale in scales])
    assert scales[1] == 1.0
    with pytest.raises(LookupError, match="no term named 'x'"):
        bounds.turn_adaptive(0.1, 0.4, rows, {}, term="x", width=0.3)
    with pytest.raises(ValueError, match=r"'width' must be in \[0, 1\)"):
        bounds.turn_adaptive(0.1, 0.4, rows, {"x": values([[1]])}, term="x", width=1.0)
    flat = bounds.turn_adaptive(
        0.1, 0.4, rows, {"gain": values([[-1, None, 2]])}, term="gain", width=0.0
    )
    assert flat.low[0].tolist() == [0.1] * 4
    assert bounds.constant(0.1, 0.4, rows, {}) is None


def test_spread_follows_trajectory_and_turn():
    rows = make_rows([[0, -1, 1], [1, 1, -1], [0, 0, -1]], trajectory=[0, 1, 1])
    advantages = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    assert spread.turn_tokens(advantages, rows).tolist() == [[1, 0, 2], [4, 4, 0], [3, 3, 0]]
    assert spread.turn_end(advantages, rows).tolist() == [[1, 0, 2], [0, 4, 0], [0, 3, 0]]
    whole = torch.tensor([[5.0], [6.0]], dtype=F64)
    assert to_tokens(whole, rows.trajectory, rows.turn_ids).tolist() == [
        [5, 0, 5],
        [6, 6, 0],
        [6, 6, 0],
    ]


def test_turn_values_refuse_two_shapes():
    # Where shapes are checked at run time the annotations speak first, as a TypeError.
    with pytest.raises((ValueError, TypeError), match=r"must have one shape|typechecking"):
        TurnValues(values=torch.zeros(1, 2), valid=torch.zeros(2, 1).bool())
