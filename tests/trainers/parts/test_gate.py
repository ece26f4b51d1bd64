# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Gates on the single-token fixture: loss and slope at six ratios, for both signs of A."""

import json
import math
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts import registry
from agentgym.trainers.parts.gate import clipped_ratio
from agentgym.trainers.parts.registry import Slot

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
RATIOS = GOLDEN["F1"]["r"]

CASES = {
    "reinforce (value = -A*lr)": ("score", {}),
    "is (unclipped)": ("importance", {}),
    "ppo eps=.2": ("clip", {"clip_low": 0.2, "clip_high": 0.2}),
    "dapo .2/.28": ("clip", {"clip_low": 0.2, "clip_high": 0.28}),
    "dual-clip c=3": ("dual_clip", {"clip_low": 0.2, "clip_high": 0.2, "cap": 3.0}),
    "cispo [0,5]": ("capped_weight", {"ratio_cap": 5.0}),
    "cispo [0,1.28]": ("capped_weight", {"ratio_cap": 1.28}),
    "two-sided delta=4": ("two_sided_clip", {"clip_low": 0.2, "clip_high": 0.2, "cap": 4.0}),
}


def _loss_and_slope(name, parameters, ratio, advantage):
    policy = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    adv = torch.full((1, 1), advantage, dtype=torch.float64)
    gate = registry.find(Slot.GATE, name)
    if "weighted" in gate.traits:
        weight = gate.function(policy.detach(), adv, policy.detach(), **parameters)
        loss = (-weight.detach() * adv * policy).sum()
    else:
        loss = -gate.function(policy, adv, policy.detach(), **parameters).sum()
    loss.backward()
    return loss.item(), policy.grad.item()


@pytest.mark.parametrize("golden", CASES)
@pytest.mark.parametrize(("sign", "advantage"), [("+1", 1.0), ("-1", -1.0)])
def test_gate_matches_the_golden_loss_and_slope(golden, sign, advantage):
    name, parameters = CASES[golden]
    row = GOLDEN["F1"]["rows"][f"{golden} | A={sign}"]
    for ratio, loss, slope in zip(RATIOS, row["loss"], row["grad"], strict=True):
        actual = _loss_and_slope(name, parameters, ratio, advantage)
        if name in ("score", "capped_weight"):
            # A weighted gate's loss is -w A log pi, here with log pi = log r.
            weight = -slope / advantage
            assert actual[0] == pytest.approx(-weight * advantage * math.log(ratio), abs=1e-3)
        else:
            assert actual[0] == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert actual[1] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("name", "parameters"), CASES.values())
@pytest.mark.parametrize("advantage", [1.7, -0.6])
def test_gate_has_slope_minus_a_at_ratio_one(name, parameters, advantage):
    assert _loss_and_slope(name, parameters, 1.0, advantage)[1] == pytest.approx(-advantage)


# By hand, eps 0.2, objective min(r A, clip(r) A): min(3, 2.4); min(-3, -2.4); min(-1, -1.6).
@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"), [(1.5, 2.0, 2.4), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6)]
)
def test_clip_direction_f16(ratio, advantage, objective):
    loss, _ = _loss_and_slope("clip", {"clip_low": 0.2, "clip_high": 0.2}, ratio, advantage)
    assert loss == pytest.approx(-objective)


# By hand, clip [0.9, 1.3]: different widths, so that swapped bounds are seen.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.5, 1.0, -1.3), (0.5, -1.0, 0.9), (1.25, 1.0, -1.25), (0.95, -1.0, 0.95)],
)
def test_clip_keeps_low_and_high_apart(ratio, advantage, loss):
    actual, _ = _loss_and_slope("clip", {"clip_low": 0.1, "clip_high": 0.3}, ratio, advantage)
    assert actual == pytest.approx(loss)


def test_clipped_ratio_takes_a_width_for_each_token():
    ratio = torch.tensor([[2.0, 2.0, 0.1]])
    low = torch.tensor([[0.2, 0.2, 0.4]])
    high = torch.tensor([[0.5, 0.1, 0.1]])
    actual = clipped_ratio(ratio, clip_low=low, clip_high=high)
    torch.testing.assert_close(actual, torch.tensor([[1.5, 1.1, 0.6]]))


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.0, 0.2, "'clip_low' must be > 0"),
        (1.5, 0.2, r"'clip_low' must be in \(0, 1\] \(got 1.5\)"),
        (0.2, -0.1, "'clip_high' must be > 0"),
    ],
)
def test_clipped_ratio_refuses_bad_widths(low, high, message):
    with pytest.raises(ValueError, match=message):
        clipped_ratio(torch.ones(1, 1), clip_low=low, clip_high=high)


def test_clip_low_of_one_lets_every_ratio_below_pass():
    found = clipped_ratio(torch.tensor([[0.0, 0.4, 1.5]]), clip_low=1.0, clip_high=0.25)
    assert found.tolist() == [[0.0, 0.4000000059604645, 1.25]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # -r A = 2.5 is below 3 |A| = 6: the slope is that of the ratio; 9 * 2 is past it: flat.
        (1.25, -2.0, 2.5, 2.5),
        (9.0, -2.0, 6.0, 0.0),
        (9.0, -0.5, 1.5, 0.0),
    ],
)
def test_dual_clip_bounds_by_the_cap_times_the_advantage(ratio, advantage, loss, slope):
    parameters = {"clip_low": 0.2, "clip_high": 0.3, "cap": 3.0}
    found = _loss_and_slope("dual_clip", parameters, ratio, advantage)
    assert found == pytest.approx((loss, slope))


def test_dual_clip_refuses_a_cap_of_one():
    with pytest.raises(ValueError, match="'cap' must be > 1"):
        _loss_and_slope("dual_clip", {"clip_low": 0.2, "clip_high": 0.2, "cap": 1.0}, 1.0, -1.0)


def test_capped_weight_may_stay_below_the_ratio_of_the_sampler():
    """A ratio of 2 counts as 0.5: loss 0.5 * 1.5, whose slope is that of the log-probability."""
    loss, _ = _loss_and_slope("capped_weight", {"ratio_cap": 0.5}, 2.0, -1.5)
    below, _ = _loss_and_slope("capped_weight", {"ratio_cap": 4.0}, 2.0, -1.5)
    assert below == pytest.approx(4 * loss)


def test_capped_weight_refuses_a_cap_of_zero():
    with pytest.raises(ValueError, match="'ratio_cap' must be > 0"):
        _loss_and_slope("capped_weight", {"ratio_cap": 0.0}, 1.0, 1.0)
