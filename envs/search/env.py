"""`SearchEnv`: the tools `search` and `open` over a library, and the scoring of answers.

What its subclasses add is where the tasks and the library come from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.env import Reply
from agentgym.envs.search import scoring
from agentgym.envs.search.documents import Document, Documents
from agentgym.envs.search.library import NONE
from agentgym.envs.search.retriever import Retriever
from agentgym.errors import EnvError, InfrastructureError, ToolError
from agentgym.records import ErrorKind, Task
from agentgym.tool_env import ToolEnv
from agentgym.tools import tool

MOST_RESULTS = 20
"""Results of one search at most."""
_SNIPPET_CHARS = 160
"""Of a document's text in the results, where they show it."""
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
        Clue(query="Ana Halberg", position=3)
    """

    query: str
    """What to search for."""
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
    supporting documents that were opened). None of them adds to `step`'s reward.

    Args:
        results: Results of a search that does not say how many.
        snippets: Whether results show the beginning of the text beside the title.
        cites: Whether the agent is asked to cite documents, and the expert does.
        backend: Back end of the retriever; `none` takes search and documents away.
    """

    system_prompt = (
        "Answer the question from the documents, with the name, number or words alone.\n{tools}"
    )
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

    # -- the episode -----------------------------------------------------------------------

    def start(self, task: Task, rng: random.Random) -> str:
        """Show the question."""
        self._source = self.source_of(task)
        self._clues = self.clues_of(task)
        self._supporting = frozenset(clue.position for clue in self._clues)
        self._opened: set[int] = set()
        self._failures = 0
        self._shown: tuple[int, ...] = ()
        self._searched: list[str] = []
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
        self._searched.append(query)
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
            "citation": scoring.citation_f1(cited, self._supporting),
            "opened": len(self._opened & self._supporting) / max(len(self._supporting), 1),
        }
        return Reply(outcome=is_right, rewards=rewards)

    def expert(self) -> str:
        """Return the next step of the proof: search, open, and at last answer with citations."""
        assert self.task is not None
        clue = next((clue for clue in self._clues if clue.position not in self._opened), None)
        if clue is None or self._backend == NONE:
            cited = " ".join(f"[{clue.position}]" for clue in self._clues if self._cites)
            return self.protocol.format_answer(f"{self.task.answers[0]} {cited}".strip())
        if clue.position in self._shown:
            return self.protocol.format_call("open", {"doc": clue.position})
        if clue.query not in self._searched:
            return self.protocol.format_call("search", {"query": clue.query})
        # It was not among the first results: look further down.
        arguments = {"query": clue.query, "k": MOST_RESULTS}
        return self.protocol.format_call("search", arguments)

    def close(self) -> None:
        """Let go of the library."""
        self._source = None
        super().close()

    def _running(self) -> Source:
        if self._source is None:
            raise EnvError(f"{self.env_id}: the environment is closed")
        return self._source

    def _line(self, position: int, document: Document) -> str:
        head = f"[{position}] {document.title}"
        if not self._snippets:
            return head
        text = " ".join(document.text.split())
        cut = text if len(text) <= _SNIPPET_CHARS else f"{text[:_SNIPPET_CHARS].rstrip()}..."
        return f"{head}: {cut}"
