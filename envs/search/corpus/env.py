"""`search/corpus-v0`: questions from a file, answered from a corpus in files.

Without files it reads an example: 400 documents and 160 questions of a generated world.
"""

from __future__ import annotations

import functools
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from agentgym import seeding
from agentgym.envs.search import scoring
from agentgym.envs.search.corpus.qa_files import QaRow, corpus_of, read_questions, stamp
from agentgym.envs.search.env import ALONE, Clue, SearchEnv, Source
from agentgym.envs.search.graph.questions import UNKNOWN
from agentgym.envs.search.graph.rendering import WorldCorpus
from agentgym.envs.search.graph.tasks import generate_task, world_of
from agentgym.envs.search.retrieval.documents import Corpus, Documents
from agentgym.envs.search.retrieval.index_cache import Library, check_backend, open_library
from agentgym.errors import EnvError, TaskError
from agentgym.records import Json, Task
from agentgym.records.limits import Limits

logger = logging.getLogger(__name__)

ENV_ID = "search/corpus-v0"
HELD_OUT_SHARE = 8
"""One question in so many is held out, by its words."""
_FIRST_WORDS = 8
"""Of a text, in a query for it: enough to tell passages of one title apart."""
_EXAMPLE_DOCUMENTS, _EXAMPLE_QUESTIONS = 400, 160
_EXAMPLE_SEED = 1


@dataclass(frozen=True, slots=True)
class Files:
    """What an environment reads."""

    questions: Path | None
    """File of questions; None for the example."""
    corpus: tuple[Path, ...]
    """Files of documents; empty for the documents beside the questions."""

    @property
    def stamps(self) -> tuple[tuple[int, int], ...]:
        """What changes when one of them is written."""
        named = (self.questions,) if self.questions is not None else ()
        return tuple(stamp(path) for path in (*named, *self.corpus))


class CorpusEnv(SearchEnv):
    """Questions of a file about a corpus of files.

    Args:
        questions: File of questions, JSON lines or parquet; see
            `agentgym.envs.search.corpus.qa_files`.
        corpus: File, or files, of documents: JSON lines, parquet, or a dictionary's `.index`.
            Without one the documents that stand beside the questions are the corpus.
        backend: Retriever: `tantivy`, `bm25s`, `fts5`; or `none`.
        results: Results of a search that does not say how many.
        tools: Names of the tools on offer; None for all.
    """

    limits = Limits(max_turns=24)

    def __init__(
        self,
        *,
        questions: str | None = None,
        corpus: str | Sequence[str] = (),
        backend: str = "tantivy",
        results: int = 5,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            results=results,
            snippets=True,
            cites=True,
            backend=check_backend(backend),
            render_mode=render_mode,
            tools=tools,
        )
        named = (corpus,) if isinstance(corpus, str) else tuple(corpus)
        if questions is None and named:
            raise EnvError("'corpus' needs 'questions': the example has documents of its own")
        self._files = Files(
            Path(questions) if questions is not None else None, tuple(Path(p) for p in named)
        )
        # Read and built here: a reset has a time limit, and a large corpus takes minutes.
        self._corpus = _corpus(self._files)
        self._library: Library | None = open_library(self._corpus, backend=backend)
        tasks = read_tasks(self._files)
        self._train = tuple(task for task in tasks if task.split == "train")
        self.null_score = _null_score(tasks)
        if any(UNKNOWN in task.answers for task in tasks):
            told = f"{ALONE}, or with '{UNKNOWN}' if they do not say it"
            self.system_prompt = self.system_prompt.replace(ALONE, told)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        if not self._train:
            raise EnvError(f"{self._files.questions} holds no question of the training split")
        return rng.choice(self._train)

    def source_of(self, task: Task) -> Source:
        """Return the corpus."""
        if self._library is None:
            self._library = open_library(self._corpus, backend=self._backend)
        return Source(documents=self._library.documents, retriever=self._library.retriever)

    def clues_of(self, task: Task) -> tuple[Clue, ...]:
        """Return the supporting documents, each by its title."""
        positions = cast("Sequence[Json]", task.payload.get("supporting", ()))
        documents = self.source_of(task).documents
        found = [int(str(position)) for position in positions]
        return tuple(_clue(documents, position) for position in found)

    def is_one_enough(self, task: Task) -> bool:
        """Return whether each supporting document holds the answer by itself, as in NQ."""
        return task.payload.get("is_one_enough") is True

    def guess(self, rng: random.Random) -> str:
        """Return the answer of another question."""
        others = self._train or (self.task,)
        task = rng.choice(others)
        assert task is not None
        return self.protocol.format_answer(task.answers[0])

    def close(self) -> None:
        """Let go of the library."""
        self._library = None
        super().close()


def _clue(documents: Documents, position: int) -> Clue:
    document = documents[position]
    first = " ".join(document.text.split()[:_FIRST_WORDS])
    # A title finds its document, unless many passages share it or it holds no word.
    return Clue(
        query=document.title or first,
        further=f"{document.title} {first}".strip(),
        position=position,
    )


