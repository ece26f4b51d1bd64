"""What can be had without trying."""

from __future__ import annotations

import pytest

from agentgym.envs.math.grading.chance_scores import null_score_of_answers


# Wilson's upper bound at 95 %, worked by hand for one of 50 (share 0.02): the centre is
# 0.02 + 1.96**2/100 = 0.0584, the spread 1.96 * sqrt(0.0196/50 + 3.8416/10000) = 0.0546, and their
# sum over 1 + 3.8416/50 = 1.0768 is 0.1050.
@pytest.mark.parametrize(
    ("answers", "score"),
    [
        ([str(i) for i in range(50)], 0.1050),
        (["7"] * 3 + [str(i) for i in range(100, 9_997)], 0.02),  # rare: the least that is declared
        (["1", "2"], 0.5),  # as frequent as that by itself
        (["1", "2", "3", "4", "5", "6"], 0.2),  # the bound alone is not declared above 0.2
        (["yes"] * 60 + ["no"] * 40, 0.6),
    ],
)
def test_null_score_of_answers(answers: list[str], score: float) -> None:
    assert null_score_of_answers(answers) == pytest.approx(score, abs=1e-4)
