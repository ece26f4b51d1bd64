r"""Is this answer right? `grade` compares an answer with the gold one, `check_gold` checks that.

Numbers, words, ratios, sets, tuples, intervals, unions and lists are read and compared here,
exactly. Formulas go to math-verify in a process of its own (`symbolic`). Which of the two decided
is in the result.

Rules where graders differ:
- of several boxes the last one counts (`extraction`);
- a list is right as a whole, in any order; a tuple or interval in its order, with its brackets;
- a decimal equals a rational number only if it is exactly that number, an irrational one if the
  first six digits agree;
- `50\%` answers 50 %, 0.5, and 50 too where that is no probability; a unit that one side leaves
  out makes no difference, two known units that differ do;
- of a multiple choice the letter counts, whatever is said behind it (`options`);
- a sentence is not searched for a number: "he made $70,000" is no answer, `$70,000` is one;
- `3:4` is 3/4 and 6:8, but a time of day is itself only;
- a sum or product that is still to be worked out does not answer a plain number, however written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from agentgym.envs.math.grading import numerals, options
from agentgym.envs.math.grading.extraction import extract_answer
from agentgym.envs.math.grading.latex import normalize
from agentgym.envs.math.grading.parsed_answer import (
    MAX_CHARS,
    Collection,
    Exact,
    Formula,
    Ratio,
    Shape,
    Value,
    Words,
    read_values,
)
from agentgym.envs.math.grading.symbolic import SymbolicJudge, Verdict, default_judge
from agentgym.envs.math.grading.unfinished import decimals_as_fractions, is_worked_out
from agentgym.envs.math.rationals import format_number
from agentgym.errors import TaskError


class Reason(StrEnum):
    """Why an answer is right or not."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNREADABLE = "unreadable"
    UNFINISHED = "unfinished"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    BAD_GOLD = "bad_gold"


