"""Measures retrieval: indexing and queries against plain tantivy in the same run, and recall.

    python tests/bench/retrieval.py --dictionaries /usr/share/dictd/gcide /usr/share/dictd/wn

Debian's packages dict-gcide and dict-wn hold the passages. Wall times are the best of the repeats,
taken in turn with the baseline, since other work on the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym.envs.search.corpus.dictd import DictdCorpus
from agentgym.envs.search.env import Clue, SearchEnv, Source
from agentgym.envs.search.graph import tasks as graph_tasks
from agentgym.envs.search.graph.rendering import WorldCorpus
from agentgym.envs.search.retrieval.documents import Document, Documents
from agentgym.envs.search.retrieval.index_cache import BACKENDS, Library, open_library
from agentgym.envs.search.retrieval.retriever import Retriever, words
from agentgym.records import Task

K = 5
_WORDS_A_QUERY, _LEAST_LETTERS = 4, 4
_RECALL_QUESTIONS = 200


class Passages:
    """The passages of the bench as a corpus."""

    def __init__(self, items: Sequence[Document], key: str) -> None:
        self.items, self.key = items, key

    def documents(self) -> Iterator[Document]:
        return iter(self.items)


class OneCorpus(SearchEnv):
    """The tools over one library."""

    def __init__(self, library: Library) -> None:
        super().__init__(results=K, snippets=True, cites=True, backend="tantivy")
        self.library = library

    def source_of(self, task: Task) -> Source:
        return Source(documents=self.library.documents, retriever=self.library.retriever)

    def clues_of(self, task: Task) -> tuple[Clue, ...]:
        return ()


def seconds(function: Callable[[], Any]) -> float:
    """Return the wall time of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def draw_queries(documents: Sequence[Document], count: int) -> list[str]:
    """Return queries of four words from one passage each."""
    rng = random.Random(0)
    queries: list[str] = []
    while len(queries) < count:
        found = [w for w in words(rng.choice(documents).text) if len(w) >= _LEAST_LETTERS]
        if len(found) >= _WORDS_A_QUERY:
            queries.append(" ".join(rng.sample(found, _WORDS_A_QUERY)))
    return queries


@contextmanager
def raw_tantivy(documents: Sequence[Document]) -> Iterator[tuple[float, Callable[[str], Any]]]:
    """Give the seconds that plain tantivy takes to index, and its search with stored titles."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("title", stored=True)
    builder.add_text_field("body", stored=True, tokenizer_name="en_stem")
    with tempfile.TemporaryDirectory() as folder:
        index = tantivy.Index(builder.build(), path=folder)
        start = time.perf_counter()
        writer = index.writer(512_000_000, 0)
        for document in documents:
            writer.add_document(tantivy.Document(title=document.title, body=document.text))
        writer.commit()
        writer.wait_merging_threads()
        taken = time.perf_counter() - start
        index.reload()
        searcher = index.searcher()

        def search(query: str) -> list[Any]:
            hits = searcher.search(index.parse_query(query, ["body"]), K).hits
            return [searcher.doc(address)["title"] for _, address in hits]

        yield taken, search


@contextmanager
def own(documents: Sequence[Document], backend: str) -> Iterator[tuple[float, Library]]:
    """Give the seconds that a library takes to build, documents included, and the library."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        library = open_library(
            Passages(documents, f"bench-{backend}".ljust(32, "0")),
            backend=backend,
            cache=Path(folder),
        )
        yield time.perf_counter() - start, library


def measure_speed(
    documents: Sequence[Document], queries: Sequence[str], repeats: int
) -> dict[str, float]:
    """Return seconds to index and queries a second, of plain tantivy and of ours, and ratios."""
    best: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        best[name] = min(best.get(name, value), value)

    for _ in range(repeats):
        with raw_tantivy(documents) as (raw_s, raw_search), own(documents, "tantivy") as made:
            note("raw_index_s", raw_s)
            note("own_index_s", made[0])
            for _ in range(3):
                for name, taken in _time_queries(queries, raw_search, made[1]).items():
                    note(name, taken)
    result = {"raw_index_s": best["raw_index_s"], "own_index_s": best["own_index_s"]}
    result["index_ratio"] = best["own_index_s"] / best["raw_index_s"]
    for name in ("raw_query", "retriever", "tool", "step"):
        result[f"{name}_per_s"] = len(queries) / best[f"{name}_s"]
        result[f"{name}_ratio"] = best["raw_query_s"] / best[f"{name}_s"]
    return result


