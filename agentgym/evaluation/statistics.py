"""Means with intervals, pass@k, paired differences. Plain numbers in, plain numbers out.

Every interval is for 95 % and is clustered by task: attempts at one task are not independent, so
the task, whose mean over attempts is one value, is what is counted. In order: `Interval`,
`mean_interval`, `pass_at_k`, `paired_difference`, `unpaired_difference`, `t_quantile`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(1 - _TAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and where it lies with 95 % confidence.

    Example:
        Interval(mean=0.9, low=0.85, high=0.94, count=300)
    """

    mean: float
    """The estimate."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    count: int
    """Tasks behind it."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_dict(self) -> dict[str, float | int]:
        """Return the fields as plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "count": self.count}


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of task means in [0, 1] with its interval; None of no value.

    Wilson's score interval, which stays inside [0, 1] and has a width where all values are equal,
    with two changes: Student's t for the normal quantile, and the effective number of tasks
    m (1 - m) / (s^2 / n), which for one attempt at a task is n - 1. Where the values do not vary
    it is n.

    Args:
        values: [task] mean of each task.

    Raises:
        ValueError: If a value is not in [0, 1].
    """
    if any(not 0 <= value <= 1 for value in values):
        raise ValueError("task means must be in [0, 1]")
    count = len(values)
    if count == 0:
        return None
    mean = math.fsum(values) / count
    if count == 1:  # one task says nothing of the others
        return Interval(mean=mean, low=0.0, high=1.0, count=1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
    spread = mean * (1 - mean)
    effective = spread / variance if variance > 0 and spread > 0 else float(count)
    return _wilson(mean, effective, t_quantile(count - 1), count)


def _wilson(mean: float, effective: float, quantile: float, count: int) -> Interval:
    shrink = 1 + quantile**2 / effective
    centre = (mean + quantile**2 / (2 * effective)) / shrink
    inner = mean * (1 - mean) / effective + quantile**2 / (4 * effective**2)
    half = quantile * math.sqrt(inner) / shrink
    # Rounding must not put the bound of 0 or 1 on the wrong side of the mean.
    low, high = min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)
    return Interval(mean=mean, low=low, high=high, count=count)


def pass_at_k(attempts: int, solved: int, k: int) -> float | None:
    """Return the chance that one of `k` attempts solves a task; None where `attempts` < `k`.

    ``1 - C(attempts - solved, k) / C(attempts, k)``, which is unbiased.

    Raises:
        ValueError: If `solved` is not in [0, attempts] or `k` < 1.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 0 <= solved <= attempts:
        raise ValueError(f"'solved' must be in [0, {attempts}] (got {solved!r})")
    if k < 1:
        raise ValueError(f"'k' must be >= 1 (got {k!r})")
    if attempts < k:
        return None
    return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Interval | None:
    """Return mean(second - first) over the tasks of both, with its interval; None without any.

    Student's t over the differences of the tasks. Where all differences are equal the half-width
    is ``1 - 0.025 ** (1 / n)``: what a difference would have to be rarer than, not to be seen.

    Args:
        first: Task -> its mean, of what is compared with.
        second: The same of what is compared.
    """
    differences = [second[task] - first[task] for task in first if task in second]
    count = len(differences)
    if count == 0:
        return None
    mean = math.fsum(differences) / count
    if count == 1:
        return Interval(mean=mean, low=-1.0, high=1.0, count=1)
    variance = math.fsum((value - mean) ** 2 for value in differences) / (count - 1) / count
    half = t_quantile(count - 1) * math.sqrt(variance)
    if variance == 0:
        half = 1 - _TAIL ** (1 / count)
    return _signed(mean, half, count)


def unpaired_difference(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return mean(second) - mean(first) of different tasks; Welch's interval, None if too few."""
    if min(len(first), len(second)) <= 1:
        return None
    means = [math.fsum(values) / len(values) for values in (first, second)]
    parts = [
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        for values, mean in zip((first, second), means, strict=True)
    ]
    degrees = min(len(first), len(second)) - 1
    if sum(parts) > 0:
        shares = zip(parts, (first, second), strict=True)
        degrees = sum(parts) ** 2 / sum(part**2 / (len(v) - 1) for part, v in shares)
    half = t_quantile(degrees) * math.sqrt(sum(parts))
    if sum(parts) == 0:
        half = 1 - _TAIL ** (1 / min(len(first), len(second)))
    return _signed(means[1] - means[0], half, len(first) + len(second))


def _signed(mean: float, half: float, count: int) -> Interval:
    low, high = max(mean - half, -1.0), min(mean + half, 1.0)
    return Interval(mean=mean, low=low, high=high, count=count)


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t, within 0.2 % from 3 degrees of freedom on.

    One and two degrees have closed forms; above, the normal quantile is expanded in 1 / degrees.

    Raises:
        ValueError: If `degrees` < 1.

    Source: Abramowitz and Stegun 1964, eq. 26.7.5.
    """
    if degrees < 1:
        raise ValueError(f"'degrees' must be >= 1 (got {degrees!r})")
    chance = 1 - _TAIL
    if degrees < 2:
        return math.tan(math.pi * (chance - 0.5))
    if degrees < 3:
        spread = 4 * chance * (1 - chance)
        return 2 * (chance - 0.5) * math.sqrt(2 / spread)
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))
