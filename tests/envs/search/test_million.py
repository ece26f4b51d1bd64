"""The world of a million documents, made and indexed as a stream."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from agentgym.env import registry
from agentgym.envs.search.graph.rendering import WorldCorpus
from agentgym.envs.search.graph.tasks import ENV_ID, generate_task, world_of
from agentgym.envs.search.retrieval.documents import DocumentFile


def _expert_outcome(env, documents: int, index: int) -> float:
    task = generate_task(index, split="held_out", levels=[3], documents=documents)
    env.reset(seed=0, options={"task": task})
    while True:
        _, _, terminated, _, info = env.step(env.expert())
        if terminated:
            return info["outcome"]


def test_documents_are_written_as_a_stream(tmp_path: Path) -> None:
    # 8,000 documents are 2.4 MB as text; were they held, the peak would be several times that.
    corpus = WorldCorpus(world_of(seed=0, documents=8_000, style="prose"))
    tracemalloc.start()
    DocumentFile.write(tmp_path, corpus.documents())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "documents.jsonl").stat().st_size > 1_600_000
    # What is held: names in the cache of the world (1.5 MB) and the offsets.
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "documents",
    [
        8_000,
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_expert_solves_questions_of_a_large_world(
    documents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path))
    env = registry.make(ENV_ID, levels=[3], documents=documents)
    assert sum(_expert_outcome(env, documents, index) for index in range(30)) == 30