def _time_queries(
    queries: Sequence[str], raw_search: Callable[[str], Any], library: Library
) -> dict[str, float]:
    env = OneCorpus(library)
    env.reset(seed=0)
    calls = [env.protocol.format_call("search", {"query": query}) for query in queries]
    return {
        "raw_query_s": seconds(lambda: [raw_search(query) for query in queries]),
        "retriever_s": seconds(lambda: [library.retriever.search(q, K) for q in queries]),
        "tool_s": seconds(lambda: [env.search(query) for query in queries]),
        "step_s": seconds(lambda: [env.step(call) for call in calls]),
    }


def measure_backend(
    documents: Sequence[Document], queries: Sequence[str], backend: str
) -> dict[str, float]:
    """Return what another back end takes of the processor: it is too slow to be timed in turn."""
    start = time.process_time()
    with own(documents, backend) as (_, library):
        built = time.process_time()
        for query in queries:
            library.retriever.search(query, K)
        spent = time.process_time() - built
    return {"index_cpu_s": built - start, "queries_per_cpu_s": len(queries) / spent}


def recall(retriever: Retriever, tasks: Sequence[Task], by_name: bool) -> float:
    """Return the mean share of supporting documents among the first five results.

    Args:
        retriever: Over the documents that the tasks are about.
        tasks: Questions.
        by_name: Whether each document is searched for by what is known before it is read, as an
            agent does; otherwise one search with the question.
    """
    shares: list[float] = []
    for task in tasks:
        lookups: Any = task.payload["lookups"]
        if by_name:
            found = [p in _top(retriever, query) for query, p in lookups]
        else:
            top = _top(retriever, task.prompt)
            found = [p in top for _, p in lookups]
        shares.append(sum(found) / len(found))
    return sum(shares) / len(shares)


def _top(retriever: Retriever, query: str) -> set[int]:
    return {hit.position for hit in retriever.search(query, K)}


def measure_recall(backend: str) -> dict[str, float]:
    """Return recall@5 of graph questions' supporting documents, by level, in both ways."""
    result: dict[str, float] = {}
    world = graph_tasks.world_of(seed=graph_tasks.SHARED_SEED, documents=10_000, style="prose")
    with tempfile.TemporaryDirectory() as folder:
        library = open_library(WorldCorpus(world), backend=backend, cache=Path(folder))
        for level in (3, 4, 5):
            tasks = [
                graph_tasks.generate_task(index, split="held_out", levels=[level])
                for index in range(_RECALL_QUESTIONS)
            ]
            for way, by_name in (("question", False), ("name", True)):
                share = recall(library.retriever, tasks, by_name)
                result[f"level_{level}_by_{way}"] = share
        del library
    return result


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Return the values with three significant digits."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def main() -> None:
    """Measure and print everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dictionaries", nargs="*", type=Path, default=())
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--backends", nargs="*", default=["bm25s", "fts5"], choices=BACKENDS)
    parser.add_argument("--no-recall", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    if arguments.dictionaries:
        documents: Documents | list[Document] = list(
            DictdCorpus(arguments.dictionaries).documents()
        )
        queries = draw_queries(documents, arguments.queries)
        report["passages"] = len(documents)
        report["speed"] = rounded(measure_speed(documents, queries, arguments.repeats))
        for backend in arguments.backends:
            report[backend] = rounded(measure_backend(documents, queries[:50], backend))
    if not arguments.no_recall:
        report["recall_at_5"] = {b: rounded(measure_recall(b)) for b in BACKENDS}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
