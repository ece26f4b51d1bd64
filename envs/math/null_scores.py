"""What can be had without trying: for each data set of reasoning-gym, and for rows with answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LEAST = 0.02
"""Declared where less was measured."""
UNDECLARED = 0.2
"""Above this an environment says why."""
_Z = 1.96

# Mean library score of the better of: the best constant answer, and the answers of other items.
NULL_SCORES: dict[str, float] = {
    "gsm_symbolic": 0.04,
}


def null_score_of_answers(answers: Sequence[str]) -> float:
    """Return an upper bound of what the most frequent of these answers scores on rows like these.

    Few rows make a wide bound (Wilson's, 95 %), which is kept below what needs a reason unless the
    answer itself is that frequent.
    """
    count = len(answers)
    share = Counter(answers).most_common(1)[0][1] / count
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    upper = (share + _Z**2 / (2 * count) + spread) / (1 + _Z**2 / count)
    return max(LEAST, share, min(upper, UNDECLARED))
