# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""KL estimators and entropy: values, gradients, and which of them have the KL's gradient."""

import json
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts.regularizers import entropy_bonus, kl, kl_estimate

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimates_match_golden(estimator):
    d = torch.tensor(GOLDEN["klpt"]["d"], dtype=F64, requires_grad=True)
    value = kl_estimate(d, estimator=estimator, log_bound=20.0)
    assert value.tolist() == pytest.approx(GOLDEN["klpt"][estimator], rel=1e-4, abs=1e-9)
    if estimator == "k3":
        value.sum().backward()
        assert d.grad.tolist() == pytest.approx(GOLDEN["klpt"]["dk3"], rel=1e-4, abs=1e-9)


# On a softmax of three the expectation over the policy's samples is an exact sum.
@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", "k1_val", "k1_grad"),
        ("k2", "k2_val", "k2_grad"),
        ("k3", "k3_val", "k3_grad"),
        ("k1_ratio", "k1_val", "k1_ratio_grad"),
        ("k3_ratio", "k3_ratio_val", "k3_ratio_grad"),
    ],
)
def test_expected_value_and_gradient_match_golden(estimator, value, gradient):
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=F64, requires_grad=True)
    other = torch.tensor([0.5, 0.5, -1.0], dtype=F64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    estimate = kl_estimate(logprobs - other, estimator=estimator, log_bound=20.0)
    # Samples are drawn: the probabilities of the draws carry no gradient.
    expected = (logprobs.detach().exp() * estimate).sum()
    expected.backward()
    assert expected.item() == pytest.approx(GOLDEN["kl"][value], rel=1e-4)
    assert logits.grad.tolist() == pytest.approx(GOLDEN["kl"][gradient], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("estimator", "is_exact"), [
    ("k1", False), ("k2", True), ("k3", False), ("k1_ratio", True), ("k3_ratio", True),
])  # fmt: skip
def test_only_three_have_the_gradient_of_the_kl(estimator, is_exact):
    key = {"k3_ratio": "k3_ratio_grad", "k1_ratio": "k1_ratio_grad"}.get(
        estimator, f"{estimator}_grad"
    )
    same = GOLDEN["kl"][key] == pytest.approx(GOLDEN["kl"]["true_grad"], rel=1e-3)
    assert same is is_exact


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1_ratio", "k3_ratio"])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_large_gap_is_finite_in_value_and_gradient_f11(estimator, gap):
    d = torch.tensor([gap], dtype=torch.float32, requires_grad=True)
    value = kl_estimate(d, estimator=estimator, log_bound=20.0)
    value.sum().backward()
    assert value.isfinite().all()
    assert d.grad.isfinite().all()


def test_k3_is_at_most_ten_in_the_loss():
    """exp(2) - 1 - 2 = 4.389; exp(3) - 1 - 3 = 16.09 and exp(20) - 21 are cut, without gradient.

    k3_ratio keeps its size: cut, its gradient, d times the score, would change its sign.
    """
    d = torch.tensor([-2.0, -3.0, -20.0, 11.5], dtype=F64, requires_grad=True)
    value = kl_estimate(d, estimator="k3", log_bound=20.0)
    assert value.tolist() == pytest.approx([4.389056, 10.0, 10.0, 10.0])
    value.sum().backward()
    assert d.grad.tolist() == pytest.approx([1 - 7.389056, 0.0, 0.0, 0.0])
    own = torch.tensor([-3.0], dtype=F64, requires_grad=True)
    kl_estimate(own, estimator="k3_ratio", log_bound=20.0).sum().backward()
    assert own.grad.tolist() == pytest.approx([-3.0])


def test_log_bound_holds_before_the_square():
    d = torch.tensor([3.0, -3.0])
    assert kl_estimate(d, estimator="k2", log_bound=2.0).tolist() == [2.0, 2.0]


def test_kl_reads_the_named_anchor_on_the_mask_only():
    policy = torch.tensor([[-1.0, -2.0]], dtype=F64)
    anchors = {
        "reference": torch.tensor([[-1.5, torch.nan]], dtype=F64),
        "proximal": torch.tensor([[-0.8, 0.0]], dtype=F64),
    }
    mask = torch.tensor([[True, False]])
    one = kl(policy, anchors, None, mask, anchor="reference", estimator="k1", log_bound=20.0)
    other = kl(policy, anchors, None, mask, anchor="proximal", estimator="k1", log_bound=20.0)
    assert one[0].tolist() == pytest.approx([0.5, 0.0])
    assert other[0].tolist() == pytest.approx([-0.2, 0.0])


def test_entropy_bonus_matches_golden():
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=F64, requires_grad=True)
    logprobs = logits.log_softmax(0)
    entropy = -(logprobs.exp() * logprobs).sum()[None, None]
    loss = 0.01 * entropy_bonus(entropy, {}, entropy, torch.ones(1, 1, dtype=torch.bool)).sum()
    loss.backward()
    assert loss.item() == pytest.approx(GOLDEN["entropy"]["loss"], rel=1e-4)
    assert logits.grad.tolist() == pytest.approx(GOLDEN["entropy"]["grad"], rel=1e-4)


def test_entropy_bonus_says_what_it_lacks():
    with pytest.raises(LookupError, match="needs the policy's entropy"):
        entropy_bonus(torch.zeros(1, 1), {}, None, torch.ones(1, 1, dtype=torch.bool))
