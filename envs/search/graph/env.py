"""`search/graph-v0`: questions about a generated world, answered from its documents."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import cast

from agentgym.envs.search.env import Clue, SearchEnv, Source
from agentgym.envs.search.graph.knowledge_graph import World
from agentgym.envs.search.graph.questions import UNKNOWN
from agentgym.envs.search.graph.rendering import WorldCorpus
from agentgym.envs.search.graph.tasks import (
    LEVEL_TABLE,
    MOST_STEPS,
    SHARED_SEED,
    UNKNOWN_SHARE,
    Level,
    check_levels,
    draw_task,
    world_of,
)
from agentgym.envs.search.retrieval.fts5_backend import MemoryRetriever
from agentgym.envs.search.retrieval.index_cache import NONE, Library, check_backend, open_library
from agentgym.envs.search.retrieval.retriever import NoRetriever
from agentgym.errors import EnvError
from agentgym.records import Json, Task
from agentgym.records.limits import Limits

IN_MEMORY = 200
"""Worlds of at most so many documents are indexed anew for each episode, in memory."""
EASY_LEVELS = (1, 2)
_MOST_OPEN = 4
"""Large worlds that an environment keeps open. Levels 1 and 2 may have a new one each episode."""
_TOLD_EASY = "Answer the question from the documents.\n{tools}"
_TOLD = (
    "Answer the question from the documents, with the name or year alone, or with "
    f"'{UNKNOWN}' if they do not say it.\n{{tools}}"
)
_YEARS = (1700, 180)
"""First year of a world, and how many there are."""


class GraphEnv(SearchEnv):
    """Multi-hop questions about a world that is generated and consistent.

    Args:
        levels: Levels to draw tasks from; see `agentgym.envs.search.graph.tasks`.
        documents: Size of the worlds, 20 to 1,000,000; by default as the level says.
        backend: Retriever of the large worlds: `tantivy`, `bm25s`, `fts5`; or `none`. Small worlds
            are searched by FTS5 in memory.
        results: Results of a search that does not say how many; by default 1 on levels 1 and 2,
            whose results show titles alone, and 5 above, where they show the text's beginning too,
            and where the agent is asked to cite.
        tools: Names of the tools on offer; None for all.
        instructions: False leaves the system prompt out, for models that learn the protocol from
            demonstrations and pay for every token of context.
    """

    # One search and one reading for each of at most five documents and three compared, the answer,
    # and as much again for detours.
    limits = Limits(max_turns=4 * MOST_STEPS + 12)

    def __init__(
        self,
        *,
        levels: Sequence[int] = EASY_LEVELS,
        documents: int | None = None,
        backend: str = "tantivy",
        results: int | None = None,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
        instructions: bool = True,
    ) -> None:
        self._levels = check_levels(levels)
        is_easy = set(self._levels) <= set(EASY_LEVELS)
        self.system_prompt = _TOLD_EASY if is_easy else _TOLD
        super().__init__(
            results=results if results is not None else (1 if is_easy else 5),
            snippets=not is_easy,
            cites=not is_easy,
            backend=check_backend(backend),
            render_mode=render_mode,
            tools=tools,
        )
        self.tells_tools = instructions
        if not instructions:
            self.system_prompt = ""
        self._documents = documents
        self._libraries: dict[str, Library] = {}
        specs = [LEVEL_TABLE[level] for level in self._levels]
        self.null_score = round(sum(map(_null_score, specs)) / len(specs), 3)
        for spec in specs:
            if spec.is_shared or documents is not None:
                # Built here: a reset has a time limit, and a million documents take minutes.
                size = spec.documents if documents is None else documents
                self._open(world_of(seed=SHARED_SEED, documents=size, style=spec.style))

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return draw_task(rng, levels=self._levels, documents=self._documents)

    def source_of(self, task: Task) -> Source:
        """Return the world's documents."""
        return self._open(_world(task))

    def clues_of(self, task: Task) -> tuple[Clue, ...]:
        """Return the documents of the proof."""
        lookups = cast("Sequence[Sequence[Json]]", task.payload.get("lookups", ()))
        return tuple(
            Clue(query=str(query), position=int(str(position))) for query, position in lookups
        )

    def guess(self, rng: random.Random) -> str:
        """Return an answer that is drawn from the titles of the documents, or a year."""
        assert self.task is not None
        world = _world(self.task)
        if self.task.answers[0].isdigit():
            return self.protocol.format_answer(str(_YEARS[0] + rng.randrange(_YEARS[1])))
        title = world.name(world.thing_at(rng.randrange(world.size)))
        return self.protocol.format_answer(title)

    def close(self) -> None:
        """Let go of the libraries."""
        self._libraries = {}
        super().close()

    def _open(self, world: World) -> Source:
        corpus = WorldCorpus(world)
        if self._backend == NONE:
            return Source(documents=corpus, retriever=NoRetriever())
        if world.size <= IN_MEMORY:
            return Source(documents=corpus, retriever=_small_retriever(world))
        # Kept open for the next episodes. The one used last stands last and is let go of last.
        library = self._libraries.pop(corpus.key, None)
        if library is None:
            library = open_library(corpus, backend=self._backend)
        self._libraries[corpus.key] = library
        if len(self._libraries) > _MOST_OPEN:
            del self._libraries[next(iter(self._libraries))]
        return Source(documents=library.documents, retriever=library.retriever)


def _null_score(spec: Level) -> float:
    """What always answering `unknown`, or with some title of a small world, reaches."""
    if spec.shares[2]:
        return UNKNOWN_SHARE
    return 0.01 if spec.is_shared else 1 / spec.documents


@functools.lru_cache(maxsize=64)
def _small_retriever(world: World) -> MemoryRetriever:
    # The episodes of a group ask the same world.
    return MemoryRetriever(WorldCorpus(world).documents())


def _world(task: Task) -> World:
    spec = task.payload.get("world")
    if not isinstance(spec, Mapping) or set(spec) != {"seed", "documents", "style"}:
        raise EnvError(
            f"task {task.id!r} needs 'world' with seed, documents and style in its payload "
            f"(got {spec!r})"
        )
    try:
        seed, documents = (int(str(spec[name])) for name in ("seed", "documents"))
    except ValueError as error:
        raise EnvError(f"task {task.id!r} has no numbers in its 'world': {error}") from error
    return world_of(seed=seed, documents=documents, style=str(spec["style"]))
