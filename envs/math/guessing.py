"""Wrong answers that look right, for demonstrations in which a share guesses."""

from __future__ import annotations

import random
from fractions import Fraction

from agentgym.envs.math.rationals import format_number


def wrong_number(gold: Fraction, rng: random.Random) -> str:
    """Return a number other than `gold` of the same sign, digits and denominator."""
    digits = len(str(abs(gold.numerator)))
    lowest = 10 ** (digits - 1) if digits > 1 else 0
    while True:
        numerator = rng.randrange(lowest, 10**digits)
        guess = Fraction(numerator if gold >= 0 else -numerator, gold.denominator)
        if guess != gold:
            return format_number(guess)


def wrong_text(gold: str, rng: random.Random) -> str:
    """Return the words of `gold`, or the letters of a single word, in another order.

    Text of which every order is the same gets a question mark.
    """
    parts = gold.split(" ")
    joint = " " if len(parts) > 1 else ""
    shuffled = parts if joint else list(gold)
    rng.shuffle(shuffled)
    guess = joint.join(shuffled)
    return guess if guess != gold else f"{gold}?"
