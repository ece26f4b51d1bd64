# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Coefficients: golden sums, and who counts as a sequence."""

import json
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make(turn_ids, trajectory=None, groups=None):
    """Tables of rows whose tokens have the given turns; -1 is not trained."""
    count, width = len(turn_ids), max(len(row) for row in turn_ids)
    padded = torch.tensor([[*row, *[-1] * (width - len(row))] for row in turn_ids])
    trajectory = trajectory or list(range(count))
    number = max(trajectory) + 1
    turns = max(1, int(padded.max()) + 1)
    rows = RowTable(
        mask=padded >= 0,
        turn_ids=padded,
        role_ids=torch.full_like(padded, -1),
        trajectory=torch.tensor(trajectory),
        versions=padded,
        logprobs={},
        fields={},
    )
    table = TurnTable(
        group=torch.tensor(groups or [0] * number),
        turn_valid=torch.ones(number, turns, dtype=torch.bool),
        agent=torch.zeros(number, turns, dtype=torch.long),
        outcome=torch.zeros(number, dtype=F64),
        scored=torch.ones(number, dtype=torch.bool),
        truncated=torch.zeros(number, dtype=torch.bool),
        on_policy=torch.ones(number, dtype=torch.bool),
        length=torch.ones(number, dtype=torch.long),
        rewards={},
        fields={},
    )
    return rows, table


def coefficients(name, rows, table, **parameters):
    function = registry.find(Slot.AGGREGATION, name).function
    return function(rows.mask, torch.zeros(rows.mask.shape, dtype=F64), rows, table, **parameters)


def value(name, losses, rows, table, **parameters):
    padded = torch.zeros(rows.mask.shape, dtype=F64)
    for at, row in enumerate(losses):
        padded[at, : len(row)] = torch.tensor(row, dtype=F64)
    return (coefficients(name, rows, table, **parameters) * padded).sum().item()


# Two trajectories of one turn: 4 tokens with losses 1 2 3 4, 2 tokens with losses 10 20.
@pytest.mark.parametrize(
    ("name", "golden", "parameters"),
    [
        ("token_mean", "token-mean", {}),
        ("sequence_mean_token_sum", "seq-mean-token-sum", {}),
        ("sequence_mean_token_mean", "seq-mean-token-mean", {}),
        ("constant", "dr-grpo (/(B*T_max), T_max=4)", {"max_tokens": 4}),
    ],
)
def test_aggregation_matches_golden(name, golden, parameters):
    rows, table = make([[0] * 4, [0] * 2])
    c = coefficients(name, rows, table, **parameters)
    expected = GOLDEN["agg"][golden]
    assert c[rows.mask].tolist() == pytest.approx(expected["coef"], rel=1e-4)
    assert torch.all(c[~rows.mask] == 0)
    losses = [[1, 2, 3, 4], [10, 20]]
    assert value(name, losses, rows, table, **parameters) == pytest.approx(
        expected["value"], rel=1e-4
    )


# Trajectory A: turn 0 with losses 1 1 1 1, turn 1 with 3; trajectory B: turn 0 with 5 5.
@pytest.mark.parametrize(
    ("name", "expected", "parameters"),
    [
        ("token_mean", 17 / 7, {}),
        ("sequence_mean_token_mean", 3.2, {}),  # (7/5 + 5) / 2
        ("sequence_mean_turn_mean", 3.5, {}),  # ((1 + 3)/2 + 5) / 2
        ("turn_mean", 3.0, {}),  # (1 + 3 + 5) / 3
        ("constant", 1.7, {"max_tokens": 5}),  # (7 + 10) / (2 * 5)
    ],
)
@pytest.mark.parametrize("layout", ["trajectory", "turn"])
def test_turn_aggregations_do_not_depend_on_the_rows(name, expected, parameters, layout):
    if layout == "trajectory":
        rows, table = make([[0, 0, 0, 0, 1], [0, 0]])
        losses = [[1, 1, 1, 1, 3], [5, 5]]
    else:
        rows, table = make([[0, 0, 0, 0], [1], [0, 0]], trajectory=[0, 0, 1])
        losses = [[1, 1, 1, 1], [3], [5, 5]]
    assert value(name, losses, rows, table, **parameters) == pytest.approx(expected)


