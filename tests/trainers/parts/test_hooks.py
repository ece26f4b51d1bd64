# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""The clipping bias: what the clip takes away, and the factor that follows from it."""

import math

import pytest
import torch

from agentgym.trainers.parts.hooks import ClipSums, clip_bias, clip_sums, clipped_tokens

F64 = torch.float64
# Ratios .95 1.5 .7 1.1, A 1 2 -1 -.5, widths .2: the second and the third token are clipped.
RATIO = torch.tensor([[0.95, 1.5, 0.7, 1.1]], dtype=F64)
ADVANTAGES = torch.tensor([[1.0, 2.0, -1.0, -0.5]], dtype=F64)
SCORES = torch.tensor([[1.0, 0], [0, 1], [1, 1], [1, -1]], dtype=F64)


def test_clipped_tokens_and_bias_vector_golden():
    clipped = clipped_tokens(RATIO, ADVANTAGES, clip_low=0.2, clip_high=0.2)
    assert clipped.tolist() == [[False, True, True, False]]
    # (1.5*2*(0,1) + .7*-1*(1,1)) / 4 = (-.175, .575), norm .601041
    bias = ((clipped * RATIO * ADVANTAGES)[0][:, None] * SCORES).sum(0) / 4
    assert bias.tolist() == pytest.approx([-0.175, 0.575])
    assert bias.norm().item() == pytest.approx(0.601041, rel=1e-5)


def test_clip_sums_are_the_two_cheap_magnitudes():
    clipped = clipped_tokens(RATIO, ADVANTAGES, clip_low=0.2, clip_high=0.2)
    sums = clip_sums(torch.full_like(RATIO, 0.25), RATIO, ADVANTAGES, clipped, 4)
    # signed (3 - .7)/4 = .575, absolute (3 + .7)/4 = .925
    assert sums.clipped == 2
    assert sums.tokens == 4
    assert sums.signed == pytest.approx(0.575)
    assert sums.absolute == pytest.approx(0.925)
    both = sums + sums
    assert (both.clipped, both.tokens) == (4, 8)
    assert (both.signed, both.absolute) == pytest.approx((1.15, 1.85))


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [
    (1.31, 1.0, True), (1.29, 1.0, False), (0.5, 1.0, False),
    (0.89, -1.0, True), (0.91, -1.0, False), (1.5, -1.0, False), (1.5, 0.0, False),
    (0.5, 0.0, False), (0.5, 0.25, False), (1.5, -0.25, False),
])  # fmt: skip
def test_clip_is_active_on_one_side_for_each_sign(ratio, advantage, expected):
    found = clipped_tokens(
        torch.tensor([[ratio]]), torch.tensor([[advantage]]), clip_low=0.1, clip_high=0.3
    )
    assert found.item() is expected


SUMS = ClipSums(tokens=10.0, clipped=2.0, signed=-2.0, absolute=5.0)


@pytest.mark.parametrize(
    ("measure", "norm", "strength", "expected"),
    [
        ("norm", 4.0, 1.0, 0.25),
        ("norm", 4.0, 0.5, 0.5),
        ("norm", 0.601041, 1.0, 1.0),  # below 1: nothing is amplified
        ("signed", None, 1.0, 0.5),  # |-2|
        ("absolute", None, 1.0, 0.2),
        ("absolute", None, 2.0, 0.1),
    ],
)
def test_factor_is_one_over_the_magnitude_bounded_at_one(measure, norm, strength, expected):
    actual = clip_bias(SUMS, norm, measure=measure, strength=strength, trigger=0.0)
    assert actual == pytest.approx(expected)


def test_nothing_clipped_and_below_the_trigger_give_one():
    nothing = ClipSums(tokens=10.0, clipped=0.0, signed=0.0, absolute=0.0)
    assert clip_bias(nothing, 50.0, measure="norm", strength=1.0, trigger=0.0) == 1.0
    # 2 of 10 tokens are clipped: a trigger of .2 holds it back, .19 does not.
    assert clip_bias(SUMS, 4.0, measure="norm", strength=1.0, trigger=0.2) == 1.0
    assert clip_bias(SUMS, 4.0, measure="norm", strength=1.0, trigger=0.19) == 0.25


def test_norm_of_zero_gives_one_whatever_the_strength():
    assert clip_bias(SUMS, 0.0, measure="norm", strength=3.0, trigger=0.0) == 1.0


def test_share_of_a_single_token_is_all_of_it():
    one = ClipSums(tokens=1.0, clipped=1.0, signed=-4.0, absolute=4.0)
    assert clip_bias(one, None, measure="signed", strength=1.0, trigger=0.6) == 0.25


def test_hook_says_what_is_wrong():
    with pytest.raises(LookupError, match="needs the norm of the extra backward"):
        clip_bias(SUMS, None, measure="norm", strength=1.0, trigger=0.0)
    with pytest.raises(ValueError, match="'strength' must be > 0"):
        clip_bias(SUMS, 1.0, measure="norm", strength=0.0, trigger=0.0)


def test_ratio_of_exactly_the_bound_is_not_clipped():
    bound = torch.tensor([[1.2]], dtype=F64)
    assert not clipped_tokens(
        bound, torch.ones(1, 1, dtype=F64), clip_low=0.2, clip_high=0.2
    ).item()
    assert math.isclose(bound.item(), 1 + 0.2)
    low = torch.tensor([[1 - 0.25]], dtype=F64)
    assert not clipped_tokens(
        low, -torch.ones(1, 1, dtype=F64), clip_low=0.25, clip_high=0.2
    ).item()
