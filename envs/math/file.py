"""`math/file-v0`: word problems of your own, from any GSM8K- or MATH-shaped file or folder."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentgym.env.contract import Reply
from agentgym.envs.math.grading.chance_scores import UNDECLARED, null_score_of_answers
from agentgym.envs.math.grading.extraction import marked_answer
from agentgym.envs.math.grading.grade import Grade, Reason, grade
from agentgym.envs.math.problem_files import Problem, read_problems
from agentgym.envs.math.word_problem import WordProblemEnv
from agentgym.errors import EnvError, TaskError
from agentgym.records import Task

ENV_ID = "math/file-v0"


class FileEnv(WordProblemEnv):
    r"""Solve a word problem from a file.

    The outcome is 1 if `agentgym.envs.math.grading.grade` finds the answer right, else 0. An answer
    may stand in the protocol's form, or in a `\boxed{...}` or after `####` in plain text. The named
    reward `unreadable` (weight 0) is 1 where an answer was given that cannot be read.
    """

    def __init__(
        self,
        *,
        path: str,
        skip_unreadable: bool = False,
        tools: bool | Sequence[str] | None = True,
        render_mode: str | None = None,
    ) -> None:
        """Read the problems.

        Args:
            path: A `.jsonl`, `.json` or `.parquet` file, or a folder of such files.
            skip_unreadable: Leave out rows whose gold answer cannot be compared.
            tools: False switches the calculator off.
            render_mode: As in Gymnasium.

        Raises:
            TaskError: If there is nothing to read or a row cannot be used.
        """
        super().__init__(tools=tools, render_mode=render_mode)
        self._problems = read_problems(path, skip_unreadable=skip_unreadable)
        self._by_id = {problem.id: problem for problem in self._problems}
        self._tasks = {
            split: tuple(_task(p) for p in self._problems if p.split == split)
            for split in ("train", "held_out")
        }
        if not self._problems:
            raise TaskError(f"{path!r} holds no problem")
        self.null_score = null_score_of_answers([problem.gold for problem in self._problems])
        self.null_score_reason = "" if self.null_score <= UNDECLARED else "one answer is frequent"

    def splits(self) -> dict[str, tuple[Task, ...]]:
        """Return the tasks of each split that has any."""
        return {split: tasks for split, tasks in self._tasks.items() if tasks}

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split, or of the other if all are held out."""
        return rng.choice(self._tasks["train"] or self._tasks["held_out"])

    def solution_of(self, task: Task) -> str:
        """Return the worked solution of the row."""
        problem = self._by_id.get(task.id)
        return problem.solution if problem is not None else ""

    def grade(self, answer: str) -> Reply:
        """Return the outcome of an answer, which ends the episode."""
        if self.task is None or not self.task.answers:
            raise EnvError(f"{self.env_id} needs a task with an answer; call reset first")
        result = grade(gold=self.task.answers[0], answer=answer)
        return Reply(outcome=float(result.is_correct), rewards={"unreadable": _unreadable(result)})

    def on_text(self, text: str) -> str | Reply:
        """Grade an answer that is marked in plain text; say what is missing otherwise."""
        return self.grade(text) if marked_answer(text) is not None else super().on_text(text)


def _unreadable(result: Grade) -> float:
    return float(result.reason in {Reason.NO_ANSWER, Reason.UNREADABLE})


def _task(problem: Problem) -> Task:
    return Task(
        id=problem.id,
        env_id=ENV_ID,
        prompt=problem.question,
        answers=(problem.gold,),
        difficulty=problem.difficulty,
        tags=problem.tags,
        split=problem.split,
    )
