"""Supervised steps on the environments' scripted experts, before the first episode of training.

`demonstrate` plays the experts and keeps their trajectories; `SupervisedTrainer` takes steps on
the rows. The control of the quickstart uses the same trainer for the minutes that RL gets.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from agentgym import seeding
from agentgym.config import OptimConfig, WarmstartConfig
from agentgym.errors import ConfigError
from agentgym.policies.expert import ExpertPolicy
from agentgym.records import Completion, Sample, Task, Trajectory, Turn
from agentgym.records.limits import Limits
from agentgym.renderer.base import Renderer
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.group import OnTrajectory
from agentgym.rollouts.samples import to_samples, with_ids
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.learner import checkpoint
from agentgym.trainers.learner.layout import rank_micro_batches
from agentgym.trainers.learner.learner import DivergedError, Learner
from agentgym.trainers.learner.optimizer import make_optimizer, set_learning_rates
from agentgym.trainers.learner.tensor_files import load_tensors
from agentgym.trainers.rollout.task_stream import TaskStream

OnProgress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, and the last loss in nats a token."""

_DEMO_STREAM = "demonstrations"
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmState:
    """Where a warm start stands."""

    schema: Literal[1] = 1
    """Version of what is written."""
    steps_done: checkpoint.Count
    """Steps taken."""
    order: tuple[checkpoint.Count, ...]
    """Rows of this pass that are left, the next ones first."""


async def demonstrate(
    stream: TaskStream,
    config: WarmstartConfig,
    *,
    seed: int,
    limits: Limits,
    max_concurrent: int,
    on_episode: OnTrajectory | None = None,
) -> tuple[Trajectory, ...]:
    """Return the experts' episodes on training tasks, a stated share of them guesses.

    Raises:
        ConfigError: If an environment has no expert, or an episode failed.
    """
    expert = ExpertPolicy(guess_share=config.guess_share, seed=seeding.derive(seed, _DEMO_STREAM))
    tasks = [(stream.draw(index), limits) for index in range(config.demos)]
    episodes = await play_training_tasks(
        tasks, expert, seed=seed, max_concurrent=max_concurrent, on_episode=on_episode
    )
    failed = next((episode for episode in episodes if episode.failure is not None), None)
    if failed is not None and failed.failure is not None:
        raise ConfigError(
            f"no demonstration of {failed.env_id}: {failed.failure.message}; "
            "train without a warm start (warmstart.steps=0) or write an expert()"
        )
    return episodes


async def play_training_tasks(
    tasks: Sequence[tuple[Task, Limits]],
    policy: ExpertPolicy,
    *,
    seed: int,
    max_concurrent: int,
    on_episode: OnTrajectory | None = None,
) -> tuple[Trajectory, ...]:
    """Return one episode of each task, within its limits, played by who looks into the environment.

    Those that failed are among them.
    """
    specs = [
        GroupSpec(
            id=f"demo-{index}",
            task=task,
            size=1,
            seed=seeding.derive(seed, _DEMO_STREAM, index),
            limits=limits,
        )
        for index, (task, limits) in enumerate(tasks)
    ]
    async with Engine(policy, max_concurrent=max_concurrent, retries=0) as engine:
        groups = await engine.run_groups(specs, on_episode)
    return tuple(trajectory for group in groups for trajectory in group.trajectories)


def demonstration_rows(episodes: Sequence[Trajectory], renderer: Renderer) -> tuple[Sample, ...]:
    """Return the training rows of text episodes, tokenised once."""
    return tuple(row for episode in episodes for row in to_samples(with_ids(episode, renderer)))


