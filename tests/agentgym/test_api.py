"""The Python door: rollout and evaluate with a text policy, and what resumption may change."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym import api
from agentgym.concurrency.interruption import run_interruptible
from agentgym.config import EnvSource, EvalConfig, InvalidInputError, OptimConfig, RunConfig
from agentgym.errors import ConfigError, EnvError, TaskError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.runs import RunFolder
from agentgym.runs.inputs import asked_evaluation


def test_door_is_open_from_the_package() -> None:
    # A module of the same name would hide the function as soon as it is imported.
    assert agentgym.rollout is api.rollout
    assert agentgym.evaluate is api.evaluate
    assert agentgym.train is api.train


def test_rollout_plays_tasks_in_groups() -> None:
    episodes = agentgym.rollout("math/arithmetic", "expert", tasks=3, group_size=2, seed=5)
    assert [episode.outcome for episode in episodes] == [1.0] * 6
    assert len({episode.task_id for episode in episodes}) == 3
    again = agentgym.rollout("math/arithmetic", "expert", tasks=3, group_size=2, seed=5)
    assert episodes == again


def test_rollout_takes_the_environments_arguments() -> None:
    episodes = agentgym.rollout("math/arithmetic-v0", "expert", tasks=4, env_kwargs={"levels": [3]})
    assert all("arithmetic-3" in episode.task_id for episode in episodes)
    assert all(episode.env_kwargs == {"levels": [3]} for episode in episodes)


def test_rollout_works_inside_a_running_loop() -> None:
    async def notebook() -> int:
        return len(agentgym.rollout("math/arithmetic", "expert", tasks=1))

    assert asyncio.run(notebook()) == 1


def test_rollout_of_an_unknown_environment_is_refused() -> None:
    with pytest.raises(TaskError, match="did you mean"):
        agentgym.rollout("math/arithmetik", "expert")


def test_evaluate_gives_means_with_intervals() -> None:
    settings = EvalConfig(tasks=12, attempts=2, temperature=0.5)
    result = agentgym.evaluate("math/arithmetic", "expert", settings=settings)
    assert (result.success.mean, result.success.count) == (1.0, 12)
    assert result.success.low < 1.0
    assert result.sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("env", "policy", "words"),
    [
        ("math/arithmetik", "expert", "did you mean"),
        ("math/arithmetic", "no/folder", "unknown policy"),
        ("math/arithmetic", "tiny:base", "knows nothing"),
    ],
)
def test_evaluate_refuses_wrong_input_in_one_report(env: str, policy: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        agentgym.evaluate(env, policy)
    assert len(caught.value.problems) == 1


def test_policies_are_opened_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    server = api.open_policy("openai:http://localhost:1/v1#small")
    assert server.id == "openai:small"
    assert "s3cret" not in repr(server)
    assert api.open_policy("human").id == "human"
    assert api.open_policy("expert").id == "expert"


def test_train_refuses_wrong_input_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        agentgym.train({"envs": ["math/arithmetik"], "stepps": 3}, optim__learning_ratee=1)
    assert len(caught.value.problems) == 3
    assert list(tmp_path.iterdir()) == []


def stored(path: Path, **fields: Any) -> Path:
    config = RunConfig(
        envs=(EnvSource(name="math/arithmetic"),), optim=OptimConfig(learning_rate=1e-4), **fields
    )
    RunFolder.create(path, config).close()
    return path


def test_resumed_run_may_take_more_steps_and_other_budgets(tmp_path: Path) -> None:
    path = stored(tmp_path / "run", steps=10)
    config = api.resumed_config(
        path, assignments=["steps=20", "budget.minutes=3", "eval.every=5", "checkpoint.keep=4"]
    )
    assert (config.steps, config.budget.minutes, config.eval.every) == (20, 3.0, 5)
    assert config.optim.learning_rate == 1e-4
    assert api.resumed_config(path).steps == 10


def test_resumed_run_may_not_become_another_one(tmp_path: Path) -> None:
    path = stored(tmp_path / "run")
    with pytest.raises(InvalidInputError) as caught:
        api.resumed_config(path, assignments=["optim.learning_rate=1e-3", "seed=4", "steps=7"])
    assert [problem.key for problem in caught.value.problems] == ["seed", "optim.learning_rate"]
    assert "(it is 0.0001, got 0.001)" in str(caught.value)


def test_resumed_run_asks_again_for_a_secret(tmp_path: Path) -> None:
    source = EnvSource(name="a/b-v0", kwargs={"api_key": "s3cret"})
    RunFolder.create(tmp_path / "run", RunConfig(envs=(source,))).close()
    with pytest.raises(InvalidInputError, match="'envs' holds a secret, which is not stored"):
        api.resumed_config(tmp_path / "run")
    config = api.resumed_config(tmp_path / "run", assignments=["envs=a/b-v0:api_key=s3cret"])
    assert config.envs == (source,)


def test_config_that_the_loader_would_advise_against_can_be_resumed(tmp_path: Path) -> None:
    # Made in Python: the warm start's settings are without effect, which is no reason to refuse.
    config = RunConfig(policy="some/folder", warmstart={"demos": 5})  # type: ignore[arg-type]
    RunFolder.create(tmp_path / "run", config).close()
    assert api.resumed_config(tmp_path / "run") == config


def test_resume_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        api.resumed_config(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_work_is_cancelled_so_that_it_can_save(number: signal.Signals) -> None:
    saved: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            saved.append("state")
            raise

    before = signal.getsignal(signal.SIGTERM)
    # As in a terminal: a script's background job, as these tests may be, ignores Ctrl-C.
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_interruptible(work())
    finally:
        signal.signal(signal.SIGINT, found)
    assert saved == ["state"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"group_size": 0}, "'group_size' must be at least 1 (got 0)"),
        ({"env_kwargs": {"level": 1}}, "takes no argument 'level'"),
    ],
)
def test_rollout_refuses_what_would_give_no_episode(arguments: dict[str, Any], words: str) -> None:
    from agentgym.envs.math.arithmetic_tasks import generate_task

    task = generate_task(0)
    with pytest.raises(InvalidInputError) as caught:
        agentgym.rollout("math/arithmetic-v0", "expert", tasks=[task], **arguments)
    assert words in str(caught.value)


# ------------------------------------------------------------------- forms of what is asked for


@pytest.mark.parametrize(
    "env",
    [
        ["math/arithmetic:levels=[1]", "games/wordle"],
        "math/arithmetic:levels=[1],games/wordle",
        {"math/arithmetic": {"levels": [1]}, "games/wordle": {}},
    ],
)
def test_environments_are_named_as_on_the_command_line_or_as_a_list_or_a_mapping(env: Any) -> None:
    asked = asked_evaluation(env, "expert", settings=None, limits=None, history=None)
    assert dict(asked.sources) == {"math/arithmetic": {"levels": [1]}, "games/wordle": {}}


@pytest.mark.parametrize("env", [3, ["math/arithmetic", 3], None])
def test_what_is_no_environment_is_said_in_one_sentence(env: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"environments are a name, .* \(got "):
        agentgym.evaluate(env, "expert")


async def answer_later(request: GenerateRequest) -> str:
    await asyncio.sleep(0)
    return request.messages[-1].content


def test_a_function_of_the_request_is_a_policy() -> None:
    settings = {"tasks": 2}
    result = agentgym.evaluate("math/arithmetic", lambda request: "no idea", settings=settings)
    assert (result.outcome.mean, result.counts["tasks"], result.counts["failed"]) == (0.0, 2, 0)
    (episode,) = agentgym.rollout("math/arithmetic", answer_later)
    assert episode.turns[0].completion.text == episode.initial_observation
    assert episode.turns[0].completion.policy_id == "answer_later"


@pytest.mark.parametrize("policy", [3, object(), ScriptedPolicy])
def test_what_is_no_policy_is_said_in_one_sentence(policy: Any) -> None:
    for call in (agentgym.evaluate, agentgym.rollout):
        with pytest.raises(InvalidInputError, match=r"a policy is its name, .* \(got "):
            call("math/arithmetic", policy)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": -3}, r"'eval.tasks' must be > 0 \(got -3\)"),
        ({"taks": 3}, "unknown setting 'eval.taks' .did you mean 'tasks'"),
        (3, r"must be an EvalConfig or a mapping .* \(got 3\)"),
    ],
)
def test_wrong_settings_are_said_as_on_the_command_line(settings: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        agentgym.evaluate("math/arithmetic", "expert", settings=settings)


def test_a_section_of_settings_says_itself_what_is_wrong() -> None:
    with pytest.raises(InvalidInputError) as caught:
        EvalConfig(tasks=-3, attempts="many")  # type: ignore[arg-type]
    assert str(caught.value).splitlines() == [
        "'tasks' must be > 0 (got -3)",
        "'attempts' must be a whole number (got 'many')",
    ]
    with pytest.raises(InvalidInputError, match=r"'optim.epochs' must be > 0 \(got 0\)"):
        RunConfig(optim={"epochs": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("env", [int, lambda: 3, 3])
def test_what_is_no_environment_cannot_be_checked(env: Any) -> None:
    with pytest.raises(EnvError, match=r"what is checked is the id of an environment, .* \(got"):
        agentgym.check_env(env)
