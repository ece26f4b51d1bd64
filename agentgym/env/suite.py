"""`Suite`: a named set of tasks with splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentgym import seeding
from agentgym.env.task_files import Origin, read_source, splits_of
from agentgym.errors import TaskError, nearest
from agentgym.records import Json, Task

_UNBOUNDED_INDEX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSplit:
    """A split whose task number `index` is made when asked for."""

    generate: Callable[[int], Task]
    """index in [0, size) -> its task; a pure function."""
    size: int | None = None
    """Number of tasks; None for no bound."""


Split = Sequence[Task] | GeneratedSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A named set of tasks of one environment, in splits.

    Example:
        Suite(name="math/arithmetic", env_id="math/arithmetic-v0", splits={"train": (task,)})
    """

    name: str
    """`family/name`, without a version."""
    env_id: str
    """Environment that poses the tasks."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of its constructor."""
    splits: Mapping[str, Split]
    """name -> tasks; `train` and `held_out` by custom."""
    source: Origin | None = None
    """Licence and origin; None where an environment generates the tasks."""

    def __post_init__(self) -> None:
        if not self.name or not self.env_id or not self.splits:
            raise TaskError(
                "a suite needs a 'name', an 'env_id' and at least one split (got "
                f"{self.name!r}, {self.env_id!r}, {sorted(self.splits)!r})"
            )
        for name, split in self.splits.items():
            if (split.size if isinstance(split, GeneratedSplit) else len(split)) == 0:
                raise TaskError(f"{self.name}/{name} is empty: leave it out, or give it a task")

    @classmethod
    def from_jsonl(
        cls,
        path: str | Path,
        *,
        env_id: str,
        question: str = "question",
        answer: str = "answer",
        held_out: float = 0.2,
        name: str | None = None,
        source: Origin | None = None,
    ) -> Suite:
        """Return the suite of a file of JSON lines with a question and an answer each.

        Equal questions are in one split, whatever their case and spacing. Further fields of a row
        are the task's payload.

        Args:
            path: The file.
            env_id: Environment that poses the tasks.
            question: Field that becomes the task's prompt.
            answer: Field with the gold answer, or a list of them.
            held_out: Share of the different questions that are held out, in [0, 1].
            name: `family/name`; by default the environment's family and the file's stem.
            source: Licence and origin; by default those of a file SOURCE beside `path`, if any.

        Raises:
            TaskError: If the file is missing, or a line has no such fields.

        Example:
            register_suite(Suite.from_jsonl("capitals.jsonl", env_id="lab/capitals-v0"))
        """
        file = Path(path)
        if source is None and (file.parent / "SOURCE").is_file():
            source = read_source(file.parent)
        return cls(
            name=name or f"{env_id.split('/')[0]}/{file.stem}",
            env_id=env_id,
            splits=splits_of(
                file, env_id=env_id, question=question, answer=answer, held_out=held_out
            ),
            source=source,
        )

    def size(self, split: str) -> int | None:
        """Return the number of tasks of a split; None for no bound."""
        found = self._split(split)
        return found.size if isinstance(found, GeneratedSplit) else len(found)

    def task(self, split: str, index: int) -> Task:
        """Return task number `index` of a split, with the suite's name and arguments on it."""
        found = self._split(split)
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise TaskError(f"{self.name}/{split} has tasks 0 to {(size or 0) - 1} (got {index!r})")
        task = found.generate(index) if isinstance(found, GeneratedSplit) else found[index]
        if task.env_id != self.env_id:
            # The record would say that another environment played than the one asked for.
            raise TaskError(
                f"{self.name}: the task {task.id!r} is of {task.env_id!r}, the suite of "
                f"{self.env_id!r}; a suite has the tasks of one environment"
            )
        return replace(
            task, suite=self.name, split=split, env_kwargs={**self.env_kwargs, **task.env_kwargs}
        )

    def tasks(
        self, split: str, *, limit: int | None = None, seed: int | None = None
    ) -> tuple[Task, ...]:
        """Return the tasks of a split.

        Args:
            split: Name of the split.
            limit: Most tasks to return; needed where the split has no bound.
            seed: Draws that many at random, the same ones each time; without it the first ones.

        Raises:
            TaskError: If the split is unknown, or has no bound and no limit is given.
        """
        if limit is not None and limit < 1:
            raise TaskError(f"'limit' must be >= 1 or None for all (got {limit!r})")
        size = self.size(split)
        if size is None and limit is None:
            raise TaskError(f"{self.name}/{split} has no end: say how many tasks with 'limit'")
        bound = size if size is not None else _UNBOUNDED_INDEX
        count = min(bound, limit) if limit is not None else bound
        if seed is None:
            indices: Iterable[int] = range(count)
        else:
            indices = seeding.rng(seed, self.name, split).sample(range(bound), count)
        return tuple(self.task(split, index) for index in indices)

    def sample(self, split: str, rng: random.Random) -> Task:
        """Return one task of a split, drawn with `rng`."""
        size = self.size(split)
        return self.task(split, rng.randrange(size if size is not None else _UNBOUNDED_INDEX))

    def _split(self, split: str) -> Split:
        found = self.splits.get(split)
        if found is None:
            raise TaskError(
                f"{self.name} has no split {split!r}{nearest(split, self.splits)}; "
                f"it has {', '.join(sorted(self.splits))}"
            )
        return found
