"""Rows as the known data sets write them. All content is made up for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.search.corpus.qa_files import (
    ContextCorpus,
    FileCorpus,
    corpus_of,
    read_document,
    read_questions,
)
from agentgym.envs.search.corpus.row_files import read_rows
from agentgym.envs.search.retrieval.documents import Document
from agentgym.errors import TaskError

A = Document(title="Ana", text="Ana was born in Ro. She wrote.")
B = Document(title="Ro", text="Ro is a town.")

HOTPOT = {
    "_id": "h1",
    "question": "Where was Ana born? ",
    "answer": "Ro",
    "type": "bridge",
    "supporting_facts": [["Ana", 0], ["Ana", 1], ["Ro", 0]],
    "context": [["Ana", ["Ana was born in Ro.", " She wrote."]], ["Ro", ["Ro is a town."]]],
}
HOTPOT_LISTS = {
    "id": "h2",
    "question": "Where was Ana born?",
    "answer": "Ro",
    "supporting_facts": {"title": ["Ana", "Ro"], "sent_id": [0, 0]},
    "context": {
        "title": ["Ana", "Ro"],
        "sentences": [["Ana was born in Ro.", " She wrote."], ["Ro is a town."]],
    },
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was Ana born?",
    "answer": "Ro",
    "answer_aliases": ["Ro town", "Ro"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Ana", "paragraph_text": A.text, "is_supporting": True},
        {"idx": 1, "title": "Ro", "paragraph_text": B.text, "is_supporting": False},
    ],
}
NQ_OPEN = {"question": "where was ana born", "answer": ["Ro", "the town of Ro"]}
NQ_DPR = {
    "question": "where was ana born",
    "answers": ["Ro"],
    "positive_ctxs": [{"title": "Ana", "text": A.text, "score": 9.0}],
    "hard_negative_ctxs": [{"title": "Ro", "text": B.text}],
}
FLASH = {"id": "test_0", "question": "where was ana born", "golden_answers": ["Ro", "Ro town"]}
TRIVIA = {"question_id": "t1", "question": "q?", "answer": {"value": "Ro", "aliases": ["Roe"]}}


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "row_id", "answers", "supporting"),
    [
        (HOTPOT, "h1", ("Ro",), (("Ana", A.text), ("Ro", B.text))),
        (HOTPOT_LISTS, "h2", ("Ro",), (("Ana", A.text), ("Ro", B.text))),
        (MUSIQUE, "2hop__1_2", ("Ro", "Ro town"), (("Ana", A.text),)),
        (NQ_DPR, "0", ("Ro",), (("Ana", A.text),)),
        (NQ_OPEN, "0", ("Ro", "the town of Ro"), ()),
        (FLASH, "test_0", ("Ro", "Ro town"), ()),
        (TRIVIA, "t1", ("Ro", "Roe"), ()),
    ],
)
def test_rows_are_read_as_they_are(
    tmp_path: Path, row: dict, row_id: str, answers: tuple, supporting: tuple
) -> None:
    (read,) = read_questions(_write(tmp_path / "q.jsonl", [row]))
    assert (read.id, read.answers, read.supporting) == (row_id, answers, supporting)
    assert read.question.endswith(("born?", "born", "q?"))
    assert read.documents in ((), (A, B))


def test_unanswerable_row_has_the_answer_unknown(tmp_path: Path) -> None:
    (read,) = read_questions(_write(tmp_path / "q.jsonl", [{**MUSIQUE, "answerable": False}]))
    assert read.answers == ("unknown",)


def test_array_of_rows_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps([HOTPOT, HOTPOT_LISTS]), encoding="utf-8")
    assert [row.id for row in read_questions(path)] == ["h1", "h2"]


def test_parquet_is_read_like_json_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = tmp_path / "q.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([HOTPOT_LISTS, NQ_OPEN | {"id": "n"}][:1]), path)
    json_lines = _write(tmp_path / "q.jsonl", [HOTPOT_LISTS])
    assert read_questions(path) == read_questions(json_lines)


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ({"id": "1", "title": "Ana", "text": "t"}, Document(title="Ana", text="t")),
        ({"_id": "1", "text": "t"}, Document(title="", text="t")),
        ({"id": "1", "contents": '"Ana"\nline\nline'}, Document(title="Ana", text="line\nline")),
        ({"title": "Ana", "contents": "all of it"}, Document(title="Ana", text="all of it")),
        ({"docid": 1, "title": None, "passage": "p"}, Document(title="", text="p")),
    ],
)
def test_documents_are_read_as_they_are(row: dict, document: Document) -> None:
    assert read_document(row) == document


def test_documents_beside_questions_are_a_corpus_each_once(tmp_path: Path) -> None:
    rows = read_questions(_write(tmp_path / "q.jsonl", [HOTPOT, HOTPOT_LISTS, MUSIQUE]))
    corpus = corpus_of((), rows)
    assert isinstance(corpus, ContextCorpus)
    assert list(corpus.documents()) == [A, B]


def test_files_of_documents_follow_each_other(tmp_path: Path) -> None:
    first = _write(tmp_path / "a.jsonl", [{"title": "Ana", "text": A.text}])
    second = _write(tmp_path / "b.jsonl", [{"title": "Ro", "text": B.text}])
    corpus = FileCorpus((first, second))
    assert list(corpus.documents()) == [A, B]
    assert corpus.key != FileCorpus((second, first)).key
    key = corpus.key
    second.write_text(json.dumps({"title": "Ro", "text": "x"}), encoding="utf-8")
    assert corpus.key != key


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q?"}, "row 0 is not a question: it has no answer"),
        ({"answer": "a"}, "it needs one of"),
        ({"question": "q?", "answer": []}, "it has no answer"),
        ({"question": "q?", "answer": " "}, "it has no answer"),
        ({"question": "q?", "answer": "a", "context": [["Ana"]]}, "row 0 is not a question"),
        ({"question": "q?", "answer": "a", "paragraphs": [{"title": "x"}]}, "needs one of"),
    ],
)
def test_row_that_is_no_question_is_named(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read_questions(_write(tmp_path / "q.jsonl", [row]))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"there is no file .*none\.jsonl"):
        read_questions(tmp_path / "none.jsonl")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "q?", "answer": "a"}\nnot json\n', encoding="utf-8")
    with pytest.raises(TaskError, match="line 2 is not JSON"):
        read_questions(bad)
    bad.write_text("[1]", encoding="utf-8")
    with pytest.raises(TaskError, match=r"row 0 is not an object \(got 1\)"):
        read_questions(bad)
    bad.write_text("3\n", encoding="utf-8")
    with pytest.raises(TaskError, match="line 1 is not an object"):
        read_questions(bad)
    csv = tmp_path / "rows.csv"
    csv.write_text("a,b", encoding="utf-8")
    with pytest.raises(TaskError, match=r"\.jsonl, \.json and \.parquet"):
        list(read_rows(csv))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(TaskError, match="holds no question"):
        read_questions(empty)


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="the id 'h1' is taken"):
        read_questions(_write(tmp_path / "q.jsonl", [HOTPOT, HOTPOT]))


def test_questions_without_documents_need_a_corpus(tmp_path: Path) -> None:
    rows = read_questions(_write(tmp_path / "q.jsonl", [NQ_OPEN]))
    with pytest.raises(TaskError, match="name the files of the corpus"):
        corpus_of((), rows)