class Path(StrEnum):
    """Which comparison decided."""

    NONE = "none"
    IDENTICAL = "identical"
    EXACT = "exact"
    SYMBOLIC = "symbolic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The verdict on one answer.

    Example:
        Grade(is_correct=True, reason=Reason.CORRECT, path=Path.EXACT)
    """

    is_correct: bool
    """Whether the answer is right."""
    reason: Reason
    """Why."""
    path: Path
    """Which comparison decided."""


def grade(*, gold: str, answer: str, judge: SymbolicJudge | None = None) -> Grade:
    r"""Return whether what the agent wrote answers with the value of `gold`.

    Args:
        gold: The gold answer, as it stands in the data (a whole solution with its box will do).
        answer: What the agent wrote: a whole text, or the answer alone.
        judge: Compares formulas; the shared one unless given.

    Example:
        grade(gold=r"\frac{1}{2}", answer=r"so it is \boxed{0.5}").is_correct is True.
    """
    gold_text, answer_text = _readable(gold), _readable(answer)
    if answer_text is None:
        return _verdict(Reason.NO_ANSWER, Path.NONE)
    if gold_text is None:
        return _verdict(Reason.BAD_GOLD, Path.NONE)
    letter, choice = options.letter_of(gold_text), options.chosen(answer_text)
    if letter is not None and choice is not None and gold_text != answer_text:
        return _verdict(Reason.CORRECT if choice == letter else Reason.WRONG, Path.EXACT)
    golds, answers = read_values(gold_text), read_values(answer_text)
    if not golds or not answers:
        return _verdict(Reason.BAD_GOLD if not golds else Reason.UNREADABLE, Path.NONE)
    if isinstance(golds[0], Exact):
        golds = golds[:1]  # `1,234` is a number, whatever its commas
    if gold_text == answer_text:
        # Equal nonsense is not right: no answer ever scores against a gold that cannot be read.
        reason = Reason.CORRECT if _is_readable(golds[0], judge) else Reason.BAD_GOLD
        return _verdict(reason, Path.IDENTICAL)
    comparison = _Comparison(judge)
    for gold_value in golds:
        for answer_value in answers:
            if comparison.are_equal(gold_value, answer_value):
                return _verdict(Reason.CORRECT, comparison.path)
    return _verdict(comparison.reason, comparison.path)


def check_gold(gold: str, *, row_id: str, judge: SymbolicJudge | None = None) -> None:
    """Return if answers can be compared with `gold`.

    Raises:
        TaskError: If not; the message has the row's id.
    """
    text = _readable(gold)
    values = read_values(text) if text is not None else ()
    if not values or not _is_readable(values[0], judge):
        raise TaskError(
            f"row {row_id}: the gold answer cannot be read ({gold[:80]!r}); accepted are numbers, "
            "words and LaTeX: correct it or leave the row out"
        )


def _readable(text: str) -> str | None:
    found = extract_answer(text)
    if found is None or len(found) > MAX_CHARS:
        return None
    return normalize(found) or None


def _verdict(reason: Reason, path: Path) -> Grade:
    return Grade(is_correct=reason is Reason.CORRECT, reason=reason, path=path)


def _is_readable(value: Value, judge: SymbolicJudge | None) -> bool:
    return all(
        (judge or default_judge()).judge(gold=formula.text, answer=None) is Verdict.READABLE
        for formula in _formulas(value)
    )


def _formulas(value: Value) -> list[Formula]:
    if isinstance(value, Formula):
        return [value]
    if isinstance(value, Collection):
        return [formula for item in value.items for formula in _formulas(item)]
    return []


_VARIABLE = re.compile(r"(?<![\\a-zA-Z])(?![ei](?![a-zA-Z]))[a-zA-Z]")
"""A letter that is no command and neither e nor i."""
_FAILED = {
    Verdict.TIMEOUT: Reason.TIMEOUT,
    Verdict.TOO_LARGE: Reason.TOO_LARGE,
    Verdict.BAD_ANSWER: Reason.UNREADABLE,
    Verdict.BAD_GOLD: Reason.BAD_GOLD,
}


class _Comparison:
    """One comparison of two values, with the reason why it fails and who decided."""

    def __init__(self, judge: SymbolicJudge | None) -> None:
        self._judge = judge
        self.path = Path.EXACT
        self.reason = Reason.WRONG

    def are_equal(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Collection) or isinstance(answer, Collection):
            return self._same_collection(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return _same_ratio(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return self._same_words(gold, answer)
        if gold.unit and answer.unit and gold.unit != answer.unit:
            return False
        gold, answer = _with_unit_of(gold, answer), _with_unit_of(answer, gold)
        if isinstance(gold, Exact) and isinstance(answer, Exact):
            return self._same_number(gold, answer)
        return self._same_formula(gold, answer)

    def _same_collection(self, gold: Value, answer: Value) -> bool:
        if not isinstance(gold, Collection) or not isinstance(answer, Collection):
            return False
        if len(gold.items) != len(answer.items):
            return False
        shapes = {gold.shape, answer.shape}
        if len(shapes) == 1 and gold.shape not in {Shape.LIST, Shape.SET, Shape.UNION}:
            pairs = zip(gold.items, answer.items, strict=True)
            return all(self.are_equal(left, right) for left, right in pairs)
        if shapes == {Shape.LIST, Shape.PARENTHESES}:  # a pair whose brackets one side left out
            return all(map(self.are_equal, gold.items, answer.items))
        if gold.names or answer.names:
            return self._same_by_name(gold, answer)
        if shapes <= {Shape.LIST, Shape.SET} or shapes == {Shape.UNION}:
            return self._same_in_any_order(gold.items, answer.items)
        return False

    def _same_by_name(self, gold: Collection, answer: Collection) -> bool:
        """Compare `x=1, y=2` by its names, and in its order where the other side has no such."""
        items = answer.items
        if set(gold.names) == set(answer.names):
            found = dict(zip(answer.names, answer.items, strict=True))
            items = tuple(found[name] for name in gold.names)
        return all(map(self.are_equal, gold.items, items))

    def _same_in_any_order(self, golds: tuple[Value, ...], answers: tuple[Value, ...]) -> bool:
        left = list(answers)
        for gold in golds:
            match = next((item for item in left if self.are_equal(gold, item)), None)
            if match is None:
                return False
            left.remove(match)
        return True

    def _same_words(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Words) and isinstance(answer, Words):
            is_same_product = bool(gold.symbols) and sorted(gold.symbols) == sorted(answer.symbols)
            return gold.text == answer.text or is_same_product
        # A few letters may be symbols as well.
        words, other = (gold, answer) if isinstance(gold, Words) else (answer, gold)
        if isinstance(words, Words) and words.symbols and isinstance(other, Formula):
            return self._ask(_latex(gold), _latex(answer))
        return False

    def _same_number(self, gold: Exact, answer: Exact) -> bool:
        is_equal = _same_amount(gold, answer)
        if is_equal and gold.is_finished and not answer.is_finished:
            self.reason = Reason.UNFINISHED
            return False
        return is_equal

    def _same_formula(self, gold: Value, answer: Value) -> bool:
        if not self._ask(_latex(gold), _latex(answer)):
            return False
        if isinstance(gold, Exact) and isinstance(answer, Formula) and gold.is_finished:
            return self._is_result(gold, answer)
        return True

    def _is_result(self, gold: Exact, answer: Formula) -> bool:
        """Return whether a formula that equals a number is one value, not a sum or product."""
        last, is_true = self._last_side(gold, answer.text)
        if not is_true:
            return False
        if numerals.is_finished(last) or is_worked_out(last):
            return True
        # Of an irrational number a decimal is the rounded value, and a sum may be all there is.
        if gold.is_decimal and not self._ask(_fraction(gold), decimals_as_fractions(last)):
            return True
        self.reason = Reason.UNFINISHED
        return False

    def _last_side(self, gold: Exact, text: str) -> tuple[str, bool]:
        """Return what follows the last equals sign; False if a side without letters differs."""
        *sides, last = (side.strip() for side in text.split("="))
        plain = [side for side in sides if side and _VARIABLE.search(side) is None]
        return last, all(self._ask(_latex(gold), side) for side in plain)

    def _ask(self, gold: str, answer: str) -> bool:
        self.path = Path.SYMBOLIC
        verdict = (self._judge or default_judge()).judge(gold=gold, answer=answer)
        self.reason = _FAILED.get(verdict, self.reason)
        return verdict is Verdict.EQUAL


def _with_unit_of(value: Value, other: Value) -> Value:
    """Return `5m` as a number with a unit where the other side has that unit: it may be either."""
    unit = other.unit if isinstance(other, Exact) else ""
    if len(unit) != 1 or not isinstance(value, Formula) or not value.text.endswith(unit):
        return value
    number = numerals.read(value.text[:-1])
    if number is None:
        return value
    return Exact(
        value=number.value,
        unit=unit,
        is_finished=number.is_finished,
        is_decimal=number.is_decimal,
    )


def _same_amount(gold: Exact, answer: Exact) -> bool:
    if gold.is_percent == answer.is_percent:
        return gold.value == answer.value
    if gold.is_percent:
        return answer.value in {gold.value, gold.value / 100}
    # `1%` does not answer a probability of 1, nor `0.5%` one of 0.5.
    is_share_too = abs(gold.value) > 1 and answer.value == gold.value
    return is_share_too or answer.value / 100 == gold.value


def _same_ratio(gold: Value, answer: Value) -> bool:
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if len(gold.parts) != len(answer.parts) or _halves_differ(gold, answer):
            return False
        if gold.is_clock or answer.is_clock:
            return gold.parts == answer.parts or _same_time(gold, answer)
        return _proportional(gold.parts, answer.parts)
    ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
    if not isinstance(ratio, Ratio) or not isinstance(other, Exact) or len(ratio.parts) != 2:
        return False
    first, second = ratio.parts
    return second != 0 and not ratio.half and first / second == other.value


def _same_time(gold: Ratio, answer: Ratio) -> bool:
    """Return whether one time says its half of the day and the other counts to 24."""
    return bool(gold.half) != bool(answer.half) and _of_24_hours(gold) == _of_24_hours(answer)


def _of_24_hours(time: Ratio) -> tuple[Fraction, ...]:
    hour, *rest = time.parts
    if not time.half or not 1 <= hour <= 12:
        return time.parts
    return (hour % 12 + (12 if time.half == "p" else 0), *rest)


def _halves_differ(gold: Ratio, answer: Ratio) -> bool:
    return bool(gold.half and answer.half and gold.half != answer.half)


def _proportional(golds: tuple[Fraction, ...], answers: tuple[Fraction, ...]) -> bool:
    first = next((i for i, part in enumerate(golds) if part), None)
    if first is None or answers[first] == 0:
        return golds == answers
    scale = answers[first] / golds[first]
    return tuple(part * scale for part in golds) == answers


def _latex(value: Value) -> str:
    if not isinstance(value, Exact):
        assert isinstance(value, Formula | Words)
        return value.text if isinstance(value, Formula) else " ".join(value.symbols)
    return _decimal(_amount(value)) if value.is_decimal else _fraction(value)


def _amount(value: Exact) -> Fraction:
    return value.value / 100 if value.is_percent else value.value


def _fraction(value: Exact) -> str:
    number = _amount(value)
    numerator, slash, denominator = format_number(number).partition("/")
    return rf"\frac{{{numerator}}}{{{denominator}}}" if slash else numerator


def _decimal(value: Fraction) -> str:
    """Return a number that has an end as a decimal with all its digits."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(abs(int(value * 10**places))).zfill(places + 1)
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :]
    return f"{'-' if value < 0 else ''}{whole}.{rest or '0'}"
