r"""Class: *an option letter with text behind it*."""

from __future__ import annotations

import pytest

from agentgym.envs.math.grading import options
from agentgym.envs.math.grading.grade import Reason, grade


@pytest.mark.parametrize(
    "answer",
    [
        r"\boxed{C) because it is odd}",
        r"\boxed{C. odd}",
        "The answer is C: odd",
        "The answer is C because it is odd",
        "The answer is C.",
        "Answer: **C) odd**",
        r"\boxed{\textbf{(C)}\ 12}",
        r"\boxed{\text{(C) 12}}",
        r"\boxed{(C)}",
        "(C) odd",
        "C)",
        "c) odd",
        "C",
        "Option C",
        "The answer is option C: 12",
        "C) the sum of A and 3",
        "C - it is odd",
        "C: 3",
    ],
)
@pytest.mark.parametrize("gold", ["C", "(C)"])
def test_f28_option_with_text_behind_it_is_the_option(gold: str, answer: str) -> None:
    assert grade(gold=gold, answer=answer).reason is Reason.CORRECT
    assert not grade(gold="D", answer=answer).is_correct


@pytest.mark.parametrize(
    "answer",
    [
        "C or D",
        "C) or D)",
        "C) 5 or D) 6",
        "C) odd, or (D) even",
        "B. C. D.",
        "C, D",
        "C and D",
        "D) not C",
        "Cats because they are odd",
        "Carbon: odd",
        "A dog",
        "not C) odd",
        "CC) odd",
        "",
    ],
)
def test_f28_list_of_options_chooses_none(answer: str) -> None:
    assert not grade(gold="C", answer=answer).is_correct
    assert not grade(gold="A", answer=answer).is_correct


def test_f28_letters_of_other_golds_are_left_alone() -> None:
    assert options.letter_of("x") is None
    assert options.letter_of("AB") is None
    assert grade(gold="C_1", answer="C_1").is_correct
    assert grade(gold="12", answer=r"\boxed{12}").is_correct


# A sentence is no answer, so that a flood of numbers in prose never is.
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("$70,000", Reason.CORRECT),
        (r"\$70,000", Reason.CORRECT),
        ("The answer is $70,000.", Reason.CORRECT),
        ("The answer is: $70,000 dollars", Reason.CORRECT),
        (r"He made \boxed{\$70,000}.", Reason.CORRECT),
        ("He made a profit of $70,000.", Reason.UNREADABLE),
        ("the profit is $70,000", Reason.UNREADABLE),
    ],
)
def test_f40_amount_in_a_sentence_is_no_answer(answer: str, reason: Reason) -> None:
    assert grade(gold="70000", answer=answer).reason is reason
