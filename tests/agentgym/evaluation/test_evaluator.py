"""Evaluation of a policy through the engine: own sampling, limits, failures, task choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from agentgym.config import EnvSource, EvalConfig, RunConfig
from agentgym.env.contract import Action, TextEnv
from agentgym.errors import ConfigError, InfrastructureError, TaskError
from agentgym.evaluation import EvaluationResult, choose_tasks, evaluate_policy, evaluation_sources
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, Sampling, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.rollouts.engine import Engine

ARITHMETIC: dict[str, dict[str, Any]] = {"math/arithmetic": {}}


class Echo(TextEnv):
    """Ends with 1 if the action is the task's answer; `stay` goes on for ever with outcome 0.5."""

    def start(self, task: Task, rng: Any) -> str:
        return task.prompt

    def respond(self, action: Action) -> Any:
        if action == "crash":
            raise InfrastructureError("the server is away")
        if action == "stay":
            return "more"
        assert self.task is not None
        return self.finish(outcome=float(action in self.task.answers))

    def outcome(self) -> float:
        return 0.5


class Says:
    """A text policy that answers with a function of the prompt, and remembers how it was asked."""

    id = "says"
    renderer = None
    version = 4
    max_context_tokens = None

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.samplings: list[Sampling] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.samplings.append(request.sampling)
        return Completion(text=self.answer(request.messages[-1].content))

    async def begin_episode(self, episode_id: str) -> None: ...

    async def end_episode(self, episode_id: str) -> None: ...

    async def aclose(self) -> None: ...


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    return Echo()


def tasks(*prompts: str) -> list[Task]:
    return [Task(id=p, env_id="x/echo-v0", prompt=p, answers=("yes",)) for p in prompts]


async def run(
    policy: Says, chosen: list[Task], *, limits: Limits | None = None, **settings: Any
) -> EvaluationResult:
    async with Engine(policy, max_concurrent=4, retries=1, make_env=make) as engine:
        return await evaluate_policy(
            engine, chosen, EvalConfig(**settings), name="e", limits=limits
        )


async def test_every_task_is_attempted_and_scored() -> None:
    policy = Says(lambda prompt: "yes" if prompt != "b" else "no")
    result = await run(policy, tasks("a", "b", "c"), attempts=2)
    assert result.task_means() == {"a": 1.0, "b": 0.0, "c": 1.0}
    assert result.counts["attempts"] == 6
    assert (result.policy_id, result.policy_version, result.attempts_per_task) == ("says", 4, 2)
    assert sorted(result.pass_at) == [1, 2]


async def test_sampling_is_evaluations_own_m8() -> None:
    policy = Says(lambda prompt: "yes")
    await run(policy, tasks("a"), temperature=0.3, max_new_tokens=7)
    (sampling,) = policy.samplings
    assert (sampling.temperature, sampling.max_new_tokens) == (0.3, 7)


async def test_episodes_are_drawn_alike_in_every_evaluation() -> None:
    policy = Says(lambda prompt: "yes")
    for _ in range(2):
        await run(policy, tasks("a", "b"), attempts=2)
    seeds = [sampling.seed for sampling in policy.samplings]
    assert sorted(map(str, seeds[:4])) == sorted(map(str, seeds[4:]))


async def test_failures_are_tried_again_and_then_count_zero_m3() -> None:
    policy = Says(lambda prompt: "crash" if prompt == "b" else "yes")
    result = await run(policy, tasks("a", "b"))
    assert len(policy.samplings) == 3  # b twice: one further try
    assert result.outcome.mean == 0.5
    assert result.counts["failed:infrastructure"] == 1
    assert [attempt.failure for attempt in result.attempts] == [None, "infrastructure"]


async def test_episode_that_a_limit_ends_has_the_environments_own_outcome_m10() -> None:
    result = await run(Says(lambda prompt: "stay"), tasks("a"), limits=Limits(max_turns=3))
    (attempt,) = result.attempts
    assert (attempt.outcome, attempt.turns, attempt.stop_reason) == (0.5, 3, "max_turns")


async def test_evaluation_reports_every_episode_and_score() -> None:
    seen: list[Trajectory] = []
    scored: list[Any] = []
    async with Engine(Says(lambda p: "yes"), max_concurrent=2, make_env=make) as engine:
        await evaluate_policy(
            engine,
            tasks("a", "b"),
            EvalConfig(),
            on_episode=seen.append,
            on_score=scored.append,
        )
    assert sorted(t.task_id for t in seen) == ["a", "b"]
    assert [score.outcome for score in scored] == [1.0, 1.0]


async def test_no_task_or_the_same_task_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="each once"):
        await run(Says(lambda p: "yes"), [])
    with pytest.raises(ConfigError, match="each once"):
        await run(Says(lambda p: "yes"), tasks("a", "a"))


def test_task_choice_is_the_same_for_equal_arguments_and_disjoint_from_training_m6() -> None:
    first = choose_tasks(ARITHMETIC, split="held_out", count=20, seed=1)
    assert first == choose_tasks(ARITHMETIC, split="held_out", count=20, seed=1)
    assert len({task.content_hash for task in first}) == 20
    training = choose_tasks(ARITHMETIC, split="train", count=500, seed=1)
    assert not {t.content_hash for t in first} & {t.content_hash for t in training}


def test_c5_each_source_gives_as_many_tasks_as_if_it_were_alone() -> None:
    sources = {"math/arithmetic": {}, "games/wordle": {}}
    chosen = choose_tasks(sources, split="held_out", count=3, seed=0)
    assert [task.suite for task in chosen] == ["math/arithmetic"] * 3 + ["games/wordle"] * 3
    assert chosen[:3] == choose_tasks(ARITHMETIC, split="held_out", count=3, seed=0)


def test_unknown_sources_and_splits_are_refused() -> None:
    with pytest.raises(ConfigError, match="got none"):
        choose_tasks({}, split="held_out", count=3, seed=0)
    with pytest.raises(TaskError, match="no split 'validation'"):
        choose_tasks(ARITHMETIC, split="validation", count=3, seed=0)


def test_run_is_evaluated_on_its_own_sources_unless_others_are_named() -> None:
    own = EnvSource(name="a/b", kwargs={"level": 2})
    assert evaluation_sources(RunConfig(envs=(own,))) == {"a/b": {"level": 2}}
    other = RunConfig(envs=(own,), eval=EvalConfig(suites=("c/d", "a/b")))
    assert evaluation_sources(other) == {"c/d": {}, "a/b": {"level": 2}}


def test_a_source_given_twice_with_other_arguments_is_refused_not_dropped() -> None:
    twice = (
        EnvSource(name="a/b", kwargs={"levels": [1]}),
        EnvSource(name="c/d"),
        EnvSource(name="a/b", kwargs={"levels": [4]}, weight=2.0),
    )
    with pytest.raises(ConfigError, match=r"'a/b' is given twice.*levels=\[4\].*eval\.suites"):
        evaluation_sources(RunConfig(envs=twice))
    # What is named for evaluation itself has the environment's own arguments.
    named = RunConfig(envs=twice, eval=EvalConfig(suites=("a/b", "c/d")))
    assert evaluation_sources(named) == {"a/b": {}, "c/d": {}}