def test_trajectory_of_a_single_token_is_counted():
    rows, table = make([[0], [0, 0], [-1]])
    for name, expected in (
        ("sequence_mean_token_mean", [1 / 2, 1 / 4, 1 / 4]),
        ("sequence_mean_turn_mean", [1 / 2, 1 / 4, 1 / 4]),
        ("sequence_mean_token_sum", [1 / 2, 1 / 2, 1 / 2]),
        ("turn_mean", [1 / 2, 1 / 4, 1 / 4]),
    ):
        found = coefficients(name, rows, table)
        assert found[rows.mask].tolist() == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("token_mean", {}),
        ("sequence_mean_token_mean", {}),
        ("sequence_mean_turn_mean", {}),
        ("sequence_mean_token_sum", {}),
        ("turn_mean", {}),
        ("group_mean", {}),
        ("constant", {"max_tokens": 1}),
    ],
)
def test_a_batch_of_one_token_weighs_it_fully(name, parameters):
    rows, table = make([[0]])
    assert coefficients(name, rows, table, **parameters).tolist() == [[1.0]]


# By hand: group 0 has 3 tokens, group 1 has 1: (sum of 6)/3 = 2 and 8; mean 5.
def test_group_mean_gives_each_prompt_one_weight():
    rows, table = make([[0, 0], [0], [0]], groups=[0, 0, 1])
    assert value("group_mean", [[1, 2], [3], [8]], rows, table) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("name", "expected", "parameters"),
    [
        ("token_mean", 3.0, {}),  # 18 / 6
        ("sequence_mean_token_mean", 2.5, {}),  # (1 + 4) / 2
        ("constant", 1.125, {"max_tokens": 8}),  # (2 + 16) / (2 * 8)
    ],
)
def test_reduction_modes_are_kept_apart_f10(name, expected, parameters):
    rows, table = make([[0, 0], [0] * 4])
    losses = [[1, 1], [4, 4, 4, 4]]
    assert value(name, losses, rows, table, **parameters) == pytest.approx(expected)


@pytest.mark.parametrize("name", registry.names(Slot.AGGREGATION))
def test_masked_rows_count_nowhere(name):
    parameters = {"constant": {"max_tokens": 7}}.get(name, {})
    rows, table = make([[0, 0, 1], [0, -1, -1]])
    more, wider = make([[0, 0, 1], [0, -1, -1], [-1, -1, -1]], groups=[0, 0, 1])
    alone = coefficients(name, rows, table, **parameters)
    beside = coefficients(name, more, wider, **parameters)
    torch.testing.assert_close(beside[:2], alone)
    assert torch.all(beside[2] == 0)


@pytest.mark.parametrize("name", registry.names(Slot.AGGREGATION))
def test_nothing_trained_gives_zeros_without_a_nan(name):
    parameters = {"constant": {"max_tokens": 7}}.get(name, {})
    rows, table = make([[-1, -1]])
    assert torch.all(coefficients(name, rows, table, **parameters) == 0)


def test_constant_refuses_no_tokens():
    rows, table = make([[0]])
    with pytest.raises(ValueError, match="'max_tokens' must be > 0"):
        coefficients("constant", rows, table, max_tokens=0)


# Two accumulation windows: 2 tokens of loss 1, 8 tokens of loss 0: 2/10, not the mean of means.
def test_split_windows_sum_to_the_token_mean_f7_f9():
    rows, table = make([[0] * 2, [0] * 8])
    assert value("token_mean", [[1, 1], [0] * 8], rows, table) == pytest.approx(0.2)
    # F9: 3 tokens of sum 6 on one rank, 1 token of sum 0 on the other: 1.5, not 1.0.
    rows, table = make([[0] * 3, [0]])
    assert value("token_mean", [[2, 2, 2], [0]], rows, table) == pytest.approx(1.5)
