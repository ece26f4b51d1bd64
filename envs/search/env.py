"""`SearchEnv`: the tools `search` and `open` over a library, and the scoring of answers.

What its subclasses add is where the tasks and the library come from.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentgym.env.contract import Reply
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.search import scoring
from agentgym.envs.search.retrieval.documents import Document, Documents
from agentgym.envs.search.retrieval.index_cache import NONE
from agentgym.envs.search.retrieval.retriever import Retriever
from agentgym.errors import EnvError, InfrastructureError, ToolError
from agentgym.records import ErrorKind, Json, Task
from agentgym.tool_formats.tools import tool

MOST_RESULTS = 20
"""Results of one search at most."""
_SNIPPET_CHARS = 160
"""Of a document's title in the results, and of its text where they show it."""
ALONE = "with the name, number or words alone"
"""In the system prompt, how to answer."""
NO_RESULTS = "No results."
SEARCH_FAILED = (
    "Search failed: the index could not be read. This is not the same as no results; try again."
)
_CITE = "After the answer cite the documents that say it by number, such as [3]."
_MOST_FAILURES = 1
"""Failed searches that an agent may make up for by trying again; the next one ends the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """One document that the scripted expert looks for.

    Example:
        Clue(query="Ana Halberg", further="Ana Halberg was born in", position=3)
    """

    query: str
    """What to search for."""
    further: str = ""
    """What to search for where `query` did not show it; the same again if empty."""
    position: int
    """Position of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an episode reads from."""

    documents: Documents
    """Documents by position."""
    retriever: Retriever
    """Finds them."""


class SearchEnv(ToolEnv):
    """Answer a question with the help of a corpus.

    The outcome is exact match. Parts of the reward of the last turn, each in [0, 1]: `exact_match`,
    `f1`, `citation` (F1 of the documents cited as `[3]` in the answer) and `opened` (share of the
    supporting documents that were opened). Where one supporting document is enough, the others are
    not missed. None of them adds to `step`'s reward.

    Args:
        results: Results of a search that does not say how many.
        snippets: Whether results show the beginning of the text beside the title.
        cites: Whether the agent is asked to cite documents, and the expert does.
        backend: Back end of the retriever; `none` takes search and documents away.
    """

    system_prompt = f"Answer the question from the documents, {ALONE}.\n{{tools}}"
    null_score = 0.01

    def __init__(
        self,
        *,
        results: int,
        snippets: bool,
        cites: bool,
        backend: str,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        self._cites = cites
        if cites:
            self.system_prompt = self.system_prompt.replace("\n{tools}", f" {_CITE}\n{{tools}}")
        super().__init__(render_mode=render_mode, tools=tools)
        if not 1 <= results <= MOST_RESULTS:
            raise EnvError(f"'results' must be from 1 to {MOST_RESULTS} (got {results!r})")
        self._results, self._snippets, self._backend = results, snippets, backend
        self._source: Source | None = None

    # -- what a subclass defines -----------------------------------------------------------

    def source_of(self, task: Task) -> Source:
        """Return the documents and the retriever of a task."""
        raise NotImplementedError

    def clues_of(self, task: Task) -> tuple[Clue, ...]:
        """Return what the expert looks for, in order."""
        raise NotImplementedError

    def is_one_enough(self, task: Task) -> bool:
        """Return whether each supporting document holds the answer by itself."""
        return False

    # -- the episode -----------------------------------------------------------------------

    def start(self, task: Task, rng: random.Random) -> str:
        """Show the question."""
        self._source = self.source_of(task)
        self._clues = self.clues_of(task)
        self._supporting = frozenset(clue.position for clue in self._clues)
        self._is_one_enough = self.is_one_enough(task)
        if self._is_one_enough:
            self._clues = self._clues[:1]
        self._opened: set[int] = set()
        self._failures = 0
        self._shown: tuple[int, ...] = ()
        self._searched: set[tuple[str, int]] = set()
        return task.prompt

    @tool
    def search(self, query: str, k: int | None = None) -> str | Reply:
        """Find documents.

        Args:
            query: Words to look for.
            k: Number of results.
        """
        wanted = self._results if k is None else k
        if not 1 <= wanted <= MOST_RESULTS:
            raise ToolError(f"'k' must be from 1 to {MOST_RESULTS} (got {wanted!r})")
        source = self._running()
        try:
            hits = source.retriever.search(query, wanted)
        except InfrastructureError:
            self._failures += 1
            if self._failures > _MOST_FAILURES:
                raise
            return Reply(observation=SEARCH_FAILED, error_kind=ErrorKind.INFRASTRUCTURE)
        self._searched.add((query, wanted))
        self._shown = tuple(hit.position for hit in hits)
        lines = [self._line(position, source.documents[position]) for position in self._shown]
        return "\n".join(lines) or NO_RESULTS

    @tool
    def open(self, doc: int) -> str:
        """Read a document.

        Args:
            doc: Its number, as in the results of a search.
        """
        documents = self._running().documents
        if self._backend == NONE or not 0 <= doc < len(documents):
            raise ToolError(f"there is no document {doc}: take a number from the results")
        self._opened.add(doc)
        document = documents[doc]
        return f"{document.title}\n{document.text}"

    def grade(self, answer: str) -> Reply:
        """Compare the answer with the gold answers."""
        assert self.task is not None
        text, cited = scoring.split_citations(answer)
        is_right = scoring.exact_match(text, self.task.answers)
        rewards: dict[str, float] = {
            "exact_match": is_right,
            "f1": scoring.f1(text, self.task.answers),
            "citation": scoring.citation_f1(cited, self._needed(cited)),
            "opened": len(self._opened & self._supporting)
            / max(len(self._needed(self._opened)), 1),
        }
        return Reply(outcome=is_right, rewards=rewards)

    def _needed(self, found: Collection[int]) -> frozenset[int]:
        """Return the supporting documents that `found` is measured against."""
        hits = self._supporting & frozenset(found)
        return hits if hits and self._is_one_enough else self._supporting

    def expert(self) -> str:
        """Return the next step of the proof: search, open, and at last answer with citations."""
        assert self.task is not None
        clue = next((clue for clue in self._clues if clue.position not in self._opened), None)
        offered = {tool.name for tool in self.tools}
        if clue is None or self._backend == NONE or "open" not in offered:
            cited = " ".join(f"[{clue.position}]" for clue in self._clues if self._cites)
            return self.protocol.format_answer(f"{self.task.answers[0]} {cited}".strip())
        arguments = self._next_search(clue) if "search" in offered else None
        if clue.position in self._shown or arguments is None:
            return self.protocol.format_call("open", {"doc": clue.position})
        return self.protocol.format_call("search", arguments)

    def _next_search(self, clue: Clue) -> dict[str, Json] | None:
        """Return the first search that was not made yet; None when no more may show the clue."""
        if (clue.query, self._results) not in self._searched:
            return {"query": clue.query}
        # It was not among the first results: say more, and look further down.
        further = clue.further or clue.query
        if (further, MOST_RESULTS) not in self._searched:
            return {"query": further, "k": MOST_RESULTS}
        return None

    def close(self) -> None:
        """Let go of the library."""
        self._source = None
        super().close()

    def _running(self) -> Source:
        if self._source is None:
            raise EnvError(f"{self.env_id}: the environment is closed")
        return self._source

    def _line(self, position: int, document: Document) -> str:
        # One line: a break in a title would let a document make up other results.
        head = f"[{position}] {_cut(document.title)}"
        return f"{head}: {_cut(document.text)}" if self._snippets else head


def _cut(text: str) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SNIPPET_CHARS else f"{line[:_SNIPPET_CHARS].rstrip()}..."
