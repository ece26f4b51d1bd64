"""Identity of tasks by what the agent first sees: `compare_first_looks`.

A task may be a recipe, such as a seed, and two recipes may give one question. Two tasks are the
same if the first observation and the gold answers are; without gold answers, if the environment
also answers the same few actions in the same way. What cannot be seen so is said, never counted as
different: an environment that shows one and the same opening for all its tasks, one whose `reset`
needs a service (`TextEnv.reset_needs`), tasks beyond a bound.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym import seeding
from agentgym.env import registry
from agentgym.env.author_code import described
from agentgym.errors import AgentGymError, EnvError
from agentgym.records import Task, canonical_json

MOST_LOOKS = 1024
"""Tasks of each side that are looked at."""
_MOST_SECONDS = 5.0
"""Looking ends then: it is part of a start that should be quick."""
_MOST_PROBED = 16
"""Pairs with one opening and no gold answers that are played on."""
_PROBES = 3
"""Actions by which such a pair is told apart."""
_EXAMPLE_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SameLook:
    """A held-out task and a training task that look the same.

    Example:
        SameLook(held_out_id="held_out-000003-seed-9", train_id="train-000017-seed-4",
                 observation="What is 3 + 4?")
    """

    held_out_id: str
    """Id of the held-out task."""
    train_id: str
    """Id of the training task."""
    observation: str
    """What the agent sees first of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLooks:
    """What a comparison of first observations gave."""

    same: tuple[SameLook, ...]
    """Held-out tasks that look like a training task."""
    compared: int
    """Held-out tasks that were looked at."""
    asked: int
    """Held-out tasks in all."""
    unseen: str = ""
    """Why some, or all, could not be compared; empty if all were."""

    def __str__(self) -> str:
        parts: list[str] = []
        if self.same:
            one = self.same[0]
            shown = one.observation[:_EXAMPLE_CHARS]
            parts.append(
                f"{len(self.same)} of {self.compared} held-out tasks show the agent what a "
                f"training task shows ({one.held_out_id} and {one.train_id}: {shown!r})"
            )
        elif self.compared:
            parts.append(f"{self.compared} first observations are in no training task")
        if self.unseen:
            parts.append(f"{self.asked - self.compared} not compared: {self.unseen}")
        return "; ".join(parts)


def compare_first_looks(
    train: Iterable[Task],
    held_out: Iterable[Task],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> FirstLooks:
    """Return which held-out tasks look like a training task, and what could not be compared.

    Args:
        train: Tasks that are trained on.
        held_out: Tasks that must be others.
        clock: Gives seconds; looking has a bound.
    """
    asked = list(held_out)
    known = {_family(task) for task in asked}
    # Of environments that are on one side only no task can be on both.
    training = [task for task in train if _family(task) in known]
    if not training or not asked:
        return FirstLooks(same=(), compared=len(asked), asked=len(asked))
    with _Eyes(clock=clock, until=clock() + _MOST_SECONDS) as eyes:
        sides: list[list[_Look]] = []
        for is_seeded_by_task in (False, True):
            sides = [eyes.look_at(tasks, is_seeded_by_task) for tasks in (asked, training)]
            # An environment may draw its question from the episode's seed, and not from the task.
            if len({look.opening for side in sides for look in side}) > 1:
                break
        return _compared(eyes, sides[0], sides[1], len(asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    task: Task
    seed: int
    observation: str

    @property
    def opening(self) -> str:
        return " ".join(self.observation.casefold().split())


class _Eyes:
    """Makes one instance of each environment, resets it to tasks, and notes what it cannot see."""

    def __init__(self, *, clock: Callable[[], float], until: float) -> None:
        self._clock = clock
        self._until = until
        self._envs: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()
        self.unseen = ""

    def __enter__(self) -> _Eyes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look_at(self, tasks: Sequence[Task], is_seeded_by_task: bool) -> list[_Look]:
        """Return the looks of tasks, as far as they can be had."""
        found: list[_Look] = []
        for task in tasks[:MOST_LOOKS]:
            if self._clock() > self._until:
                self.unseen = f"it takes longer than {_MOST_SECONDS:g} s"
                break
            seed = seeding.derive("first-look", task.id if is_seeded_by_task else "")
            observation = self._opening(task, seed)
            if observation is not None:
                found.append(_Look(task=task, seed=seed, observation=observation))
        if len(tasks) > MOST_LOOKS:
            self.unseen = self.unseen or f"the first {MOST_LOOKS} tasks of each side are"
        return found

    def replies(self, look: _Look) -> object:
        """Return what the environment answers to a few actions that follow from the opening."""
        # Imported here: the players know tasks, and so suites.
        from agentgym.env.players import random_well_formed

        act = random_well_formed((), ())
        rng, env = random.Random(look.opening), self._envs[_kind(look.task)]
        env.reset(seed=look.seed, options={"task": look.task})
        seen = look.observation
        replies: list[object] = []
        try:
            for _ in range(_PROBES):
                seen, reward, terminated, truncated, _ = env.step(act(env.unwrapped, seen, rng))
                replies.append((seen, float(reward), terminated))
                if terminated or truncated:
                    break
        except Exception as error:
            raise EnvError(f"{look.task.env_id} cannot be played ({described(error)})") from error
        return replies

    def _opening(self, task: Task, seed: int) -> str | None:
        kind = _kind(task)
        try:
            if kind not in self._envs:
                self._envs[kind] = self._made(task)
            env = self._envs[kind]
            if env is None:
                return None
            return str(env.reset(seed=seed, options={"task": task})[0])
        except (AgentGymError, OSError) as error:  # what is missing is said where it is needed
            self._envs[kind] = None
            self.unseen = described(error)
            return None
        except Exception as error:
            raise EnvError(f"{task.env_id} cannot be reset ({described(error)})") from error

    def _made(self, task: Task) -> Any:
        env = registry.make(task.env_id, **task.env_kwargs)
        self._stack.callback(env.close)
        needs = getattr(env.unwrapped, "reset_needs", "")
        if needs:
            self.unseen = f"{task.env_id} needs {needs} to show one"
            return None
        return env


def _compared(
    eyes: _Eyes, asked: Sequence[_Look], training: Sequence[_Look], count: int
) -> FirstLooks:
    openings = {look.opening for look in (*asked, *training)}
    if len(openings) == 1 and not any(look.task.answers for look in asked):
        text = "every task begins alike and has no gold answer, so nothing tells them apart"
        return FirstLooks(same=(), compared=0, asked=count, unseen=text)
    by_look = {_identity(look): look for look in reversed(training)}
    pairs = [(look, by_look[key]) for look in asked if (key := _identity(look)) in by_look]
    hidden = [pair for pair in pairs if not pair[0].task.answers]
    # Where something is hidden, the environment soon answers the same actions differently.
    probed = hidden[:_MOST_PROBED]
    is_same = all(eyes.replies(one) == eyes.replies(other) for one, other in probed)
    return FirstLooks(
        same=tuple(
            SameLook(held_out_id=one.task.id, train_id=other.task.id, observation=one.observation)
            for one, other in pairs
            if one.task.answers or is_same
        ),
        compared=len(asked),
        asked=count,
        unseen=eyes.unseen,
    )


def _identity(look: _Look) -> str:
    answers = sorted(" ".join(answer.casefold().split()) for answer in look.task.answers)
    return canonical_json([_family(look.task), look.opening, answers])


def _family(task: Task) -> str:
    return task.env_id.rsplit("-v", 1)[0]


def _kind(task: Task) -> str:
    return canonical_json([task.env_id, dict(task.env_kwargs)])
