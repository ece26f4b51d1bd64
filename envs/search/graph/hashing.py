"""Numbers without a table: a hash of whole numbers, and a shuffling of 0 to n - 1 worked out one
number at a time. Both are the same on every machine.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_ROUNDS = 4
"""Rounds of a Feistel network; three are known to look random, the fourth is spare."""


_START = 0x9E3779B97F4A7C15


def mix(*numbers: int, state: int = _START) -> int:
    """Return a number in [0, 2**64) that depends on every argument and on their order.

    Args:
        numbers: Whole numbers.
        state: What `mix` gave for the numbers before: `mix(1, 2)` is `mix(2, state=mix(1))`.
    """
    # The finaliser of splitmix64, once for each argument.
    for number in numbers:
        state = (state + number * 0xBF58476D1CE4E5B9 + _START) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def _scatter(key: int, number: int) -> int:
    """A cheaper hash for the rounds, whose low bits depend on every bit of both."""
    state = ((number ^ key) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 32)) * 0x94D049BB133111EB) & _MASK
    return state >> 32


class Permutation:
    """A one-to-one map of 0 to `size - 1` onto itself, different for each key.

    Example:
        p = Permutation(10, key=7); p.inverse(p(3)) is 3
    """

    def __init__(self, size: int, *, key: int) -> None:
        if size < 1:
            raise ValueError(f"'size' must be >= 1 (got {size!r})")
        self._size = size
        self._half = (max(size - 1, 1).bit_length() + 1) // 2
        self._low = (1 << self._half) - 1
        self._keys = tuple(mix(key, round_) for round_ in range(_ROUNDS))

    def __call__(self, number: int) -> int:
        """Return where `number` goes."""
        # Walking on until the number is in range keeps the map one-to-one.
        number = self._encrypt(number)
        while number >= self._size:
            number = self._encrypt(number)
        return number

    def inverse(self, number: int) -> int:
        """Return what goes to `number`."""
        number = self._decrypt(number)
        while number >= self._size:
            number = self._decrypt(number)
        return number

    def _encrypt(self, number: int) -> int:
        left, right = number >> self._half, number & self._low
        for key in self._keys:
            left, right = right, left ^ (_scatter(key, right) & self._low)
        return left << self._half | right

    def _decrypt(self, number: int) -> int:
        left, right = number >> self._half, number & self._low
        for key in reversed(self._keys):
            left, right = right ^ (_scatter(key, left) & self._low), left
        return left << self._half | right
