"""What the tokenizer of a new model learns its merges from: episodes of the training tasks.

Experts play where there are any. Elsewhere actions are drawn at random, well-formed, with gold
answers and guesses among them. The tokenizer falls back to bytes, so whatever these episodes do not
show can be written all the same, in more tokens.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentgym import seeding
from agentgym.concurrency.threads import run_blocking
from agentgym.config import RunConfig
from agentgym.env.players import random_well_formed
from agentgym.errors import ConfigError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.expert import ExpertPolicy
from agentgym.records import Completion, Source, Task, Trajectory
from agentgym.runs.dry_run import TOKENIZER_EPISODES
from agentgym.runs.expert_check import lack_of_expert
from agentgym.runs.progress import ProgressSink
from agentgym.trainers.learner.sft import play_training_tasks
from agentgym.trainers.rollout.task_stream import TaskStream

logger = logging.getLogger(__name__)

_RANDOM_TURNS = 4
"""Turns of an episode without an expert: more of the same kind teach no further words."""
_MOST_TAGS = 64
"""Tags that become tokens of their own: the smallest vocabulary has room for more merges then."""
_TAG = re.compile(r"</?[a-z_]+>")


async def corpus_texts(
    stream: TaskStream, config: RunConfig, progress: ProgressSink
) -> tuple[str, ...]:
    """Return prompts, observations and actions of episodes of the first training tasks.

    Raises:
        ConfigError: If no episode could be played.
    """
    progress.on_note(
        f"the tokenizer of a new model learns from {TOKENIZER_EPISODES} episodes of the training "
        "tasks, played by experts, or at random where there are none"
    )
    progress.on_phase("tokenizer's episodes", TOKENIZER_EPISODES)
    tasks = [stream.draw(index) for index in range(TOKENIZER_EPISODES)]
    lacking = await _without_expert(tasks)
    limits = config.limits.to_limits()
    short = replace(limits, max_turns=min(limits.max_turns or _RANDOM_TURNS, _RANDOM_TURNS))
    seed = seeding.derive(config.seed, "corpus")
    episodes = await play_training_tasks(
        [(task, short if _kind(task) in lacking else limits) for task in tasks],
        CorpusPolicy(seed=seed),
        seed=seed,
        max_concurrent=config.rollout.max_concurrent,
        on_episode=lambda _: progress.on_step({}),
    )
    _complain_of_failures(episodes)
    answers = [a for task in tasks if _kind(task) in lacking for a in task.answers]
    return (*(text for episode in episodes for text in _texts(episode)), *answers)


def tags_of(corpus: Sequence[str]) -> tuple[str, ...]:
    """Return the tags in texts, sorted; of too many the ones that come most often."""
    counts = Counter(tag for text in corpus for tag in _TAG.findall(text))
    ranked = sorted(counts, key=lambda tag: (-counts[tag], tag))
    return tuple(sorted(ranked[:_MOST_TAGS]))


class CorpusPolicy(ExpertPolicy):
    """Plays the environment's expert; where there is none, a well-formed action at random."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._root = seed

    def act(self, env: Any, request: GenerateRequest) -> Completion:
        """Return the expert's action, or one that is drawn for this turn of this episode."""
        expert = getattr(env, "expert", None)
        try:
            text = expert() if expert is not None else None
        except NotImplementedError:
            text = None
        if text is None:
            rng = seeding.rng(self._root, request.episode_id, request.turn)
            text = _random_action(env, rng)
        return Completion(text=text, source=Source.EXPERT, policy_id=self.id)


def _random_action(env: Any, rng: random.Random) -> str:
    task, guess = getattr(env, "task", None), getattr(env, "guess", None)
    answers = task.answers if isinstance(task, Task) else ()
    moves: list[str] = []
    if guess is not None:
        with suppress(NotImplementedError):  # of a task without a gold answer nothing is wrong
            moves.append(guess(rng))
    act = random_well_formed(answers, moves)
    return act(env, str(getattr(env, "last_observation", "")), rng)


async def _without_expert(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the kinds of environment among `tasks` of which the first task has no expert."""
    firsts: dict[str, Task] = {}
    for task in tasks:
        firsts.setdefault(_kind(task), task)
    reasons = {kind: await run_blocking(lack_of_expert, task) for kind, task in firsts.items()}
    return frozenset(kind for kind, reason in reasons.items() if reason is not None)


def _kind(task: Task) -> str:
    return json.dumps([task.env_id, task.env_kwargs], sort_keys=True, default=str)


def _complain_of_failures(episodes: Sequence[Trajectory]) -> None:
    failures = [(e.env_id, e.failure.message) for e in episodes if e.failure is not None]
    if not failures:
        return
    env_id, message = failures[0]
    if len(failures) == len(episodes):
        raise ConfigError(f"no episode of {env_id} could be played: {message}")
    logger.warning(
        "%d of the %d episodes that the tokenizer learns from failed, the first one in %s: %s",
        len(failures),
        len(episodes),
        env_id,
        message,
    )


def _texts(trajectory: Trajectory) -> list[str]:
    turns = [text for t in trajectory.turns for text in (t.completion.text, t.observation)]
    return [trajectory.system_prompt, trajectory.initial_observation, *turns]
