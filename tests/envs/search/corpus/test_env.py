from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.env import registry
from agentgym.env.suites import load_suite
from agentgym.envs.search.corpus import env as corpus
from agentgym.envs.search.corpus.env import Files, read_tasks
from agentgym.errors import EnvError, TaskError

DOCUMENTS = [
    {"id": "a", "title": "Ana", "text": "Ana Halberg was born in Ro."},
    {"id": "b", "title": "Ro", "text": "Ro is a town on the river Lim."},
    {"id": "c", "title": "Lim", "text": "The Lim is a river."},
]
QUESTIONS = [
    {
        "id": f"q{n}",
        "question": f"Question {n}: on which river is the birthplace of Ana?",
        "answer": "the Lim",
        "supporting_facts": [["Ana", 0], ["Ro", 0]],
    }
    for n in range(20)
]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    paths = {"questions": QUESTIONS, "corpus": DOCUMENTS}
    for name, rows in paths.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {name: str(tmp_path / f"{name}.jsonl") for name in paths}


def _tasks(files: dict[str, str]) -> Any:
    return read_tasks(Files(Path(files["questions"]), (Path(files["corpus"]),)))


def test_question_of_a_file_is_answered_from_the_files(files: dict[str, str]) -> None:
    env = registry.make(corpus.ENV_ID, **files)
    task = _tasks(files)[0]
    first, _ = env.reset(seed=0, options={"task": task})
    assert first == QUESTIONS[0]["question"]
    # "Lim" stands in documents 1 and 2, in the title of the second one.
    assert env.step("<search>lim</search>")[0] == (
        "[2] Lim: The Lim is a river.\n[1] Ro: Ro is a town on the river Lim."
    )
    assert env.step("<open>0</open>")[0] == "Ana\nAna Halberg was born in Ro."
    _, reward, terminated, _, info = env.step("<answer>Lim. [0] [2]</answer>")
    assert (reward, terminated) == (1.0, True)
    # supporting {0, 1}; cited {0, 2}: 2*1 / (2+2); opened one of two
    assert info["rewards"] == {"exact_match": 1.0, "f1": 1.0, "citation": 0.5, "opened": 0.5}


@pytest.mark.parametrize("backend", ["tantivy", "bm25s", "fts5"])
def test_expert_follows_the_supporting_documents(files: dict[str, str], backend: str) -> None:
    env = registry.make(corpus.ENV_ID, **files, backend=backend)
    for task in _tasks(files)[:5]:
        env.reset(seed=0, options={"task": task})
        ends = [env.step(env.expert()) for _ in range(5)]  # search, open, search, open, answer
        info = ends[-1][4]
        assert [end[2] for end in ends] == [False] * 4 + [True]
        assert info["rewards"] == {"exact_match": 1.0, "f1": 1.0, "citation": 1.0, "opened": 1.0}


def test_split_goes_by_content_whatever_the_seeds_m6(files: dict[str, str]) -> None:
    by_split = {
        split: {t.content_hash for t in _tasks(files) if t.split == split}
        for split in ("train", "held_out")
    }
    assert by_split["train"]
    assert by_split["train"].isdisjoint(by_split["held_out"])
    env = registry.make(corpus.ENV_ID, **files)
    # 10,000 seeds in a small set of tasks still draw no held-out one.
    drawn = {env.reset(seed=seed)[1]["task"].content_hash for seed in range(300)}
    assert drawn <= by_split["train"]


def test_null_score_is_the_most_frequent_answer(files: dict[str, str]) -> None:
    assert registry.make(corpus.ENV_ID, **files).null_score == 1.0
    assert registry.make(corpus.ENV_ID).null_score < 0.1


def test_example_is_there_without_files() -> None:
    suite = load_suite("search/corpus")
    assert suite.size("train") == 160 - (suite.size("held_out") or 0)
    assert (suite.size("held_out") or 0) >= 10


def test_corpus_of_other_questions_is_refused(files: dict[str, str]) -> None:
    Path(files["corpus"]).write_text(json.dumps(DOCUMENTS[2]))
    message = r"2 supporting documents are not in the corpus, such as 'Ana' .*'q0', nor is any"
    with pytest.raises(TaskError, match=message):
        registry.make(corpus.ENV_ID, **files)


def test_corpus_without_questions_is_refused(files: dict[str, str]) -> None:
    with pytest.raises(EnvError, match="'corpus' needs 'questions'"):
        registry.make(corpus.ENV_ID, corpus=files["corpus"])


def test_changed_file_is_read_again(files: dict[str, str]) -> None:
    before = _tasks(files)
    Path(files["questions"]).write_text("\n".join(map(json.dumps, QUESTIONS[:3])))
    assert len(before) == 20
    assert len(_tasks(files)) == 3
