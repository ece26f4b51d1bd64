"""Files of documents and of questions, as they are found: JSON lines or parquet.

In order: `read_rows`, documents (`FileCorpus`), questions (`QaRow`, `read_questions`). Rows are
read as the known data sets write them:

- documents: `title` and one of `text`, `contents`, `passage`, `paragraph_text`; without a title the
  first line of `contents` is it;
- answers: `answer` (text, or several), `answers`, `golden_answers`, `answer_aliases`;
  `answerable: false` (MuSiQue) makes the answer `unknown`;
- documents beside a question: `context` (HotpotQA, both its forms), `paragraphs` (MuSiQue),
  `positive_ctxs`, `negative_ctxs`, `hard_negative_ctxs` (NQ as DPR gives it);
- which of them support the answer: `supporting_facts`, `is_supporting`, `positive_ctxs`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.envs.search.dictd import DictdCorpus
from agentgym.envs.search.documents import Corpus, Document, content_hash
from agentgym.envs.search.questions import UNKNOWN
from agentgym.errors import MissingExtraError, TaskError

_ID_NAMES = ("id", "_id", "qid", "question_id", "example_id")
_QUESTION_NAMES = ("question", "query", "question_text")
_ANSWER_NAMES = ("answer", "answers", "golden_answers", "answer_aliases")
_TEXT_NAMES = ("text", "contents", "passage", "paragraph_text")
_CONTEXT_NAMES = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
_HASH_BYTES = 1 << 20


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, one at a time.

    Raises:
        TaskError: If the file is missing, of another kind, or a line is not a JSON object.
        MissingExtraError: If it is parquet, and the package that reads it is missing.
    """
    if not path.is_file():
        raise TaskError(f"there is no file {path}")
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    elif path.suffix in {".jsonl", ".json"}:
        yield from _read_json(path)
    else:
        raise TaskError(f"{path}: rows are read from .jsonl, .json and .parquet files")


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the file {path}", extra="parquet") from error
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _read_json(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        # HotpotQA's own files are one array.
        if lines.read(1) == "[":
            lines.seek(0)
            yield from json.load(lines)
            return
        lines.seek(0)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskError(f"{path} line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise TaskError(f"{path} line {number} is not an object (got {line[:60]!r})")
            yield row


# -- documents ---------------------------------------------------------------------------------


def read_document(row: Mapping[str, Any]) -> Document:
    """Return the document of a row.

    Raises:
        TaskError: If it holds no text.
    """
    name = next((name for name in _TEXT_NAMES if isinstance(row.get(name), str)), None)
    if name is None:
        raise TaskError(f"a document needs one of {_TEXT_NAMES} (got {sorted(row)!r})")
    text, title = str(row[name]), row.get("title")
    if title is None and name == "contents":
        title, _, text = text.partition("\n")
        title = title.strip('"')
    return Document(title=str(title or ""), text=text)


@dataclass(frozen=True, slots=True)
class FileCorpus:
    """The documents of files, one after the other: rows, or dictionaries by their `.index`."""

    paths: Sequence[Path]

    @property
    def key(self) -> str:
        """Hash of the files."""
        digest = hashlib.sha256()
        for path in self.paths:
            digest.update(path.suffix.encode())
            digest.update(self._key_of(path).encode())
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yield every document, in order."""
        for path in self.paths:
            if path.suffix == ".index":
                yield from DictdCorpus((path.with_suffix(""),)).documents()
            else:
                yield from map(read_document, read_rows(path))

    @staticmethod
    def _key_of(path: Path) -> str:
        if path.suffix == ".index":
            return DictdCorpus((path.with_suffix(""),)).key
        return _file_hash(path, stamp(path))


def stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written: its size and time.

    Raises:
        TaskError: If there is no such file.
    """
    if not path.is_file():
        raise TaskError(f"there is no file {path}")
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _file_hash(path: Path, state: tuple[int, int]) -> str:
    # Every environment asks; a corpus of gigabytes is read for it once.
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()


# -- questions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QaRow:
    """One question.

    Example:
        QaRow(id="5a7a", question="Who wrote it?", answers=("Ana Halberg",), documents=(),
              supporting=(("The Silent Harbor", None),))
    """

    id: str
    """Of the row, or its number."""
    question: str
    """As it is asked."""
    answers: tuple[str, ...]
    """Any of them is right."""
    documents: tuple[Document, ...] = ()
    """Documents that stand beside the question."""
    supporting: tuple[tuple[str, str | None], ...] = ()
    """Title, and text where it is known, of the documents that support the answer."""


def read_questions(path: Path) -> tuple[QaRow, ...]:
    """Return the questions of a file.

    Raises:
        TaskError: If a row is not a question with an answer, or two have one id.
    """
    rows: dict[str, QaRow] = {}
    for number, row in enumerate(read_rows(path)):
        try:
            question = _read_question(row, number)
        except (TaskError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TaskError(f"{path} row {number} is not a question: {error}") from error
        if question.id in rows:
            raise TaskError(f"{path} row {number}: the id {question.id!r} is taken")
        rows[question.id] = question
    if not rows:
        raise TaskError(f"{path} holds no question")
    return tuple(rows.values())


def _read_question(row: Mapping[str, Any], number: int) -> QaRow:
    asked = next((row[name] for name in _QUESTION_NAMES if row.get(name)), None)
    if not isinstance(asked, str):
        raise TaskError(f"it needs one of {_QUESTION_NAMES} (got {sorted(row)!r})")
    named = next((row[name] for name in _ID_NAMES if row.get(name) is not None), number)
    answers = (UNKNOWN,) if row.get("answerable") is False else _read_answers(row)
    if not answers:
        raise TaskError(f"it has no answer in {_ANSWER_NAMES}")
    documents, supporting = _read_context(row)
    return QaRow(
        id=str(named),
        question=asked.strip(),
        answers=answers,
        documents=documents,
        supporting=supporting,
    )


def _read_answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for name in _ANSWER_NAMES:
        value = row.get(name)
        if isinstance(value, Mapping):
            # TriviaQA: {"value": ..., "aliases": [...]}
            value = [value.get("value"), *value.get("aliases", ())]
        values = value if isinstance(value, list | tuple) else [value]
        found += [str(text).strip() for text in values if text is not None]
    return tuple(text for text in dict.fromkeys(found) if text)


def _read_context(
    row: Mapping[str, Any],
) -> tuple[tuple[Document, ...], tuple[tuple[str, str | None], ...]]:
    documents: list[Document] = list(_hotpot_documents(row.get("context")))
    texts = {document.title: document.text for document in documents}
    supporting: list[tuple[str, str | None]] = [
        (title, texts.get(title)) for title in _hotpot_titles(row.get("supporting_facts"))
    ]
    for paragraph in row.get("paragraphs") or ():
        document = read_document(paragraph)
        documents.append(document)
        if paragraph.get("is_supporting"):
            supporting.append((document.title, document.text))
    for name in _CONTEXT_NAMES:
        for passage in row.get(name) or ():
            document = read_document(passage)
            documents.append(document)
            if name == "positive_ctxs":
                supporting.append((document.title, document.text))
    return tuple(documents), tuple(dict.fromkeys(supporting))


def _hotpot_documents(context: Any) -> Iterator[Document]:
    """Yield documents of `[[title, [sentence, ...]], ...]` or of two lists by name."""
    if isinstance(context, Mapping):
        context = list(zip(context["title"], context["sentences"], strict=True))
    for title, sentences in context or ():
        yield Document(title=str(title), text="".join(sentences).strip())


def _hotpot_titles(facts: Any) -> list[str]:
    """Return the titles of `[[title, sentence number], ...]` or of two lists by name, each once."""
    titles = facts["title"] if isinstance(facts, Mapping) else [fact[0] for fact in facts or ()]
    return list(dict.fromkeys(str(title) for title in titles))


@dataclass(frozen=True, slots=True)
class ContextCorpus:
    """The documents that stand beside questions, each once."""

    rows: Sequence[QaRow]

    @property
    def key(self) -> str:
        """Hash of the content."""
        return content_hash(self.documents())

    def documents(self) -> Iterator[Document]:
        """Yield every document, in the order of the questions."""
        yield from dict.fromkeys(document for row in self.rows for document in row.documents)


def corpus_of(paths: Sequence[Path], rows: Sequence[QaRow]) -> Corpus:
    """Return the corpus of files; of the documents beside the questions where there are none.

    Raises:
        TaskError: If there are neither.
    """
    if paths:
        return FileCorpus(tuple(paths))
    if not any(row.documents for row in rows):
        raise TaskError("the questions hold no documents: name the files of the corpus")
    return ContextCorpus(tuple(rows))
