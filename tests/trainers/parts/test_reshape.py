# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Whitening and KL to go over token-level advantages."""

import json
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts.reshape import kl_to_go, whiten
from agentgym.trainers.parts.tables import RowTable, TurnTable

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make(mask, trajectory=None, **logprobs):
    mask = torch.tensor(mask).bool()
    count = int(max(trajectory or range(mask.shape[0]))) + 1
    rows = RowTable(
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        role_ids=torch.where(mask, 0, -1),
        trajectory=torch.tensor(trajectory or list(range(mask.shape[0]))),
        versions=torch.where(mask, 0, -1),
        logprobs={name: torch.tensor(rows, dtype=F64) for name, rows in logprobs.items()},
        fields={},
    )
    table = TurnTable(
        group=torch.zeros(count, dtype=torch.long),
        turn_valid=torch.ones(count, 1, dtype=torch.bool),
        agent=torch.zeros(count, 1, dtype=torch.long),
        outcome=torch.zeros(count, dtype=F64),
        scored=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
        on_policy=torch.ones(count, dtype=torch.bool),
        length=torch.ones(count, dtype=torch.long),
        rewards={},
        fields={},
    )
    return rows, table


@pytest.mark.parametrize(("ddof", "key"), [(0, "pop"), (1, "sample")])
def test_whiten_matches_golden(ddof, key):
    rows, table = make([[1, 1, 0], [1, 1, 0]])
    advantages = torch.tensor([[1.0, -1, 5], [2, 0, 9]], dtype=F64)
    actual = whiten(advantages, rows.mask, rows, table, ddof=ddof, eps=0.0)
    for row, expected in zip(actual.tolist(), GOLDEN["whiten"][key], strict=True):
        assert row == pytest.approx(expected, rel=1e-4)


def test_whiten_adds_eps_to_the_deviation():
    rows, table = make([[1, 1]])
    # (1, -1): population deviation 1; 1 / (1 + 1) = 0.5
    actual = whiten(torch.tensor([[1.0, -1.0]]), rows.mask, rows, table, ddof=0, eps=1.0)
    assert actual.tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("mask", [[[1, 0]], [[0, 0]]])
def test_whiten_with_one_token_or_none_is_a_no_op_f13(mask):
    rows, table = make(mask)
    advantages = torch.tensor([[0.7, 3.0]])
    actual = whiten(advantages, rows.mask, rows, table, ddof=1, eps=1e-8)
    assert torch.equal(actual, advantages)


def test_kl_to_go_matches_golden_returns():
    """k1 = .1 -.2 .3, coefficient .01, reward 1: rewards -.001 .002 .997, summed from the right."""
    proximal = [[-1.0, -1.0, -1.0, 7.0]]
    reference = [[-1.1, -0.8, -1.3, 0.0]]
    rows, table = make([[1, 1, 1, 0]], proximal=proximal, reference=reference)
    actual = kl_to_go(torch.ones(1, 4, dtype=F64), rows.mask, rows, table, coefficient=0.01)
    assert actual[0, :3].tolist() == pytest.approx(GOLDEN["rfpp"]["ret"], rel=1e-6)
    assert actual[0, 3].item() == 0


@pytest.mark.parametrize("mask", [[[1, 1, 1], [1, 0, 0]], [[1], [1], [1]]])
def test_kl_to_go_fills_tables_that_are_wider_or_higher_than_square(mask):
    ones = [[1.0 if kept else 5.0 for kept in row] for row in mask]
    zeros = [[0.0] * len(row) for row in mask]
    rows, table = make(mask, proximal=ones, reference=zeros)
    actual = kl_to_go(
        torch.ones(rows.mask.shape, dtype=F64), rows.mask, rows, table, coefficient=0.25
    )
    to_go = [[sum(row[at:]) for at in range(len(row))] for row in mask]
    expected = [
        [1 - 0.25 * left if kept else 0.0 for left, kept in zip(lefts, row, strict=True)]
        for lefts, row in zip(to_go, mask, strict=True)
    ]
    assert actual.tolist() == expected
