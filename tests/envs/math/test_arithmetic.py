"""`math/arithmetic-v0` and its suite."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import pytest

import agentgym
from agentgym.env.contract import Action
from agentgym.env.suites import check_leaks, load_suite
from agentgym.envs.math.arithmetic_tasks import generate_task
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, FinishReason, Task

ENV_ID = "math/arithmetic-v0"


def _task(expression: str, answer: str, level: int = 3) -> Task:
    payload = {"expression": expression, "level": level}
    return Task(id="t", env_id=ENV_ID, prompt=expression, answers=(answer,), payload=payload)


def _env(expression: str, answer: str, **kwargs: Any) -> Any:
    env = agentgym.make(ENV_ID, **kwargs)
    env.reset(seed=0, options={"task": _task(expression, answer)})
    return env


def _play_expert(env: Any) -> tuple[float, int]:
    for turn in range(1, 20):
        _, _, terminated, truncated, info = env.step(env.expert())
        if terminated or truncated:
            return info["outcome"], turn
    raise AssertionError("the expert does not end")


def test_episode_names_the_needed_calls() -> None:
    # 12+37*48: 37*48 = 1776, 12+1776 = 1788; the sum of 12 and 37 is of no use.
    env = _env("12+37*48", "1788")
    steps = [
        ("<calculator>12+37</calculator>", "49", 0.0),
        ("<calculator>37*48</calculator>", "1776", 1.0),
        ("<calculator>37*48</calculator>", "1776", 0.0),  # known already
        ("<calculator>12+1776</calculator>", "1788", 1.0),
    ]
    for action, observation, needed in steps:
        seen, reward, terminated, truncated, info = env.step(action)
        assert (seen, reward, terminated, truncated) == (observation, 0.0, False, False)
        assert info["rewards"] == {"needed_call": needed}
    _, reward, terminated, _, info = env.step("<answer>1788</answer>")
    assert (reward, terminated, info["outcome"]) == (1.0, True, 1.0)
    assert info["rewards"] == {"needed_call": 0.0}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("1788", 1.0),
        ("+1788", 1.0),
        ("3576/2", 1.0),
        ("1788.0", 1.0),
        ("-1788", 0.0),
        ("1787", 0.0),
        ("12+37*48", 0.0),  # the task itself is no answer
        ("12+1776", 0.0),
        ("", 0.0),
        ("1788 1788", 0.0),
        ("about 1788", 0.0),
        ("1/0", 0.0),
    ],
)
def test_answer_is_right_only_if_exact_d17(answer: str, outcome: float) -> None:
    env = _env("12+37*48", "1788")
    *_, info = env.step(f"<answer>{answer}</answer>")
    assert info.get("outcome", 0.0) == outcome


def test_fraction_answers_are_exact() -> None:
    env = _env("7/3-2", "1/3", levels=(4,))
    *_, info = env.step("<answer>0.3333333333</answer>")
    assert info["outcome"] == 0.0


def test_two_needed_calls_in_one_turn_count_as_one_turn() -> None:
    env = _env("12+37*48", "1788")
    action = "<calculator>37*48</calculator><calculator>12+1776</calculator>"
    *_, info = env.step(action)
    assert len(info["tool_results"]) == 2
    assert info["rewards"] == {"needed_call": 1.0}


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        ("<calculator>12+37*48</calculator>", ErrorKind.MODEL, "one operation"),
        ("<calculator>1/0</calculator>", ErrorKind.MODEL, "division by zero"),
        ("<calc>1+1</calc>", None, "calculator"),
        ("hello", ErrorKind.FORMAT, "calculator or answer"),
        ("", ErrorKind.FORMAT, "calculator or answer"),
    ],
)
def test_mistakes_are_short_observations(action: str, kind: ErrorKind | None, words: str) -> None:
    env = _env("12+37*48", "1788")
    observation, reward, terminated, truncated, info = env.step(action)
    assert words in observation
    assert len(observation) < 120
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["rewards"] == {"needed_call": 0.0}
    assert kind is None or info["error_kind"] is kind


def test_cut_off_call_is_not_executed_c4() -> None:
    env = _env("12+37*48", "1788")
    action = Action("<calculator>37*48</calculator>", finish_reason=FinishReason.LENGTH)
    observation, *_, info = env.step(action)
    assert "1776" not in observation
    assert info["error_kind"] is ErrorKind.TRUNCATED
    assert info["rewards"] == {"needed_call": 0.0}


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_expert_solves_every_level_within_its_limit(level: int) -> None:
    env = agentgym.make(ENV_ID, levels=[level])
    for seed in range(25):
        env.reset(seed=seed)
        outcome, turns = _play_expert(env)
        assert outcome == 1.0
        assert turns <= env.limits.max_turns


def test_expert_is_not_broken_by_wrong_calls() -> None:
    env = _env("12+37*48", "1788")
    for action in ("<calculator>12+37</calculator>", "nonsense", "<calculator>x</calculator>"):
        env.step(action)
    assert env.expert() == "<calculator>37*48</calculator>"
    assert _play_expert(env) == (1.0, 3)


def test_expert_answers_at_once_without_the_calculator() -> None:
    env = _env("12+37*48", "1788", tools=False)
    assert env.expert() == "<answer>1788</answer>"
    assert env.tools == ()
    assert "calculator" not in env.system_prompt
    observation, *_, info = env.step("<calculator>37*48</calculator>")
    assert "1776" not in observation
    assert info["rewards"] == {"needed_call": 0.0}


@pytest.mark.parametrize("gold", ["1788", "-3", "0", "7/3", "-100/7"])
def test_guess_is_wrong_and_looks_right(gold: str) -> None:
    env = _env("1+1", gold)
    guesses = {env.guess(random.Random(seed)) for seed in range(200)}
    assert f"<answer>{gold}</answer>" not in guesses
    assert len(guesses) >= 8
    assert all(g.startswith("<answer>") and g.endswith("</answer>") for g in guesses)
    assert env.guess(random.Random(7)) == env.guess(random.Random(7))
    assert max(len(g) for g in guesses) <= len(f"<answer>{gold}</answer>")


def test_reset_is_a_function_of_the_seed_j4() -> None:
    env = gymnasium.make(ENV_ID)
    first, info = env.reset(seed=7)
    env.step("<calculator>1+1</calculator>")
    random.seed(1)
    second, again = env.reset(seed=7)
    assert (first, info["task"]) == (second, again["task"])
    assert len({env.reset(seed=seed)[0] for seed in range(10)}) >= 2
    env.close()
    env.close()


def test_reset_forgets_the_progress_of_the_last_episode_j1() -> None:
    env = _env("12+37*48", "1788")
    env.step("<calculator>37*48</calculator>")
    env.reset(seed=0, options={"task": _task("12+37*48", "1788")})
    assert env.expert() == "<calculator>37*48</calculator>"


def test_prompt_is_short_and_holds_no_number() -> None:
    prompt = agentgym.make(ENV_ID).system_prompt
    assert len(prompt.split()) <= 30
    assert not any(character.isdigit() for character in prompt)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"levels": [9]}, r"'levels'"),
        ({"levels": []}, r"'levels'"),
        ({"tools": ["x"]}, "no tool 'x'"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        agentgym.make(ENV_ID, **kwargs)


def test_a_foreign_payload_is_refused() -> None:
    env = agentgym.make(ENV_ID)
    with pytest.raises(EnvError, match="payload"):
        env.reset(options={"task": Task(id="t", env_id=ENV_ID, prompt="1+1", answers=("2",))})


def test_suite_takes_its_levels_in_turn_without_leaks() -> None:
    suite = load_suite("math/arithmetic")
    held_out = suite.tasks("held_out", limit=300)
    assert [task.payload["level"] for task in held_out[:4]] == [1, 2, 3, 1]
    assert check_leaks(suite.tasks("train", limit=1500), held_out) == ()
    assert len({task.id for task in held_out}) == 300
    # The same whichever task was made first.
    assert suite.task("held_out", 7) == generate_task_of_suite(7)


def generate_task_of_suite(index: int) -> Task:
    import dataclasses

    task = generate_task(index, split="held_out", levels=(1, 2, 3))
    return dataclasses.replace(task, suite="math/arithmetic")


def test_suite_filters_levels() -> None:
    suite = load_suite("math/arithmetic", env_kwargs={"levels": [4, 5]})
    tasks = suite.tasks("train", limit=4)
    assert [task.payload["level"] for task in tasks] == [4, 5, 4, 5]
    assert tasks[0].env_kwargs == {"levels": [4, 5]}


def test_answers_of_every_task_are_accepted_and_wrong_ones_are_not() -> None:
    suite = load_suite("math/arithmetic", env_kwargs={"levels": [1, 2, 3, 4, 5]})
    env = agentgym.make(ENV_ID)
    for task in suite.tasks("held_out", limit=40):
        for action, outcome in ((env.protocol.format_answer(task.answers[0]), 1.0), (None, 0.0)):
            env.reset(seed=1, options={"task": task})
            *_, info = env.step(action or env.guess(random.Random(1)))
            assert info["outcome"] == outcome
