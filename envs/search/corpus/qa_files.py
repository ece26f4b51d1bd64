"""Documents and questions in the rows of files, as they are found.

In order: documents (`FileCorpus`), questions (`QaRow`, `read_questions`); the files themselves are
read in `agentgym.envs.search.corpus.row_files`. Rows are read as the known data sets write them:

- documents: `title` and one of `text`, `contents`, `passage`, `paragraph_text`; without a title the
  first line of `contents` is it;
- answers: `answer` (text, or several), `answers`, `golden_answers`, `answer_aliases`;
  `answerable: false` (MuSiQue) makes the answer `unknown`, and ends the id with `-unanswerable`,
  since the row of the same question with an answer has the same id;
- documents beside a question: `context` (HotpotQA, both its forms), `paragraphs` (MuSiQue),
  `positive_ctxs`, `negative_ctxs`, `hard_negative_ctxs` (NQ as DPR gives it);
- which of them support the answer: `supporting_facts`, `is_supporting`, all of them together;
  `positive_ctxs`, each of them alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.envs.search import scoring
from agentgym.envs.search.corpus.dictd import DictdCorpus
from agentgym.envs.search.corpus.row_files import read_rows
from agentgym.envs.search.graph.questions import UNKNOWN
from agentgym.envs.search.retrieval.documents import Corpus, Document, content_hash
from agentgym.errors import TaskError

_ID_NAMES = ("id", "_id", "qid", "question_id", "example_id")
_QUESTION_NAMES = ("question", "query", "question_text")
_ANSWER_NAMES = ("answer", "answers", "golden_answers", "answer_aliases")
_TEXT_NAMES = ("text", "contents", "passage", "paragraph_text")
_CONTEXT_NAMES = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
_HASH_BYTES = 1 << 20
_SHOWN_CHARS = 60
"""Of a value that cannot be read, in a message."""


# -- documents ---------------------------------------------------------------------------------


def read_document(row: Mapping[str, Any]) -> Document:
    """Return the document of a row.

    Raises:
        TaskError: If it holds no text.
    """
    name = next((name for name in _TEXT_NAMES if isinstance(row.get(name), str)), None)
    if name is None:
        raise TaskError(f"a document needs one of {_TEXT_NAMES} (got {sorted(row)!r})")
    text, title = str(row[name]), _text_of(row.get("title"))
    if title is None and name == "contents":
        title, _, text = text.partition("\n")
        title = title.strip('"')
    return Document(title=title or "", text=text)


def _text_of(value: Any) -> str | None:
    """Return a text or number of a row as text; None where it is missing.

    Raises:
        TaskError: If it is a list, an object or bytes: the text of those is nobody's answer.
    """
    if isinstance(value, list | tuple | Mapping | bytes):
        raise TaskError(f"a text or a number is needed (got {repr(value)[:_SHOWN_CHARS]})")
    if isinstance(value, float):
        # Tables write a missing value as NaN, and whole numbers beside one as 1999.0.
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else str(value)
    return None if value is None else str(value)


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
        """Yield every document, in order.

        Raises:
            TaskError: If a file cannot be read, or a row holds no text.
        """
        for path in self.paths:
            if path.suffix == ".index":
                yield from DictdCorpus((path.with_suffix(""),)).documents()
            else:
                yield from self._documents_of(path)

    @staticmethod
    def _documents_of(path: Path) -> Iterator[Document]:
        for number, row in enumerate(read_rows(path)):
            try:
                document = read_document(row)
            except TaskError as error:
                raise TaskError(f"{path} row {number}: {error}") from error
            yield document

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
    is_one_enough: bool = False
    """Whether each supporting document holds the answer by itself."""


def read_questions(path: Path) -> tuple[QaRow, ...]:
    """Return the questions of a file.

    Raises:
        TaskError: If a row is not a question with answers that can be given, or two have one id.
    """
    rows: dict[str, QaRow] = {}
    for number, row in enumerate(read_rows(path)):
        try:
            question = _read_question(row, number)
        except (TaskError, TypeError, ValueError, LookupError, AttributeError) as error:
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
    if not asked.strip():
        raise TaskError(f"its question is blank (got {asked!r})")
    named = next((text for name in _ID_NAMES if (text := _text_of(row.get(name)))), str(number))
    is_answerable = row.get("answerable") is not False
    answers = _read_answers(row) if is_answerable else (UNKNOWN,)
    if not answers:
        raise TaskError(f"it has no answer in {_ANSWER_NAMES}")
    for text in (named, asked, *answers):
        # Half of a pair, which JSON may hold, is no sign, and cannot be hashed or written.
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise TaskError(f"{text!r} holds a lone surrogate")
    documents, supporting = _read_context(row)
    return QaRow(
        id=named if is_answerable else f"{named}-unanswerable",
        question=asked.strip(),
        answers=answers,
        documents=documents,
        supporting=supporting,
        is_one_enough=bool(supporting) and not _has_proof(row),
    )


def _read_answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    values = [value for name in _ANSWER_NAMES for value in _values(row.get(name))]
    texts = [text.strip() for value in values if (text := _text_of(value)) is not None]
    answers = tuple(text for text in dict.fromkeys(texts) if text)
    for gold in answers:
        given, _ = scoring.split_citations(gold)
        if scoring.exact_match(given, [gold]) != 1.0:
            raise TaskError(f"the answer {gold!r} can never be given: it is read as {given!r}")
    return answers


def _values(answer: Any) -> list[Any]:
    """Return what an answer consists of: itself, or several."""
    if isinstance(answer, Mapping):
        # TriviaQA: {"value": ..., "aliases": [...]}
        return [answer.get("value"), *_values(answer.get("aliases"))]
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def _has_proof(row: Mapping[str, Any]) -> bool:
    """Return whether documents other than `positive_ctxs` support the answer."""
    marked = (paragraph.get("is_supporting") for paragraph in row.get("paragraphs") or ())
    return bool(_hotpot_titles(row.get("supporting_facts"))) or any(marked)


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
