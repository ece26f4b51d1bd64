from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from agentgym.checks.env import check_env
from agentgym.env import registry
from agentgym.env.suites import load_suite
from agentgym.envs.search import env as search_env
from agentgym.envs.search.graph import env as graph
from agentgym.envs.search.graph.env import GraphEnv
from agentgym.envs.search.graph.rendering import WorldCorpus
from agentgym.envs.search.graph.tasks import ENV_ID, generate_task
from agentgym.envs.search.retrieval.index_cache import Library
from agentgym.envs.search.retrieval.retriever import Hit
from agentgym.errors import EnvError, InfrastructureError
from agentgym.records import ErrorKind, Task


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    # One for all tests of the run: an index of the same world is built once.
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path_factory.getbasetemp() / "search-cache"))


def _play(env: Any, task: Task) -> dict[str, Any]:
    """Return the last info of the expert's episode."""
    env.reset(seed=0, options={"task": task})
    for _ in range(env.limits.max_turns):
        _, _, terminated, _, info = env.step(env.expert())
        if terminated:
            return info
    raise AssertionError(f"{task.id} has no end")


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_expert_solves_200_held_out_tasks(level: int) -> None:
    documents = None if level < 3 else 2000
    env = registry.make(ENV_ID, levels=[level], documents=documents)
    for index in range(200):
        task = generate_task(index, split="held_out", levels=[level], documents=documents)
        info = _play(env, task)
        assert info["outcome"] == 1.0, task.id
        cited = float(level > 2)  # on the easy levels nobody is asked to
        assert info["rewards"] == {"exact_match": 1.0, "f1": 1.0, "citation": cited, "opened": 1.0}


def test_transcript_of_an_easy_episode_is_short() -> None:
    env = registry.make(ENV_ID, levels=[2])
    task = generate_task(0, levels=[2])
    seen = [env.reset(seed=0, options={"task": task})[0]]
    while True:
        observation, reward, terminated, _, info = env.step(env.expert())
        seen.append(observation)
        if terminated:
            break
    assert len(seen) == 6  # question, search, open, search, open, answer
    assert reward == 1.0
    assert info["outcome"] == 1.0
    assert max(map(len, seen)) < 120
    assert not any(task.answers[0] in text for text in seen[:4])


def test_agent_is_asked_to_cite_on_the_hard_levels_alone() -> None:
    easy = registry.make(ENV_ID, levels=[1, 2]).system_prompt
    hard = registry.make(ENV_ID, levels=[3], documents=500).system_prompt
    assert "[3]" not in easy
    assert "unknown" not in easy
    assert "such as [3]" in hard
    assert "or with 'unknown' if they do not say it" in hard
    assert "<answer>" in easy
    assert "<answer>" in hard


def test_snippets_and_five_results_on_the_hard_levels() -> None:
    env = registry.make(ENV_ID, levels=[3], documents=500)
    env.reset(seed=0, options={"task": generate_task(0, levels=[3], documents=500)})
    lines = env.step("<search>birth</search>")[0].splitlines()
    assert len(lines) == 5
    assert all(line.startswith("[") and ": " in line for line in lines)
    two = env.step("<search><query>birth</query><k>2</k></search>")[0].splitlines()
    assert two == lines[:2]


@pytest.mark.parametrize("k", [0, -1, 21])
def test_number_of_results_is_bounded(k: int) -> None:
    env = registry.make(ENV_ID)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(f"<search><query>a</query><k>{k}</k></search>")
    assert observation == f"'k' must be from 1 to 20 (got {k})"
    assert info["error_kind"] is ErrorKind.MODEL


@pytest.mark.parametrize("doc", [-1, 30, 10**9])
def test_unknown_document_is_the_agents_mistake(doc: int) -> None:
    env = registry.make(ENV_ID)
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step(f"<open>{doc}</open>")
    assert observation == f"there is no document {doc}: take a number from the results"
    assert (terminated, info["error_kind"]) == (False, ErrorKind.MODEL)


def test_parts_of_the_reward_are_separate() -> None:
    env = registry.make(ENV_ID, levels=[2])
    task = generate_task(0, levels=[2])
    (_, first), (_, second) = cast("list[tuple[str, int]]", task.payload["lookups"])
    env.reset(seed=0, options={"task": task})
    env.step(f"<open>{first}</open>")
    # One of two documents opened; cited one right and one wrong: F1 = 2*1 / (2+2).
    wrong = next(n for n in range(30) if n not in {first, second})
    _, reward, terminated, _, info = env.step(f"<answer>wrong [{second}] [{wrong}]</answer>")
    assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)
    assert info["rewards"] == {"exact_match": 0.0, "f1": 0.0, "citation": 0.5, "opened": 0.5}


