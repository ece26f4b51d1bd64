# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Weights for the gap between sampler and trainer, at each level."""

import json
import math
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts.correction import masked, none, truncated

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64
GAPS = [0.02, -0.01, 0.005, -0.012]


def inputs(gaps, turns=None):
    gap = torch.tensor([gaps], dtype=F64)
    turn_ids = torch.tensor([turns or [0] * len(gaps)])
    return torch.where(turn_ids >= 0, gap, 0), turn_ids >= 0, turn_ids


def weights(part, gaps, turns=None, **parameters):
    found = part(*inputs(gaps, turns), **parameters)
    return (found.weight * found.keep)[0].tolist()


def close(actual, expected):
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_token_truncation_golden():
    close(weights(truncated, GAPS, level="token", cap=2.0), [1.020201, 0.99005, 1.005013, 0.988072])
    close(weights(truncated, [0.9, -0.1], level="token", cap=2.0), [2.0, 0.904837])


def test_sequence_product_and_geometric_mean_golden():
    close(weights(truncated, GAPS, level="sequence", cap=2.0), [1.003005] * 4)
    close(weights(truncated, GAPS, level="sequence_geometric", cap=2.0), [1.00075] * 4)
    # 0.8 over two tokens: the mean is 0.4
    mean = weights(truncated, [0.9, -0.1], level="sequence_geometric", cap=9.0)
    close(mean, [1.491825] * 2)


def test_turn_levels_stay_inside_the_turn():
    # turn 0: .1 + .3 = .4, mean .2; an observation; turn 1: -.5
    gaps, turns = [0.1, 0.3, 7.0, -0.5], [0, 0, -1, 1]
    e = math.exp
    close(
        weights(truncated, gaps, turns, level="turn", cap=9.0),
        [e(0.4), e(0.4), 1.0, e(-0.5)],
    )
    close(
        weights(truncated, gaps, turns, level="turn_geometric", cap=9.0),
        [e(0.2), e(0.2), 1.0, e(-0.5)],
    )


def test_icepop_masks_both_sides_golden():
    logs = [math.log(ratio) for ratio in GOLDEN["icepop"]["ratio"]]
    actual = weights(masked, logs, level="token", low=0.5, high=5.0)
    close(actual, GOLDEN["icepop"]["weight"])


def test_long_sequence_is_cut_and_seen_g12():
    # 100 tokens of 0.012: e^1.2 = 3.3201 as a product, although each token is within 1.3 %.
    close(weights(truncated, [0.012] * 100, level="sequence", cap=9.0), [3.320117] * 100)
    close(weights(truncated, [0.012] * 100, level="sequence", cap=3.0), [3.0] * 100)
    assert sum(weights(masked, [0.012] * 100, level="sequence", low=0.0, high=3.0)) == 0
    ratio = GOLDEN["lentrap"]
    for length, total, mean in zip(
        ratio["L"], ratio["sum_ratio"], ratio["mean_ratio"], strict=True
    ):
        gaps = [math.log(1.1)] * length
        big = weights(truncated, gaps, level="sequence", cap=1e9)[0]
        assert big == pytest.approx(total, rel=1e-4)
        assert weights(truncated, gaps, level="sequence_geometric", cap=9.0)[0] == pytest.approx(
            mean
        )


def test_boundaries_of_the_mask_are_kept():
    gaps = [math.log(0.5), 0.0, math.log(2.0)]
    kept = masked(*inputs(gaps), level="token", low=0.5, high=2.0).keep
    # exp(log(x)) may miss x by one unit in the last place; the middle and a clear miss decide.
    assert kept[0, 1].item()
    assert not masked(*inputs([0.8]), level="token", low=0.5, high=2.0).keep.item()


def test_huge_gaps_do_not_overflow():
    for level in ("token", "turn", "sequence"):
        weight = truncated(*inputs([2000.0, -2000.0]), level=level, cap=5.0).weight
        assert weight.isfinite().all()


def test_none_is_one():
    assert weights(none, GAPS) == [1.0] * 4


def test_bad_bounds_are_refused():
    with pytest.raises(ValueError, match="'cap' must be > 0"):
        truncated(*inputs(GAPS), level="token", cap=0.0)
    with pytest.raises(ValueError, match="0 <= low < high"):
        masked(*inputs(GAPS), level="token", low=2.0, high=2.0)
