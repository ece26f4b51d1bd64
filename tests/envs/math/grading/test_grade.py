r"""Grading of math answers: every pitfall D with its value, and the rules of our own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("math_verify")

from agentgym.envs.math.grading.extraction import MAX_CHARS, extract_answer
from agentgym.envs.math.grading.grade import Path, Reason, check_gold, grade
from agentgym.envs.math.grading.latex import normalize
from agentgym.envs.math.grading.symbolic import SymbolicJudge, Verdict, default_judge
from agentgym.errors import TaskError

TOWER = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module", autouse=True)
def _closed_judge() -> Iterator[None]:
    yield
    default_judge().close()


def _is_correct(gold: str, answer: str) -> bool:
    return grade(gold=gold, answer=answer).is_correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2004!", "1/2006!"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("1/2^{99}", "1/2^{98}"),
        ("1/2^99", "1/2^98"),
        ("0.0000001", "0.0000002"),
        (r"10^{-9}\pi", r"2\cdot10^{-9}\pi"),
        (r"x+10^{-7}", r"x+2\cdot 10^{-7}"),
        ("1/3", "0.3333333333"),  # a rational is equal exactly or not at all
    ],
)
def test_tiny_numbers_are_not_equal_d1(gold: str, answer: str) -> None:
    assert not _is_correct(gold, answer)
    assert _is_correct(gold, gold)


@pytest.mark.parametrize(
    ("answer", "is_correct"),
    [
        (r"1 + \frac{1}{\mathrm{e}}", False),
        ("1", False),
        (r"1 - \frac{1}{e}", True),
        (r"\frac{e-1}{e}", True),
        ("0.6321205588", True),  # 1 - 1/e = 0.63212055882...
        ("0.632", False),
    ],
)
def test_formula_is_read_whole_d2(answer: str, is_correct: bool) -> None:
    assert _is_correct(r"1 - \frac{1}{\mathrm{e}}", answer) is is_correct


@pytest.mark.parametrize(
    ("answer", "is_correct"),
    [
        ("1728", False),
        ("1728 and 1331", True),
        ("1331, 1728", True),
        (r"\{1728, 1331\}", True),
        ("1331 and 1728 and 1", False),
        ("1331 and 1331", False),
    ],
)
def test_part_of_a_list_is_wrong_d3(answer: str, is_correct: bool) -> None:
    assert _is_correct("1331 and 1728", answer) is is_correct


def test_last_box_counts_d4() -> None:
    text = r"… \boxed{2}. wait, actually \boxed{3}"
    assert _is_correct("3", text)
    assert not _is_correct("2", text)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (r"\boxed{840} … **Final Answer** \boxed{840}", "840"),
        (r"\boxed{004} \boxed{004}\boxed{004}", "4"),
    ],
)
def test_repeated_boxes_are_one_answer_d5(text: str, gold: str) -> None:
    assert _is_correct(gold, text)
    assert not _is_correct(gold + gold, text)


def test_nested_braces_are_kept_d6() -> None:
    assert not _is_correct("1/3", r"\boxed{\frac{1}{2}}")
    assert _is_correct("1/2", r"\boxed{\frac{1}{2}}")
    assert not _is_correct(r"\frac{12}{3}", r"\boxed{\frac{1}{23}}")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("13", r"\text{13}"),
        ("73", "Final Answer: **73**"),
        ("73", "**73**"),
        ("13", r"$\boxed{\text{ 13 }}$"),
        (r"\text{Evelyn}", "evelyn"),
        (r"\text{(C)}", "C"),
    ],
)
def test_wrappers_are_no_part_of_the_answer_d7(gold: str, answer: str) -> None:
    assert _is_correct(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer", "is_correct"),
    [
        ("#### -3", "-3", True),
        ("#### -3", "3", False),
        ("-3", "\N{MINUS SIGN}3", True),
        (r"\pm 2021", "2021", False),
        (r"\pm 2021", "2021, -2021", True),
        (r"1\pm\sqrt{2}", r"1-\sqrt{2}, 1+\sqrt{2}", True),
        (r"-\frac{1}{2}", r"\frac{1}{2}", False),
    ],
)
def test_sign_counts_d8(gold: str, answer: str, is_correct: bool) -> None:
    assert _is_correct(gold, answer) is is_correct


def test_marker_is_found_far_from_the_end_d9() -> None:
    assert _is_correct("42", "2+40=42\n#### 42\n" + "and so on and on " * 36)


@pytest.mark.parametrize(
    "gold", ["???", "", "   ", r"\frac{1}{", r"\frac{x}{\sqrt{}+}", r"\boxed{}"]
)
def test_gold_that_cannot_be_read_is_an_error_with_its_row_d10(gold: str) -> None:
    with pytest.raises(TaskError, match="row 17: the gold answer cannot be read"):
        check_gold(gold, row_id="17")
    for answer in (gold, "1", "anything"):
        assert not _is_correct(gold, answer)


@pytest.mark.parametrize(
    "gold",
    [
        "5",
        r"\frac{1}{2}",
        r"\text{Evelyn}",
        r"(-\infty, 3]",
        "x^2+1",
        "3:4",
        r"\emptyset",
        "B",
        "#### 1,234",
        r"8\text{ min}",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        r"\text{June 20}",
        "-4 < x < 3",
        "(2,-1),(3,4)",
        "4210_{5}",
        "x=3, y=-4",
        "10!",
    ],
)
def test_gold_that_can_be_read_passes_d10(gold: str) -> None:
    check_gold(gold, row_id="1")


def test_box_after_an_announcement_is_read_once_d11() -> None:
    assert _is_correct("5", r"Answer: \boxed{5}")


def test_grade_works_in_every_thread_d12() -> None:
    gold = r"\frac{63}{400}"
    symbolic = r"\frac{63\pi}{400}"

    def both() -> bool:
        return _is_correct(gold, gold) and _is_correct(symbolic, r"\frac{126\pi}{800}")

    async def in_executor() -> bool:
        return await asyncio.get_running_loop().run_in_executor(None, both)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: both(), range(8)))
    assert both()
    assert asyncio.run(in_executor())


def test_hung_comparison_is_killed_and_blocks_nobody_d13() -> None:
    judge = SymbolicJudge(size=2, timeout_s=0.5)
    try:
        with ThreadPoolExecutor(9) as pool:
            towers = [
                pool.submit(grade, gold="1", answer=rf"\boxed{{{TOWER}}}", judge=judge)
                for _ in range(8)
            ]
            easy = pool.submit(judge.judge, gold=r"2\sqrt{2}", answer=r"\sqrt{8}")
            reasons = [tower.result().reason for tower in towers]
            verdict = easy.result()
        # Killed at the limit, or by the bound on its memory before that.
        assert set(reasons) <= {Reason.TIMEOUT, Reason.TOO_LARGE}
        assert Reason.TIMEOUT in reasons
        assert verdict is Verdict.EQUAL
        assert judge.status.killed == 8
    finally:
        judge.close()
        judge.close()


@pytest.mark.parametrize(
    ("gold", "answer", "reason", "path"),
    [
        ("x^2-1", "x^2+1", Reason.WRONG, Path.SYMBOLIC),
        ("x^2-1", "(x-1)(x+1)", Reason.CORRECT, Path.SYMBOLIC),
        ("1/2", "0.5", Reason.CORRECT, Path.EXACT),
        ("1/2", "0.51", Reason.WRONG, Path.EXACT),
        ("x^2-1", "x^2-1", Reason.CORRECT, Path.IDENTICAL),
        ("x^2-1", r"\frac{", Reason.UNREADABLE, Path.NONE),
        ("x^2-1", r"x^2 - + \sqrt", Reason.UNREADABLE, Path.SYMBOLIC),
        ("5", "", Reason.NO_ANSWER, Path.NONE),
        ("5", "first line\nsecond line", Reason.NO_ANSWER, Path.NONE),
    ],
)
def test_grade_says_which_comparison_decided_d14(
    gold: str, answer: str, reason: Reason, path: Path
) -> None:
    result = grade(gold=gold, answer=answer)
    assert (result.reason, result.path) == (reason, path)
    assert result.is_correct is (reason is Reason.CORRECT)


class _Contrary(SymbolicJudge):
    """Says that everything differs, so that only an overruling could make an answer right."""

    def judge(self, *, gold: str, answer: str | None) -> Verdict:
        return Verdict.DIFFERENT


def test_symbolic_no_is_not_overruled_d14() -> None:
    result = grade(gold="x^2-1", answer="x^2 - 1 + 0", judge=_Contrary())
    assert (result.is_correct, result.path) == (False, Path.SYMBOLIC)


def test_grade_takes_keywords_only_d15() -> None:
    with pytest.raises(TypeError):
        grade("1", "2")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("gold", "answer", "is_correct"),
    [
        ("12:00", "1:00", False),
        ("1:2:3", "1:4:9", False),
        ("3:4", "3/4", True),
        ("3/4", "3:4", True),
        ("3:4", "6:8", True),
        ("3:4", "4:3", False),
        ("1:2:3", "2:4:6", True),
        ("1:20", "2:40", False),  # times of day
        ("2:30 PM", "2:30 p.m.", True),
        ("2:30 PM", "2:30 a.m.", False),
        ("12:00", "12", False),
    ],
)
def test_times_and_ratios_d16(gold: str, answer: str, is_correct: bool) -> None:
    assert _is_correct(gold, answer) is is_correct


def test_perfect_format_with_a_wrong_value_is_wrong_d17() -> None:
    assert not _is_correct("5", r"Let me think. **Final Answer**: $\boxed{6}$")


@pytest.mark.parametrize(
    ("gold", "answer", "is_correct"),
    [
        # Percent: 50 %, 0.5, and 50 where that is no probability.
        (r"50\%", "0.5", True),
        (r"50\%", "50", True),
        (r"50\%", "50 percent", True),
        ("50", "50%", True),
        ("0.5", "50%", True),
        ("0.5", "0.5%", False),
        ("1", "1%", False),
        (r"50\%", "5", False),
        # Units.
        (r"10\text{ cm}", "10", True),
        ("10", "10 meters", True),
        (r"10\text{ cm}", "10 centimeters", True),
        (r"10\text{ cm}", "10 m", False),
        (r"10\text{ cm}^2", "10", True),
        (r"10\text{ cm}^2", "10 cm", False),
        (r"10\text{ cm}^2", "10 square centimeters", True),
        ("18", "18 apples", True),
        ("18", r"\$18", True),
        ("18", "$18$ dollars", True),
        ("90", r"90^\circ", True),
        ("5", "5x", False),
        # Numbers.
        ("1234", "1,234", True),
        ("1234", r"1{,}234", True),
        ("1234", r"1\,234", True),
        ("7/3", r"2\frac{1}{3}", True),
        ("7/3", "2 1/3", True),
        ("1/3", r"0.\overline{3}", True),
        ("1/6", r"0.1\overline{6}", True),
        ("320000", r"3.2\times10^{5}", True),
        ("0.5", ".5", True),
        (r"\frac12", r"\dfrac{2}{4}", True),
        ("5", "x = 5", True),
        ("6", r"2\cdot 3", False),  # still to be worked out
        ("72", "48+24", False),
        ("1024", "2^{10}", True),
        # Collections.
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,2\}", "(1,2)", False),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", "1, 2", True),
        ("(1,2)", "[1,2]", False),
        ("[1,2)", r"x\in[1,2)", True),
        ("[1,2)", "(1,2)", False),
        (r"[1,2)\cup(3,4]", r"(3,4]\cup[1,2)", True),
        (r"[1,2)\cup(3,4]", "[1,2)", False),
        (r"(-\infty,3)", r"\left(-\infty, 3\right)", True),
        (r"(\frac{1}{2}, \sqrt{2})", r"(0.5, \frac{2}{\sqrt{2}})", True),
        (r"\emptyset", r"\{\}", True),
        ("1, 2", "x=1 or x=2", True),
        # Formulas.
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
        (r"\sqrt{2}", "1.41421356", True),
        (r"\sqrt{2}", "1.414", False),
        ("sqrt(8)", r"2\sqrt2", True),
        ("3+5i", "5i+3", True),
        ("3+5i", "5+3i", False),
        (r"e^{i\pi}", "-1", True),
        ("2x+3y=6", "3y+2x=6", True),
        ("y=2x+1", "2x+1", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
        (r"\frac12", r"\frac12+x", False),
        ("4", "4!", False),
        ("24", "4!", True),
    ],
)
def test_rules_of_comparison(gold: str, answer: str, is_correct: bool) -> None:
    assert _is_correct(gold, answer) is is_correct


@pytest.mark.parametrize(
    ("gold", "answer", "is_correct"),
    [
        # A grouped number is no list; blanks group as well.
        ("1,234", "234, 1", False),
        ("1,234", "1 and 234", False),
        ("25,000", "0 and 25", False),
        ("1,234", "1234", True),
        ("1, 234", "1,234", True),
        ("0", "1 000", False),
        ("1000", "1 000", True),
        ("1 234 567", "1,234,567", True),
        ("7/3", "2 1/3", True),
        ("35", "5 7", False),
        # Two letters are variables, three or more a unit.
        ("4 ab", "4", False),
        ("2 xy", "2", False),
        ("5 ab", "5 xy", False),
        ("4ab", "4 ab", True),
        ("4 ab", "4ba", True),
        ("18", "18 cups of tea", True),
        ("5m", "5 m", True),
        ("5 meters", "5m", True),
        ("5m", "5", False),
        ("10 m", r"2\cdot 5m", False),
        # Units of speed and halves of the day are known ones.
        ("60 km/h", "60 mph", False),
        ("20 m/s", "20 km/h", False),
        ("20 m/s", "20 meters per second", True),
        ("60km/h", "60 kilometers per hour", True),
        ("60 km/h", "60", True),
        ("5 pm", "5 am", False),
        # An equation that does not hold says nothing.
        ("7", "5=7", False),
        ("7", r"\pi=7", False),
        ("7", "5+0i=7", False),
        ("7", "x+y=7", True),
        # Values that have names.
        ("x=1, y=2", "x=2, y=1", False),
        ("x=1, y=2", "y=2, x=1", True),
        ("x=1, y=2", "1, 2", True),
        ("x=1, y=2", "(1,2)", True),
        ("x=1, y=2", "2, 1", False),
        ("x=1 or x=2", "x=2, x=1", True),
        # Products of variables in any order; capitals may be an order or a name.
        ("xy", r"x\cdot y", True),
        ("xy", "yx", True),
        ("xy", "x y", True),
        ("mn", "nm", True),
        (r"x\cdot y", "yx", True),
        ("xy", r"x\cdot z", False),
        ("ACB", "ABC", False),
        ("no", "on", False),
        # Times of day.
        ("3:00 PM", "15:00", True),
        ("15:00", "3:00 p.m.", True),
        ("12:30 AM", "0:30", True),
        ("3:00 AM", "15:00", False),
        ("3:00 PM", "15:30", False),
        ("12:00 PM", "0:00", False),
    ],
)
def test_groups_units_names_products_and_times(gold: str, answer: str, is_correct: bool) -> None:
    assert _is_correct(gold, answer) is is_correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # 13 - 4 is 9, and 9 * 2 is 18.
        ("18", "(16-3-4)*2"),
        ("18", "(16-3-4)2"),
        ("18", r"{(16-3-4)}\cdot{2}"),
        ("18", r"|(16-3-4)\cdot 2|"),
        ("18", "9+9+0i"),
        ("18", r"\max(9+9,3)"),
        ("18", r"\gcd(18,36)"),
        ("18", "9 9/1"),  # no mixed number: 9 + 9
        ("18", r"9\frac{9}{1}"),
        ("18", r"\sqrt{81}\sqrt{4}"),
        ("18", r"9\cdot\sqrt{4}"),
        ("18", r"9\cdot 2=18+0"),
        ("444", r"12\cdot{37}"),
        ("444", r"12\cdot 37\cdot\pi^0"),
        ("444", r"12\pi^0 37"),
        ("444", r"\int_0^{12} 37 dx"),
        ("444", r"\sum_{k=1}^{12}37"),
        ("444", "12/(1/37)"),
        ("444", r"\frac{12}{\frac{1}{37}}"),
        ("444", r"\frac{12}{37^{-1}}"),
        ("444", r"12\sqrt{37^2}"),
        ("0.5", "(0.25)(2)"),
        ("0.5", r"0.25\cdot 2\cdot\pi^0"),
    ],
)
def test_a_result_that_is_still_to_be_worked_out_is_unfinished(gold: str, answer: str) -> None:
    assert grade(gold=gold, answer=answer).reason is Reason.UNFINISHED


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2", r"\frac{\sqrt{4}}{4}"),
        ("1/2", r"\sin(\pi/6)"),
        ("3", r"\log_2 8"),
        ("2", r"\sqrt[3]{8}"),
        ("-1", r"e^{i\pi}"),
        ("10", r"\binom{5}{2}"),
        ("-5", r"-\sqrt{25}"),
        ("7", r"\angle ABC = 7"),
        ("7", "2+5=7"),
        ("7/3", r"2\frac{1}{3}"),
        ("0.00001", "10^{-5}"),
        # Sums and products that cannot be worked out, for which a decimal is the rounded value.
        ("9.42477796", r"3\cdot\pi"),
        ("2.41421356", r"\sqrt{2}+1"),
        ("4.71238898", r"1.5\cdot\pi"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("1+2i", "2i+1"),
        ("2+3", "5"),
    ],
)
def test_single_values_and_what_cannot_be_worked_out_are_finished(gold: str, answer: str) -> None:
    assert _is_correct(gold, answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1/2", "1/2"),
        ("The answer is 3.5. I am sure.", "3.5"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "$5$"),
        ("**Answer:** 7", "7"),
        ("#### 1\nno\n#### 2", "2"),
        (r"#### 1 but \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),  # an unfinished box is none
        (r"\boxed 7.", "7"),
        (r"\boxed{a\{b}", None),  # its brace is open
        ("two\nlines", None),
        ("", None),
    ],
)
def test_extract_answer_finds_the_last_one(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@given(st.text(alphabet="\\boxed{}#$ 1a,.()[]^_\n*answeri:", max_size=80))
def test_grading_never_raises(text: str) -> None:
    grade(gold="5", answer=text, judge=_Contrary())
    grade(gold=text, answer="5", judge=_Contrary())


@pytest.mark.parametrize(
    "flood", ["\\boxed{", "answer is ", "answer\n\n", "####", "{[(", "1,234,", "9" * 50]
)
def test_floods_are_read_in_linear_time(flood: str) -> None:
    text = flood * (MAX_CHARS // len(flood))
    assert not grade(gold="5", answer=text, judge=_Contrary()).is_correct


def test_normalize_gives_one_spelling() -> None:
    assert normalize(r"$\left(\dfrac12,\ \sqrt3\right)$.") == r"(\frac{1}{2}, \sqrt{3})"


def test_judge_survives_the_thread_that_started_it() -> None:
    judge = SymbolicJudge(size=1)
    try:
        thread = threading.Thread(target=judge.judge, kwargs={"gold": "x", "answer": "x"})
        thread.start()
        thread.join()
        assert judge.judge(gold="x+1", answer="1+x") is Verdict.EQUAL
        assert judge.status.started == 1
    finally:
        judge.close()


@pytest.mark.parametrize(("size", "timeout_s"), [(0, 1.0), (1, 0.0)])
def test_judge_refuses_bounds_that_are_none(size: int, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SymbolicJudge(size=size, timeout_s=timeout_s)
