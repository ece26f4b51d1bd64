"""What `search/corpus-v0` makes of the rows of a file: support, twins, splits, null score."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgym.env import registry
from agentgym.envs.search.corpus.env import ENV_ID, Files, read_tasks
from agentgym.records import Task

ANA = ["Ana", ["Ana was born in Ro."]]
LIM = ["Lim", ["The Lim is a river."]]
Read = Callable[[Sequence[dict[str, Any]]], tuple[Task, ...]]


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "q.jsonl"


@pytest.fixture
def read(questions: Path) -> Read:
    def reader(rows: Sequence[dict[str, Any]]) -> tuple[Task, ...]:
        questions.write_text("\n".join(map(json.dumps, rows)))
        return read_tasks(Files(questions, ()))

    return reader


def _musique(row_id: str, question: str, *, is_answerable: bool) -> dict[str, Any]:
    return {
        "id": row_id,
        "question": question,
        "answer": "Ro",
        "answerable": is_answerable,
        "paragraphs": [
            {"title": "Ana", "paragraph_text": "Ana was born in Ro.", "is_supporting": True}
        ],
    }


def test_missing_support_is_left_out_with_one_warning(
    read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"answer": "Ro", "supporting_facts": [["Ana", 0], ["Ro", 0]]}
    tasks = read(
        [
            {"_id": "a", "question": "Where?", **row, "context": [LIM, ANA]},
            {"_id": "b", "question": "Where else?", **row, "context": [LIM]},
            {"_id": "c", "question": "?", **row, "context": [], "supporting_facts": [["Bo", 1]]},
        ]
    )
    # The corpus is Lim, Ana: of the support Ana is there for a and b, nothing for c.
    assert [task.payload["supporting"] for task in tasks] == [[1], [1], []]
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 supporting documents are not in the corpus, such as 'Ro' of the question 'a': "
        "the questions are scored without them"
    )


def test_unanswerable_twin_is_left_out(read: Read, caplog: pytest.LogCaptureFixture) -> None:
    tasks = read(
        [
            _musique("m1", "Where was Ana born?", is_answerable=True),
            _musique("m1", "Where was Ana born?", is_answerable=False),
            _musique("m2", "Where did Ana die?", is_answerable=False),
            # The same question under another id, written in another way.
            _musique("m3", "where was Ana  born", is_answerable=False),
        ]
    )
    assert [(task.id, task.answers) for task in tasks] == [
        ("corpus-m1", ("Ro",)),
        ("corpus-m2-unanswerable", ("unknown",)),
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith("2 questions without an answer are left out")


@pytest.mark.parametrize("is_answerable", [True, False])
def test_agent_is_told_of_unknown_where_it_is_an_answer(
    read: Read, questions: Path, is_answerable: bool
) -> None:
    read([_musique("m", "Where?", is_answerable=is_answerable)])
    env = registry.make(ENV_ID, questions=str(questions))
    told = env.system_prompt.splitlines()[0]
    ending = "" if is_answerable else ", or with 'unknown' if they do not say it"
    assert told == (
        f"Answer the question from the documents, with the name, number or words alone{ending}. "
        "After the answer cite the documents that say it by number, such as [3]."
    )


def test_question_is_in_one_split_whatever_its_answers(read: Read) -> None:
    # 40 questions, each with two answers in turn and written in two ways.
    rows = [
        {"id": f"{n}-{form}", "question": asked, "answer": answer, "context": [ANA]}
        for n in range(40)
        for form, asked, answer in (
            ("a", f"Which river is number {n}?", "Lim"),
            ("b", f"which river is  number {n}", "Una"),
        )
    ]
    splits = [task.split for task in read(rows)]
    assert splits[::2] == splits[1::2]
    assert set(splits) == {"train", "held_out"}


def test_null_score_counts_each_alias_of_a_task_once(read: Read, questions: Path) -> None:
    # "bob": 3 of 4 tasks, in the first of them twice; "a", "b", "c", "d": 1 each.
    rows = [["a", "Bob", "bob."], ["b", "Bob"], ["c", "The Bob"], ["d"]]
    read(
        [
            {"question": f"Question {n}?", "answers": answers, "context": [ANA]}
            for n, answers in enumerate(rows)
        ]
    )
    assert registry.make(ENV_ID, questions=str(questions)).null_score == 0.75
