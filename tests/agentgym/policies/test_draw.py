"""Sampling: log-probabilities under the distribution that was sampled (pitfalls G1, G2, G3)."""

from __future__ import annotations

import math

import pytest
import torch

from agentgym.policies.transformers.draw import distribution, draw
from agentgym.records import Sampling

LOGITS = [2.0, 1.0, 0.0]
SHARES = [0.6, 0.3, 0.1]


# log-softmax of [2, 1, 0] / T at 0. T = 0.5: -ln(1 + e^-2 + e^-4); T = 1: -ln(1 + e^-1 + e^-2);
# T = 1.5: -ln(1 + e^-0.66667 + e^-1.33333) = -ln(1 + 0.51342 + 0.26360).
@pytest.mark.parametrize(
    ("temperature", "logprob"), [(0.5, -0.14293), (1.0, -0.40761), (1.5, -0.57494)]
)
def test_temperature_divides_the_logits_once_g1(temperature: float, logprob: float) -> None:
    result = draw(torch.tensor([LOGITS]), [Sampling(temperature=temperature)], [0.0])
    assert result.ids == (0,)
    assert result.logprobs[0] == pytest.approx(logprob, abs=1e-5)


# .6 and .3 reach .9 together, so .1 goes: ln(.6 / .9) = -0.40547. A float sum of .6 and .3 that
# stops short of .9 must not let it in. top_k=1 and min_p=.6 (.3 < .6 * .6) leave one id.
@pytest.mark.parametrize(
    ("sampling", "logprobs"),
    [
        (Sampling(top_p=0.9), [-0.40547, -1.09861, -math.inf]),
        (Sampling(top_p=0.95), [-0.51083, -1.20397, -2.30259]),
        (Sampling(top_k=2), [-0.40547, -1.09861, -math.inf]),
        (Sampling(top_k=7), [-0.51083, -1.20397, -2.30259]),
        (Sampling(min_p=0.6), [0.0, -math.inf, -math.inf]),
        (Sampling(min_p=0.4), [-0.40547, -1.09861, -math.inf]),
        (Sampling(top_p=0.0001), [0.0, -math.inf, -math.inf]),
        (Sampling(temperature=0), [0.0, -math.inf, -math.inf]),
        (Sampling(temperature=0, top_k=2), [0.0, -math.inf, -math.inf]),
    ],
)
def test_bounds_are_renormalised_g2(sampling: Sampling, logprobs: list[float]) -> None:
    actual = distribution(torch.tensor([SHARES]).log(), [sampling])[0]
    torch.testing.assert_close(actual, torch.tensor(logprobs), atol=1e-5, rtol=0)


def test_each_row_has_its_own_bounds_whatever_the_order_of_its_vocabulary() -> None:
    # The same shares as [.6, .3, .1], in another order: the kept set follows the shares.
    logits = torch.tensor([[0.1, 0.6, 0.3], SHARES]).log()
    actual = distribution(logits, [Sampling(top_p=0.9), Sampling(top_k=1)])
    expected = [[-math.inf, -0.40547, -1.09861], [0.0, -math.inf, -math.inf]]
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-5, rtol=0)


# Cumulative [.6, .9, 1]: the id is the first whose sum passes the uniform number.
@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.59, 0), (0.61, 1), (0.89, 1), (0.91, 2), (1 - 2**-53, 2)]
)
def test_id_is_where_the_cumulative_distribution_passes(uniform: float, token: int) -> None:
    result = draw(torch.tensor([SHARES]).log(), [Sampling()], [uniform])
    assert result.ids == (token,)
    # Pitfall G3: the log-probability is that of the sampled id, not of the most likely one.
    assert result.logprobs[0] == pytest.approx(math.log(SHARES[token]), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_ids_out_of_bounds_are_never_drawn(uniform: float) -> None:
    # The first and the last id are out of bounds, where a careless search would end.
    logits = torch.tensor([[0.1, 0.5, 0.3, 0.1]]).log()
    result = draw(logits, [Sampling(top_k=2)], [uniform])
    assert result.ids[0] in (1, 2)
    assert math.isfinite(result.logprobs[0])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 50, generator=generator)
    samplings = [Sampling(temperature=t) for t in (0.5, 1.0, 1.5, 0.0, 2.0)]
    uniforms = [0.1, 0.3, 0.5, 0.7, 0.9]
    together = draw(logits, samplings, uniforms)
    for row in range(5):
        alone = draw(logits[row : row + 1], samplings[row : row + 1], uniforms[row : row + 1])
        assert (alone.ids[0], alone.logprobs[0]) == (together.ids[row], together.logprobs[row])


def test_draws_follow_the_distribution() -> None:
    # 10,000 equidistant uniforms give each id its share to within one part in 10,000.
    count = 10_000
    logits = torch.tensor([SHARES]).log().expand(count, 3)
    result = draw(logits, [Sampling()] * count, [(i + 0.5) / count for i in range(count)])
    shares = [result.ids.count(token) / count for token in range(3)]
    assert shares == pytest.approx(SHARES, abs=2 / count)


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = torch.tensor([LOGITS], dtype=torch.bfloat16)
    result = draw(logits, [Sampling()], [0.0])
    assert result.logprobs[0] == pytest.approx(-0.40761, abs=1e-5)
