"""Files as they are found: marks, arrays, broken ones, and values of tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.search.corpus.qa_files import FileCorpus, read_questions
from agentgym.envs.search.corpus.row_files import read_rows
from agentgym.envs.search.retrieval.documents import Document
from agentgym.errors import TaskError

# A question, and a document.
ROW = {"id": "q", "question": "Where?", "answer": "Ro", "text": "t"}
LINE = json.dumps(ROW).encode()
BOM = b"\xef\xbb\xbf"


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        BOM + LINE,
        BOM + LINE + b"\r\n\r\n",
        BOM + b"[" + LINE + b"]",
        b" \n\t [\n" + LINE + b"\n]\n",
        b"\n \n" + LINE,
    ],
)
def test_rows_are_read_behind_marks_and_spaces(tmp_path: Path, content: bytes) -> None:
    assert list(read_rows(_write(tmp_path / "q.jsonl", content))) == [ROW]


def test_corpus_is_read_behind_a_mark(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", BOM + b'{"title": "Ana", "text": "t"}\n')
    assert list(FileCorpus((path,)).documents()) == [Document(title="Ana", text="t")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[\n" + LINE + b",\n" + LINE, r"q\.json line 3 is not JSON"),
        (b"[" + LINE + b",\n" + b'{"question": "caf\xe9"}]', r"q\.json line 2 is not UTF-8"),
        (LINE + b"\n" + b'{"question": "caf\xe9"}', r"q\.json line 2 is not UTF-8"),
        ("é".encode("utf-16"), r"q\.json line 1 is not UTF-8"),
        (b'["Ana was born.", "Ro"]', r"q\.json row 0 is not an object \(got 'Ana was born\.'\)"),
        (b"[" + LINE + b", 3]", r"q\.json row 1 is not an object \(got 3\)"),
        (b"[" + b"9" * 5000 + b"]", r"q\.json is not JSON that can be read"),
    ],
)
def test_broken_file_is_named_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = _write(tmp_path / "q.json", content)
    with pytest.raises(TaskError, match=message):
        read_questions(path)
    with pytest.raises(TaskError, match=message):
        list(FileCorpus((path,)).documents())


def test_document_without_text_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", b'{"text": "t"}\n{"title": "Ana", "body": "t"}\n')
    with pytest.raises(TaskError, match=r"c\.jsonl row 1: a document needs one of .*'body'"):
        list(FileCorpus((path,)).documents())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "question": "Wh\ud800ere?"}, "row 0 is not a question: .*lone surrogate"),
        ({**ROW, "answer": "R\udfffo"}, "row 0 is not a question: .*lone surrogate"),
        ({**ROW, "question": " \n"}, "row 0 is not a question: its question is blank"),
        ({**ROW, "answer": [["Ro", "Roe"]]}, r"a text or a number is needed \(got \['Ro', 'Roe'\]"),
        ({**ROW, "answer": [{"text": "Ro"}]}, "a text or a number is needed"),
        ({**ROW, "answer": math.nan}, "row 0 is not a question: it has no answer"),
        ({**ROW, "supporting_facts": [[]]}, "row 0 is not a question"),
        ({**ROW, "answer": "[3]"}, r"row 0 is not a question: the answer '\[3\]' can never"),
        ({**ROW, "answer": "\u200b"}, "row 0 is not a question: the answer .* can never"),
    ],
)
def test_value_that_is_no_text_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = _write(tmp_path / "q.jsonl", json.dumps(row).encode())
    with pytest.raises(TaskError, match=message):
        read_questions(path)


@pytest.mark.parametrize(
    ("answer", "answers"),
    [
        (1999.0, ("1999",)),
        (0.5, ("0.5",)),
        (1999, ("1999",)),
        ([math.nan, "Ro"], ("Ro",)),
        ("???", ("???",)),
        ({"value": "Ro", "aliases": "Roe"}, ("Ro", "Roe")),
        ({"value": "Ro", "aliases": None}, ("Ro",)),
    ],
)
def test_answers_are_the_text_of_the_values(
    tmp_path: Path, answer: Any, answers: tuple[str, ...]
) -> None:
    path = _write(tmp_path / "q.jsonl", json.dumps({**ROW, "id": 7.0, "answer": answer}).encode())
    (read,) = read_questions(path)
    assert (read.id, read.answers) == ("7", answers)


def test_bytes_of_parquet_are_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "q.parquet"
    row = {"question": b"Where?", "answer": [b"Paris"], "context": [{"title": b"x"}]}
    parquet.write_table(pyarrow.Table.from_pylist([row, {**row, "answer": [b"\xff"]}]), path)
    first, second = read_rows(path)
    assert first == {"question": "Where?", "answer": ["Paris"], "context": [{"title": "x"}]}
    assert second["answer"] == [b"\xff"]
    with pytest.raises(TaskError, match=r"a text or a number is needed \(got b'\\xff'\)"):
        read_questions(_without_context(path))


def _without_context(path: Path) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(parquet.read_table(path).drop_columns(["context"]), path)
    return path


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "q.parquet"
    with pytest.raises(TaskError, match=r"q\.parquet cannot be read as parquet from row 0 on"):
        list(read_rows(_write(path, b"PAR1 and so on")))
    parquet.write_table(pyarrow.Table.from_pylist([ROW] * 1000), path)
    with pytest.raises(TaskError, match=r"q\.parquet cannot be read as parquet from row 0 on"):
        list(read_rows(_write(path, path.read_bytes()[:-200])))
