"""Intervals, pass@k and differences, worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym import seeding
from agentgym.evaluation.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    pass_at_k,
    t_quantile,
    unpaired_difference,
)


@pytest.mark.parametrize(
    ("attempts", "solved", "k", "expected"),
    [
        (2, 0, 5, None),  # fewer attempts than k: undefined, never 1 (pitfall M1)
        (4, 4, 2, 1.0),
        (4, 0, 2, 0.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (5, 2, 3, 0.9),  # 1 - C(3,3)/C(5,3) = 1 - 1/10
        (5, 3, 3, 1.0),  # no three without one of the three solved: C(2,3) = 0
    ],
)
def test_pass_at_k_is_unbiased_and_undefined_for_few_attempts_m1(
    attempts: int, solved: int, k: int, expected: float | None
) -> None:
    assert pass_at_k(attempts, solved, k) == (
        None if expected is None else pytest.approx(expected, abs=1e-12)
    )


@pytest.mark.parametrize(("attempts", "solved", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 0)])
def test_pass_at_k_refuses_what_cannot_be(attempts: int, solved: int, k: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        pass_at_k(attempts, solved, k)


# Table values of Student's t at 97.5 %.
@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423)],
)
def test_t_quantile_matches_the_table(degrees: float, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, rel=2e-3)


def test_t_quantile_tends_to_the_normal_one_and_refuses_less_than_one_degree() -> None:
    assert t_quantile(1e6) == pytest.approx(1.959964, abs=1e-4)
    with pytest.raises(ValueError, match="must be >= 1"):
        t_quantile(0.5)


def test_mean_interval_by_hand() -> None:
    # Values 1, 1, 0, 1, 0: mean 0.6, s^2 = (3 * 0.16 + 2 * 0.36) / 4 = 0.3, s^2 / n = 0.06,
    # effective 0.24 / 0.06 = 4; t(4) = 2.7764, t^2 = 7.7084.
    # centre (0.6 + 7.7084 / 8) / (1 + 7.7084 / 4) = 1.56355 / 2.92710 = 0.53416
    # half 2.7764 sqrt(0.06 + 7.7084 / 64) / 2.92710 = 2.7764 * 0.42484 / 2.92710 = 0.40296
    found = mean_interval([1, 1, 0, 1, 0])
    assert found is not None
    assert (found.mean, found.count) == (0.6, 5)
    assert found.low == pytest.approx(0.13120, abs=5e-4)
    assert found.high == pytest.approx(0.93712, abs=5e-4)


def test_interval_of_equal_values_has_a_width() -> None:
    # n = 10 ones: t(9)^2 = 5.1175; low = 1 / (1 + 5.1175 / 10) = 0.6615
    found = mean_interval([1.0] * 10)
    assert found is not None
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.6615, abs=5e-4)


def test_interval_of_one_value_says_nothing_and_of_none_is_none() -> None:
    assert mean_interval([0.25]) == Interval(mean=0.25, low=0.0, high=1.0, count=1)
    assert mean_interval([]) is None
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        mean_interval([0.5, 1.5])


def test_interval_is_clustered_by_task() -> None:
    # 4 attempts at each of 20 tasks, all four alike: 80 attempts tell no more than 20 tasks.
    tasks = [1.0] * 10 + [0.0] * 10
    attempts = [value for value in tasks for _ in range(4)]
    clustered, pooled = mean_interval(tasks), mean_interval(attempts)
    assert clustered is not None
    assert pooled is not None
    assert clustered.mean == pooled.mean == 0.5
    assert clustered.high - clustered.low > 1.8 * (pooled.high - pooled.low)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_interval_holds_its_mean_and_stays_in_bounds(values: list[float]) -> None:
    found = mean_interval(values)
    assert found is not None
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.low < found.high


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # 40 tasks solved with chance 0.9, two attempts each, 1000 times over; a fixed seed.
    rng = seeding.rng("coverage")
    hits = 0
    for _ in range(1000):
        means = [sum(rng.random() < 0.9 for _ in range(2)) / 2 for _ in range(40)]
        found = mean_interval(means)
        assert found is not None
        hits += found.low <= 0.9 <= found.high
    assert 0.93 <= hits / 1000 <= 0.98


def test_paired_difference_by_hand() -> None:
    # Differences 1, 0, 1, 0: mean 0.5, s^2 = 4 * 0.25 / 3 = 1/3, SE = sqrt(1/12) = 0.288675,
    # t(3) = 3.1824: half 0.91868. The task that only one side has is left out.
    first = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0, "e": 0.0}
    second = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "f": 1.0}
    found = paired_difference(first, second)
    assert found is not None
    assert (found.mean, found.count, found.high) == (0.5, 4, 1.0)
    assert found.low == pytest.approx(0.5 - 0.91868, abs=2e-3)


def test_paired_difference_is_narrower_than_unpaired_where_tasks_differ() -> None:
    first = {str(i): i / 40 for i in range(40)}
    second = {str(i): min(i / 40 + 0.1 + 0.01 * (i % 3), 1.0) for i in range(40)}
    paired = paired_difference(first, second)
    apart = unpaired_difference(list(first.values()), list(second.values()))
    assert paired is not None
    assert apart is not None
    assert paired.mean == pytest.approx(apart.mean)
    assert paired.low > 0 > apart.low


def test_paired_difference_of_equal_differences_has_a_width() -> None:
    # n = 10: 1 - 0.025^(1/10) = 1 - exp(-0.368888) = 0.308497
    same = {str(i): 0.5 for i in range(10)}
    found = paired_difference(same, same)
    assert found is not None
    assert (found.mean, found.count) == (0.0, 10)
    assert (found.low, found.high) == pytest.approx((-0.308497, 0.308497), abs=1e-6)


def test_difference_needs_common_tasks() -> None:
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None
    assert paired_difference({"a": 0.0}, {"a": 0.5}) == Interval(
        mean=0.5, low=-1.0, high=1.0, count=1
    )
    assert unpaired_difference([1.0], [0.0, 1.0]) is None


def test_unpaired_difference_by_hand() -> None:
    # 0, 1 and 0, 1, 1, 1: means 0.5 and 0.75, variances 0.5 / 2 = 0.25 and 0.25 / 4 = 0.0625,
    # SE = sqrt(0.3125) = 0.559017; degrees 0.3125^2 / (0.25^2 / 1 + 0.0625^2 / 3) = 1.530612:
    # below two, so t as of one degree is 12.7062 and the bounds are cut at -1 and 1.
    found = unpaired_difference([0.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    assert found == Interval(mean=0.25, low=-1.0, high=1.0, count=6)


def test_intervals_are_printed_with_their_mean() -> None:
    assert str(Interval(mean=0.9, low=0.8456, high=0.94, count=3)) == "0.900 [0.846, 0.940]"
    assert not math.isnan(Interval(mean=0.9, low=0.8, high=1.0, count=3).to_dict()["mean"])
