"""`math/reasoning-v0`: the puzzles of reasoning-gym, scored by that library, with a calculator."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentgym.env.suite import GeneratedSplit
from agentgym.envs.math.grading.chance_scores import LEAST, NULL_SCORES, UNDECLARED
from agentgym.envs.math.reasoning import puzzles
from agentgym.envs.math.word_problem import WordProblemEnv
from agentgym.errors import EnvError
from agentgym.records import Json, Task


class ReasoningEnv(WordProblemEnv):
    """Solve a puzzle of one or more data sets of reasoning-gym.

    The outcome is that library's score in [0, 1], its partial credits included. Answers that a
    scorer would run as a program are worth 0, and so are answers that take seconds to score.
    """

    def __init__(
        self,
        *,
        dataset: str | Sequence[str] = "gsm_symbolic",
        settings: Mapping[str, Json] | None = None,
        tools: bool | Sequence[str] | None = True,
        render_mode: str | None = None,
    ) -> None:
        """Choose the data sets.

        Args:
            dataset: Name of a data set, or several names that take turns.
            settings: Settings of the data set, as the library names them, such as
                `{"difficulty": 2.0}`; of several data sets: name -> settings.
            tools: False switches the calculator off.
            render_mode: As in Gymnasium.

        Raises:
            EnvError: If a data set is unknown, cannot be used or refuses its settings.
        """
        super().__init__(tools=tools, render_mode=render_mode)
        self.datasets = (dataset,) if isinstance(dataset, str) else tuple(dataset)
        self.settings = dict(settings or {})
        puzzles.check_datasets(self.datasets, self.settings)
        self.null_score = fmean(NULL_SCORES.get(name, LEAST) for name in self.datasets)
        self.null_score_reason = (
            "few answers are possible, or the library gives partial credit for any"
            if self.null_score > UNDECLARED
            else ""
        )

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split."""
        return self.generate_task(rng.randrange(puzzles.SIZE), "train")

    def generate_task(self, index: int, split: str) -> Task:
        """Return task number `index` of a split."""
        return puzzles.generate_task(
            index, split=split, datasets=self.datasets, settings=self.settings
        )

    def splits(self) -> dict[str, GeneratedSplit]:
        """Return the generated splits, disjoint by question."""
        return {
            split: GeneratedSplit(
                generate=functools.partial(self.generate_task, split=split), size=puzzles.SIZE
            )
            for split in puzzles.SPLITS
        }

    def solution_of(self, task: Task) -> str:
        """Return the worked solution that gsm_symbolic puts aside."""
        entry: Any = task.payload.get("entry")
        if not isinstance(entry, dict):
            raise EnvError(f"task {task.id!r}: the payload needs 'dataset', 'settings' and 'entry'")
        metadata: Any = entry.get("metadata")
        return str(metadata.get("answer_cot", "")) if isinstance(metadata, dict) else ""

    def grade(self, answer: str) -> float:
        """Return what the library gives for `answer`."""
        assert self.task is not None
        return puzzles.score(self.task, answer)