class FailingRetriever:
    """Fails as often as it is told, then finds document 0."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        if self.failures:
            self.failures -= 1
            raise InfrastructureError("disk on fire")
        return (Hit(position=0, score=1.0),)

    def close(self) -> None:
        pass


class FailingEnv(GraphEnv):
    """Searches with a retriever that fails."""

    failures = 1

    def source_of(self, task: Task) -> search_env.Source:
        source = super().source_of(task)
        return search_env.Source(
            documents=source.documents, retriever=FailingRetriever(self.failures)
        )


def test_failed_search_is_told_apart_from_no_results_l8() -> None:
    env = FailingEnv()
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("<search>anything</search>")
    assert observation.startswith("Search failed")
    assert "No results" not in observation
    assert info["error_kind"] is ErrorKind.INFRASTRUCTURE
    assert info["tool_results"][0].error_kind is ErrorKind.INFRASTRUCTURE
    assert not terminated
    assert env.step("<search>anything</search>")[0].startswith("[0] ")


def test_second_failed_search_ends_the_episode_as_infrastructure_l8() -> None:
    env = FailingEnv()
    env.failures = 2
    env.reset(seed=0)
    env.step("<search>anything</search>")
    with pytest.raises(InfrastructureError, match="disk on fire"):
        env.step("<search>anything</search>")
    env.reset(seed=0)  # counted anew in each episode
    assert env.step("<search>anything</search>")[0].startswith("Search failed")


def test_no_results_is_said() -> None:
    env = registry.make(ENV_ID)
    env.reset(seed=0)
    observation, _, _, _, info = env.step("<search>zzzz</search>")
    assert (observation, info["error_kind"]) == ("No results.", None)


def test_without_retriever_nothing_can_be_found_or_opened() -> None:
    env = registry.make(ENV_ID, backend="none", levels=[2])
    env.reset(seed=0)
    assert env.step("<search>a</search>")[0] == "No results."
    assert env.step("<open>3</open>")[0].startswith("there is no document 3")


@pytest.mark.parametrize("backend", ["tantivy", "bm25s", "fts5"])
def test_every_back_end_supports_the_expert(backend: str) -> None:
    env = registry.make(ENV_ID, levels=[4], documents=500, backend=backend)
    for index in range(20):
        task = generate_task(index, split="held_out", levels=[4], documents=500)
        assert _play(env, task)["outcome"] == 1.0, task.id


def test_gold_answer_is_in_the_task_alone() -> None:
    env = registry.make(ENV_ID, levels=[2])
    task = generate_task(3, levels=[2])
    first, _ = env.reset(seed=0, options={"task": task})
    told = f"{env.system_prompt} {first} {[tool.description for tool in env.tools]}"
    assert task.answers[0] not in told
    end, *_ = env.step("<answer>wrong</answer>")
    assert task.answers[0] not in end


def test_closed_environment_lets_go_and_says_so() -> None:
    env = registry.make(ENV_ID)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(EnvError):
        env.step("<search>a</search>")
    env.reset(seed=0)
    assert env.step("<search>zzzz</search>")[0] == "No results."


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"levels": [6]}, "'levels' must be some of"),
        ({"backend": "lucene"}, "'backend' must be one of"),
        ({"results": 0}, "'results' must be from 1 to 20"),
        ({"documents": 5}, "'documents' must be a whole number from 20"),
        ({"documents": 0}, r"'documents' must be .* \(got 0\)"),
        ({"documents": 0, "levels": [3]}, r"'documents' must be .* \(got 0\)"),
        ({"documents": 20.5}, r"'documents' must be .* \(got 20.5\)"),
        ({"documents": 300.0, "levels": [3]}, r"'documents' must be .* \(got 300.0\)"),
    ],
)
def test_arguments_are_checked_first(kwargs: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        registry.make(ENV_ID, **kwargs)


@pytest.mark.parametrize("documents", [0, 20.5, True])
def test_tasks_of_no_size_are_refused(documents: Any) -> None:
    with pytest.raises(EnvError, match=rf"'documents' must be .* \(got {documents}\)"):
        generate_task(0, levels=[3], documents=documents)


def test_large_worlds_in_turn_are_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = graph.open_library

    def count(corpus: WorldCorpus, *, backend: str) -> Library:
        opened.append(corpus.world.size)
        return original(corpus, backend=backend)

    monkeypatch.setattr(graph, "open_library", count)
    env = registry.make(ENV_ID, levels=[3], documents=300)
    tasks = [generate_task(0, levels=[3], documents=size) for size in (300, 310)]
    for task in tasks * 3:
        assert _play(env, task)["outcome"] == 1.0
    assert opened == [300, 310]
    # Only the last four stay open, and the one in use is always among them.
    for size in (320, 330, 340, 300):
        assert _play(env, generate_task(0, levels=[3], documents=size))["outcome"] == 1.0
    assert opened == [300, 310, 320, 330, 340, 300]
    env.close()


def test_task_of_another_make_is_refused() -> None:
    env = registry.make(ENV_ID)
    with pytest.raises(EnvError, match="needs 'world' with seed, documents and style"):
        env.reset(seed=0, options={"task": Task(id="t", env_id=ENV_ID, payload={"world": 3})})
    for documents in (20.5, "many", None, 0):
        world = {"seed": 0, "documents": documents, "style": "plain"}
        with pytest.raises(EnvError, match=f"{documents}"):
            env.reset(
                seed=0, options={"task": Task(id="t", env_id=ENV_ID, payload={"world": world})}
            )


def test_guesses_of_the_null_player_are_seldom_right() -> None:
    env = registry.make(ENV_ID, levels=[2])
    suite = load_suite("search/graph-easy")
    right = 0.0
    for number, task in enumerate(suite.tasks("held_out", limit=300)):
        env.reset(seed=number, options={"task": task})
        right += env.step(env.guess(env.rng))[4]["outcome"]
    # One title of 30 is right: 0.033 expected, and 3.3 standard errors of 0.01 above it.
    assert right / 300 < 0.068


def test_contract_holds_on_the_shared_world(tmp_path: Path) -> None:
    report = check_env(ENV_ID, env_kwargs={"levels": [3, 4, 5], "documents": 500})
    assert report.raise_if_failed() is report