def _null_score(tasks: Sequence[Task]) -> float:
    """Return what the most frequent answer reaches, always given."""
    counts = Counter(
        answer for task in tasks for answer in {scoring.normalize(text) for text in task.answers}
    )
    return round(max(counts.values()) / len(tasks), 3)


def read_tasks(files: Files) -> tuple[Task, ...]:
    """Return the tasks of files, in the order of the questions; kept until a file changes.

    Raises:
        TaskError: If a file is missing or holds something else.
    """
    return _tasks(files, files.stamps)


@functools.lru_cache(maxsize=8)
def _tasks(files: Files, stamps: tuple[tuple[int, int], ...]) -> tuple[Task, ...]:
    rows = _without_twins(_rows(files, stamps))
    where = _positions(_corpus(files), rows)
    _check_support(files, rows, where)
    return tuple(_task(row, where) for row in rows)


def _task(row: QaRow, where: Mapping[tuple[str, str | None], int]) -> Task:
    positions = dict.fromkeys(where[key] for key in row.supporting if key in where)
    payload: dict[str, Json] = {"supporting": list(positions)}
    if row.is_one_enough:
        payload["is_one_enough"] = True
    # By the question alone: with other answers it is still the same one.
    words = scoring.normalize(row.question)
    is_held_out = seeding.derive("corpus", words) % HELD_OUT_SHARE == 0
    return Task(
        id=f"corpus-{row.id}",
        env_id=ENV_ID,
        prompt=row.question,
        answers=row.answers,
        payload=payload,
        split="held_out" if is_held_out else "train",
    )


def _without_twins(rows: Sequence[QaRow]) -> tuple[QaRow, ...]:
    """Return the rows without those that ask for the answer of another row and call it unknown.

    In MuSiQue such a row has documents of its own, which lack the answer; all rows together have
    it, beside the other row.
    """
    words = [scoring.normalize(row.question) for row in rows]
    is_unknown = [row.answers == (UNKNOWN,) for row in rows]
    answered = {asked for asked, unknown in zip(words, is_unknown, strict=True) if not unknown}
    kept = tuple(
        row
        for row, asked, unknown in zip(rows, words, is_unknown, strict=True)
        if not unknown or asked not in answered
    )
    if len(kept) < len(rows):
        logger.warning(
            "%d questions without an answer are left out: the file has them with an answer too",
            len(rows) - len(kept),
        )
    return kept


def _check_support(
    files: Files, rows: Sequence[QaRow], where: Mapping[tuple[str, str | None], int]
) -> None:
    """Warn of supporting documents that are not there.

    Raises:
        TaskError: If the corpus was named, and holds none at all.
    """
    missing = [(key, row.id) for row in rows for key in row.supporting if key not in where]
    if not missing:
        return
    (title, _), row_id = missing[0]
    found = (
        f"{len(dict(missing))} supporting documents are not in the corpus, such as {title!r} of "
        f"the question {row_id!r}"
    )
    if files.corpus and not where:
        raise TaskError(f"{found}, nor is any other one: is it the corpus of these questions?")
    logger.warning("%s: the questions are scored without them", found)


@functools.lru_cache(maxsize=8)
def _rows(files: Files, stamps: tuple[tuple[int, int], ...]) -> tuple[QaRow, ...]:
    return read_questions(files.questions) if files.questions is not None else _example_rows()


def _corpus(files: Files) -> Corpus:
    if files.questions is None:
        return WorldCorpus(
            world_of(seed=_EXAMPLE_SEED, documents=_EXAMPLE_DOCUMENTS, style="prose")
        )
    return corpus_of(files.corpus, _rows(files, files.stamps))


def _example_rows() -> tuple[QaRow, ...]:
    rows: list[QaRow] = []
    # Questions of level 3 are about one world: the seed of the example is another one.
    corpus = WorldCorpus(world_of(seed=_EXAMPLE_SEED, documents=_EXAMPLE_DOCUMENTS, style="prose"))
    for index in range(_EXAMPLE_QUESTIONS):
        task = generate_task(
            index, levels=(3,), documents=_EXAMPLE_DOCUMENTS, world_seed=_EXAMPLE_SEED
        )
        lookups = cast("Sequence[Sequence[int]]", task.payload["lookups"])
        found = tuple(corpus[position] for _, position in lookups)
        rows.append(
            QaRow(
                id=f"example-{index:03d}",
                question=task.prompt,
                answers=task.answers,
                supporting=tuple((document.title, document.text) for document in found),
            )
        )
    return tuple(rows)


def _positions(corpus: Corpus, rows: Sequence[QaRow]) -> dict[tuple[str, str | None], int]:
    """Return where the supporting documents are: by title and text, else by title.

    Those that are not in the corpus are left out; HotpotQA's open setting has many.
    """
    wanted = {key for row in rows for key in row.supporting}
    titles = {title for title, _ in wanted}
    exact: dict[tuple[str, str | None], int] = {}
    by_title: dict[str, int] = {}
    if wanted:
        for position, document in enumerate(corpus.documents()):
            if document.title in titles:
                exact.setdefault((document.title, document.text), position)
                by_title.setdefault(document.title, position)
    return {key: exact.get(key, by_title[key[0]]) for key in wanted if key[0] in by_title}