class SupervisedTrainer:
    """Takes supervised steps on rows, in an order that follows from a seed.

    Args:
        learner: Owner of the model that is trained; its own optimiser is left alone.
        rows: Rows to learn from; each pass goes through all of them in a new order.
        config: Batch size, learning rate and its schedule.
        total_steps: Steps of the schedule.
        seed: Seed of the order.
        pad_id: Id for padding.
    """

    def __init__(
        self,
        learner: Learner,
        rows: Sequence[Sample],
        config: WarmstartConfig,
        *,
        total_steps: int,
        seed: int,
        pad_id: int,
    ) -> None:
        rows = [row for row in rows if any(row.loss_mask)]
        if not rows:
            raise ConfigError("a warm start needs demonstrations (got none)")
        self.steps_done = 0
        self._learner = learner
        self._batch = collate_rows(rows, pad_id=pad_id)
        self._config = config
        self.total_steps = total_steps
        self._seed = seed
        # Adam's fast second moment suits the short schedule of a small model from scratch.
        optim = OptimConfig(
            learning_rate=config.learning_rate, weight_decay=config.weight_decay, beta2=0.98
        )
        self._optimizer = make_optimizer(learner.model.parameters(), optim)
        self._order: list[int] = []

    def plan(self, total_steps: int) -> None:
        """Let the schedule end after `total_steps`, those taken included."""
        self.total_steps = total_steps

    async def run(
        self, *, on_progress: OnProgress | None = None, kept: Path | None = None
    ) -> float:
        """Take all steps, or as many as `max_seconds` allows; return the last loss.

        A step blocks the loop; between two of them a cancellation is noticed.

        Args:
            on_progress: Called after each step.
            kept: Checkpoint to write once a minute, at the end, and when cancelled.
        """
        began = saved = time.monotonic()
        loss = float("nan")
        is_over = self.steps_done >= self.total_steps
        try:
            while not is_over:
                loss = self.step()
                await asyncio.sleep(0)
                if on_progress is not None:
                    on_progress(self.steps_done, self.total_steps, loss)
                is_over, is_due = self._what_next(began, saved)
                if kept is not None and (is_due or is_over):
                    self.save(kept)
                    saved = time.monotonic()
        except asyncio.CancelledError:
            if kept is not None and self._learner.world.size == 1:  # all ranks write, or none
                self.save(kept)
            raise
        return loss

    def _what_next(self, began: float, saved: float) -> tuple[bool, bool]:
        """Return whether that was the last step, and whether it is time to save, as rank 0 says."""
        now, bound = time.monotonic(), self._config.max_seconds
        is_over = self.steps_done >= self.total_steps or (
            bound is not None and now - began >= bound
        )
        return self._learner.world.broadcast((is_over, now - saved >= _SAVE_EVERY_S))

    def save(self, path: Path) -> None:
        """Write the model, the optimiser and the place in the data to a checkpoint."""
        state = checkpoint.state_json(
            WarmState(steps_done=self.steps_done, order=tuple(self._order))
        )
        checkpoint.write(path, self._tensors(), state, self._learner.world)

    def restore(self, path: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            UnusableCheckpointError: If it is of another model, or of other data.
        """
        tensors = self._tensors()
        state = checkpoint.read_state(path, WarmState)
        load_tensors(tensors, path / checkpoint.TENSORS, alone=self._learner.world.size == 1)
        set_state_dict(
            self._learner.model,
            self._optimizer,
            model_state_dict=tensors["model"],
            optim_state_dict=tensors["optimizer"],
        )
        checkpoint.restore_chance(tensors["rng"])
        self.steps_done, self._order = state.steps_done, list(state.order)

    def _tensors(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._learner.model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "rng": checkpoint.chance()}

    def step(self) -> float:
        """Take one step; return its mean loss in nats a trained token."""
        set_learning_rates(self._optimizer, policy=self._config.learning_rate * self._factor())
        batch, chosen, learner = self._batch, self._next_rows(), self._learner
        tokens = int(batch.rows.mask[chosen].sum())
        self._optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device=learner.world.device)
        for micro, is_filler in rank_micro_batches(batch, chosen, learner.world, learner.options):
            mask = batch.rows.mask[micro.rows.cpu(), : micro.valid.shape[1]].to(micro.ids.device)
            logprobs, _, _ = learner.scorer(micro, mask, 1.0, False)
            loss = -logprobs.sum() / tokens * (0.0 if is_filler else 1.0)
            loss.backward()
            if not is_filler:
                total += loss.detach().double()
        mean = float(learner.world.sum(total))
        if not math.isfinite(mean):
            raise DivergedError(f"the loss of the warm start is {mean!r}; the step was not taken")
        nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
        self._optimizer.step()
        self.steps_done += 1
        return mean

    def _factor(self) -> float:
        step, config = self.steps_done, self._config
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        falling = max(int(self.total_steps * config.decay_share), 1)
        return min(1.0, max(self.total_steps - step, 1) / falling) if config.decay_share else 1.0

    def _next_rows(self) -> list[int]:
        count = self._batch.ids.shape[0]
        size = min(self._config.batch_size, count)
        if len(self._order) < size:
            order = list(range(count))
            seeding.rng(self._seed, "supervised", self.steps_done).shuffle(order)
            self._order = order
        chosen, self._order = self._order[:size], self._order[size:]
        return chosen


def collate_rows(rows: Sequence[Sample], *, pad_id: int) -> Batch:
    """Return supervised rows as a batch: ids and masks count, rewards do not exist."""
    turns = {row.trajectory_id: max(row.turn_ids, default=-1) + 1 for row in rows}
    shells = [_shell(name, count) for name, count in turns.items()]
    return collate(rows, shells, (), pad_id=pad_id)


def _shell(trajectory_id: str, turns: int) -> Trajectory:
    """Return what the tables need of an episode that has no reward: its id and number of turns."""
    return Trajectory(
        id=trajectory_id,
        group_id=trajectory_id,
        task_id="demonstration",
        env_id="demonstration",
        turns=tuple(Turn(index=index, completion=Completion(text="")) for index in range(turns)),
    )
