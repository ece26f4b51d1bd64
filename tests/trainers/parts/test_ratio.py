# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Ratios of tokens, turns and rows: values, gradient paths, bounds.

Row:   a a o a a a      turns 0 0 - 1 1 1      log-ratios .1 -.3 (9) .5 .2 .2
"""

import pytest
import torch

from agentgym.trainers.parts import registry
from agentgym.trainers.parts.gate import clip
from agentgym.trainers.parts.registry import Slot

F64 = torch.float64
TURNS = torch.tensor([[0, 0, -1, 1, 1, 1]])
MASK = TURNS >= 0
GAPS = torch.tensor([[0.1, -0.3, 9.0, 0.5, 0.2, 0.2]], dtype=F64)


def ratio(name, **parameters):
    """The bounded log-ratios of the row, and what a gradient of 1 on each token gives."""
    leaf = torch.where(MASK, GAPS, 0).requires_grad_()
    function = registry.find(Slot.RATIO, name).function
    result = function(leaf, MASK, TURNS, **{"log_bound": 20.0, **parameters})
    # Token weights 1 2 0 3 4 5 tell the tokens apart.
    (result * torch.tensor([[1.0, 2, 0, 3, 4, 5]])).sum().backward()
    return result[0].tolist(), leaf.grad[0].tolist()


@pytest.mark.parametrize(
    ("name", "parameters", "values", "gradient"),
    [
        ("token", {}, [0.1, -0.3, 0, 0.5, 0.2, 0.2], [1, 2, 0, 3, 4, 5]),
        # means -.1 and .3; through the mean each token of a turn gets the turn's average weight
        (
            "turn_mean",
            {"gradient": "through"},
            [-0.1, -0.1, 0, 0.3, 0.3, 0.3],
            [1.5, 1.5, 0, 4, 4, 4],
        ),
        (
            "turn_mean",
            {"gradient": "token"},
            [-0.1, -0.1, 0, 0.3, 0.3, 0.3],
            [1, 2, 0, 3, 4, 5],
        ),
        ("turn_sum", {}, [-0.2, -0.2, 0, 0.9, 0.9, 0.9], [3, 3, 0, 12, 12, 12]),
        # sum .7 over 5 trained tokens (never over 6: the length is the mask's)
        ("sequence_mean", {}, [0.14, 0.14, 0, 0.14, 0.14, 0.14], [3, 3, 0, 3, 3, 3]),
        ("sequence_sum", {}, [0.7, 0.7, 0, 0.7, 0.7, 0.7], [15, 15, 0, 15, 15, 15]),
        ("sequence_token", {}, [0.14, 0.14, 0, 0.14, 0.14, 0.14], [1, 2, 0, 3, 4, 5]),
    ],
)
def test_ratio_has_the_values_and_the_gradient_path(name, parameters, values, gradient):
    actual, slope = ratio(name, **parameters)
    assert actual == pytest.approx(values)
    assert slope == pytest.approx(gradient)


@pytest.mark.parametrize("name", registry.names(Slot.RATIO))
def test_ratio_is_bounded_on_both_sides(name):
    parameters = {"gradient": "through"} if name == "turn_mean" else {}
    function = registry.find(Slot.RATIO, name).function
    turns = torch.tensor([[0], [0]])
    wild = torch.tensor([[500.0], [-500.0]], dtype=F64)
    result = function(wild, turns >= 0, turns, log_bound=10.0, **parameters)
    assert result.flatten().tolist() == [10.0, -10.0]


@pytest.mark.parametrize("name", registry.names(Slot.RATIO))
def test_row_without_a_trained_token_is_zero(name):
    parameters = {"gradient": "token"} if name == "turn_mean" else {}
    function = registry.find(Slot.RATIO, name).function
    turns = torch.tensor([[-1, -1]])
    result = function(torch.zeros(1, 2), turns >= 0, turns, log_bound=10.0, **parameters)
    assert result.tolist() == [[0.0, 0.0]]


def test_turn_clip_with_token_advantages_golden():
    """A = 1 1 | -1 -1 2, widths .2: ratios e^-.1 and e^.3; only the last token is clipped."""
    advantages = torch.tensor([[1.0, 1, 0, -1, -1, 2]], dtype=F64)
    function = registry.find(Slot.RATIO, "turn_mean").function
    gaps = torch.where(MASK, GAPS, 0)
    turn = function(gaps, MASK, TURNS, gradient="through", log_bound=20.0)
    loss = -clip(turn, advantages, turn, clip_low=0.2, clip_high=0.2)
    assert loss[MASK].tolist() == pytest.approx(
        [-0.904837, -0.904837, 1.349859, 1.349859, -2.4], rel=1e-5
    )
    assert loss[MASK].mean().item() == pytest.approx(-0.301991, rel=1e-5)
    token = -clip(gaps, advantages, gaps, clip_low=0.2, clip_high=0.2)
    assert token[MASK].mean().item() == pytest.approx(-0.275173, rel=1e-5)


def test_turn_gradient_is_ratio_times_average_advantage():
    """Through the mean, unclipped: w * (mean of A over the turn), for each of its tokens."""
    advantages = torch.tensor([[1.0, 3, 0, -1, -1, 2]], dtype=F64)
    leaf = torch.where(MASK, GAPS, 0).requires_grad_()
    function = registry.find(Slot.RATIO, "turn_mean").function
    turn = function(leaf, MASK, TURNS, gradient="through", log_bound=20.0)
    (turn.exp() * advantages).sum().backward()
    # averages 2 and 0; w = e^-.1 = .904837
    assert leaf.grad[0].tolist() == pytest.approx([1.809675, 1.809675, 0, 0, 0, 0], rel=1e-5)
