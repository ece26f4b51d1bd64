"""Opens a run: everything that can be wrong is found first, then the slow parts begin.

In order: `check_inputs` (preset, tasks, leaks; nothing is written), `open_session` (model, warm
start, policy, engine).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from agentgym import seeding
from agentgym.config import RunConfig
from agentgym.config.schema import Concurrency
from agentgym.env.suites import check_leaks
from agentgym.errors import ConfigError
from agentgym.evaluation.evaluator import choose_tasks, evaluation_sources
from agentgym.policies.base import TrainablePolicy
from agentgym.records import Task, Trajectory
from agentgym.renderer.base import Renderer
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine
from agentgym.rollouts.scoring import Rubric
from agentgym.runs.folder import CHECKPOINTS, STREAMS, RunFolder, read_trajectories
from agentgym.runs.policies import PolicyKind, read_policy
from agentgym.runs.progress import ProgressSink
from agentgym.trainers.learner import checkpoint
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.distributed import World, full_state, join_world
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.sft import SupervisedTrainer, demonstrate, demonstration_rows
from agentgym.trainers.learner.thread import LearnerThread
from agentgym.trainers.loop.collect import group_id, group_spec
from agentgym.trainers.loop.open_learner import open_learner
from agentgym.trainers.loop.run_preset import (
    preset_of,
    refuse_what_is_missing,
    say_what_age_does,
    say_where_beliefs_are_missing,
)
from agentgym.trainers.loop.session import Session
from agentgym.trainers.models.load import load_learner, resolve_policy
from agentgym.trainers.models.save import save_policy
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.models.tokenizer_corpus import corpus_texts, tags_of
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.parts.registry import Need
from agentgym.trainers.rollout.buffer import Pace, Rollouts
from agentgym.trainers.rollout.task_stream import TaskStream, open_sources
from agentgym.trainers.weight_sync.open_policy import Place, open_policy, samples_from_copy
from agentgym.trainers.weight_sync.served_policy import is_served, served_base

logger = logging.getLogger(__name__)

LEAK_SAMPLE = 4_096
"""Training tasks of an unbounded split that are compared with the held-out ones at the start."""

BELIEF_SAMPLE = 32
"""First training tasks that are looked at for a gold answer."""

WARM_START = "warmstart"
"""Folder in a run's folder: the policy after its warm start."""

FRESH = LoopState(
    next_step=0,
    next_draw=0,
    policy_version=0,
    sampled_tokens=0,
    elapsed_s=0.0,
    step_s=0.0,
    offsets={},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a config means, before anything slow has begun."""

    config: RunConfig
    """Resolved settings."""
    preset: Preset
    """The objective."""
    stream: TaskStream
    """Training tasks by number."""
    eval_tasks: tuple[Task, ...]
    """Held-out tasks; empty if no evaluation is asked for."""


def check_inputs(config: RunConfig) -> Inputs:
    """Return what a config means.

    Raises:
        ConfigError: If the preset, an environment or a suite is unknown or contradicts the rest,
            or held-out tasks are training tasks and that is not allowed.
    """
    if not config.envs:
        raise ConfigError("training needs one environment or suite or more (got none)")
    preset = preset_of(config)
    refuse_what_is_missing(preset)
    say_what_age_does(config, preset)
    sources = open_sources(config.envs)
    wants_eval = config.eval.every or config.eval.at_start or config.eval.at_end
    eval_tasks: tuple[Task, ...] = ()
    if wants_eval:
        eval_tasks = choose_tasks(
            evaluation_sources(config),
            split=config.eval.split,
            count=config.eval.tasks,
            seed=config.eval.seed,
        )
        for source in sources:
            size = source.suite.size(source.split)
            count = min(size, LEAK_SAMPLE) if size is not None else LEAK_SAMPLE
            train = (source.suite.task(source.split, index) for index in range(count))
            check_leaks(train, eval_tasks, allow=config.allow_leak)
    held_out = frozenset(() if config.allow_leak else (t.content_hash for t in eval_tasks))
    stream = TaskStream(sources, seed=config.seed, held_out=held_out)
    say_where_beliefs_are_missing(preset, [stream.draw(draw) for draw in range(BELIEF_SAMPLE)])
    return Inputs(config=config, preset=preset, stream=stream, eval_tasks=eval_tasks)


MakePolicy = Callable[[Learner, Renderer, LoopState], TrainablePolicy]


async def open_session(
    inputs: Inputs,
    folder: RunFolder,
    *,
    progress: ProgressSink,
    is_resumed: bool,
    make_policy: MakePolicy | None = None,
) -> Session:
    """Return the session of a run, its policy warm-started or as the last checkpoint left it.

    Args:
        inputs: From `check_inputs`.
        folder: The run's folder, open.
        progress: Who is told how it goes.
        is_resumed: Go on from the newest checkpoint, if there is one.
        make_policy: Makes who samples, in place of what the config names.

    Raises:
        ConfigError: If the model cannot be loaded.
        CheckpointError: If the checkpoint does not fit the config.
    """
    config = inputs.config
    world = _join(config)
    # Before the model is loaded: damage is said at once.
    latest = checkpoint.latest_of_all(folder.checkpoints, world) if is_resumed else None
    base = await _base_folder(inputs, folder, world, progress)
    renderer = load_renderer(base, history=config.rollout.history)
    learner = open_learner(config, inputs.preset, base, world)
    place = Place(run=folder.path, base=base)
    if latest is None and config.warmstart.steps:
        await _warm_start(inputs, learner, renderer, place, progress)
    state = _begin(inputs, folder, learner, base, latest, is_resumed=is_resumed)
    policy = await _policy(inputs, learner, renderer, place, state, make_policy=make_policy)
    engine, rubric = _engine(config, policy), Rubric()
    return Session(
        config=config,
        world=world,
        preset=inputs.preset,
        learner=learner,
        renderer=renderer,
        base=base,
        policy=policy,
        has_copy=samples_from_copy(config, learner),
        engine=engine,
        rollouts=_rollouts(inputs, engine, folder, rubric, state),
        thread=LearnerThread(world.device),
        rubric=rubric,
        stream=inputs.stream,
        eval_tasks=inputs.eval_tasks,
        folder=folder,
        progress=progress,
        state=state,
    )


async def _policy(
    inputs: Inputs,
    learner: Learner,
    renderer: Renderer,
    place: Place,
    state: LoopState,
    *,
    make_policy: MakePolicy | None,
) -> TrainablePolicy:
    if make_policy is not None:
        return make_policy(learner, renderer, state)
    return await open_policy(inputs.config, learner, renderer, place, state)


def _engine(config: RunConfig, policy: TrainablePolicy) -> Engine:
    return Engine(
        policy,
        max_concurrent=config.rollout.max_concurrent,
        retries=config.rollout.retries,
        is_ordered=config.deterministic,
    )


def _rollouts(
    inputs: Inputs, engine: Engine, folder: RunFolder, rubric: Rubric, state: LoopState
) -> Rollouts:
    """Return the run's episodes, those that were under way at the checkpoint taken over."""
    config = inputs.config
    rollout = config.rollout
    rollouts = Rollouts(
        engine,
        lambda draw: group_spec(config, inputs.stream, draw),
        rubric=rubric,
        record=folder.append_trajectory,
        pace=Pace(
            groups_per_step=rollout.groups_per_step,
            steps_ahead=rollout.max_staleness // config.optim.updates_per_step,
            last_step=config.steps,
            closes_at=rollout.closes_at,
            is_adaptive=rollout.concurrency is Concurrency.ADAPTIVE,
        ),
        next_draw=state.next_draw,
    )
    if state.outstanding:
        wanted = {group_id(draw) for draw in state.outstanding}
        records: dict[str, list[Trajectory]] = {}
        for trajectory in read_trajectories(folder.path):
            if trajectory.group_id in wanted:
                records.setdefault(trajectory.group_id, []).append(trajectory)
        rollouts.restore(state.outstanding, records)
    return rollouts


def _begin(
    inputs: Inputs,
    folder: RunFolder,
    learner: Learner,
    base: Path,
    latest: Path | None,
    *,
    is_resumed: bool,
) -> LoopState:
    """Let critic and reference begin at the start's weights; restore the newest checkpoint.

    What was written after the checkpoint is cut off: it is run again, without one everything is.
    """
    config = inputs.config
    start = folder.path / WARM_START if config.warmstart.steps else base
    needs_reference = Need.REFERENCE in inputs.preset.needs
    reference: nn.Module | None = None
    if needs_reference:
        # As the learner's, so that nothing but training sets the two apart.
        reference, _ = load_learner(
            start, config.model, dtype=config.optim.dtype, device=learner.world.device
        )
    learner.start_from_here(reference)
    # What was drawn until here depends on what was there already, such as a built model.
    torch.manual_seed(seeding.derive(config.seed, "torch"))
    state = checkpoint.load(latest, learner) if latest is not None else FRESH
    with learner.world.together():
        if is_resumed and learner.world.is_main:
            folder.truncate_to(state.offsets or dict.fromkeys(STREAMS, 0))
    return state


def _join(config: RunConfig) -> World:
    """Return this process's place among those of the run."""
    world = join_world(config.optim.device)
    if config.deterministic:
        make_deterministic()
    return world


def make_deterministic() -> None:
    """Make equal runs bit-equal: one thread, deterministic kernels."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)


async def _base_folder(
    inputs: Inputs, folder: RunFolder, world: World, progress: ProgressSink
) -> Path:
    """Return the folder of the model to begin from: a new one, or a checkpoint's, in the run's."""
    config = inputs.config
    if config.warmstart.path is not None:
        return Path(config.warmstart.path)
    if is_served(config.policy):
        with world.together():
            return await served_base(config.policy)
    kind, path = read_policy(config.policy).kind, folder.path / "base"
    if kind not in {PolicyKind.TINY, PolicyKind.CHECKPOINT}:
        return resolve_policy(config.policy)
    with world.together():
        if world.is_main and not (path / "config.json").is_file():
            if kind is PolicyKind.TINY:
                await _build_tiny(inputs, path, progress)
            else:
                resolve_policy(config.policy, folder=path)
    return path


async def _build_tiny(inputs: Inputs, path: Path, progress: ProgressSink) -> None:
    """Write a new tiny model whose tokenizer knows the run's tasks."""
    config = inputs.config
    corpus = await corpus_texts(inputs.stream, config, progress)
    build_tiny(
        path,
        size=config.policy.partition(":")[2] or "small",
        corpus=corpus,
        tags=tags_of(corpus),
        seed=seeding.derive(config.seed, "weights") % 2**31,
    )


def _save_start(learner: Learner, place: Place) -> None:
    """Write the policy as the warm start left it."""
    world = learner.world
    weights = full_state(learner.model, world) if world.size > 1 else None
    with world.together():  # every rank reads it, where the preset has a reference
        if world.is_main:
            save_policy(learner.model, place.base, place.run / WARM_START, weights)


async def _warm_start(
    inputs: Inputs, learner: Learner, renderer: Renderer, place: Place, progress: ProgressSink
) -> None:
    """Let the learner imitate the environments' experts, and write the policy after it."""
    config, kept = inputs.config, place.run / CHECKPOINTS / checkpoint.WARM_START
    progress.on_phase("demonstrations", config.warmstart.demos)
    with learner.world.together():
        episodes = await demonstrate(
            inputs.stream,
            config.warmstart,
            seed=config.seed,
            limits=config.limits.to_limits(),
            max_concurrent=config.rollout.max_concurrent,
            on_episode=lambda _: progress.on_step({}),
        )
    trainer = SupervisedTrainer(
        learner,
        demonstration_rows(episodes, renderer),
        config.warmstart,
        total_steps=config.warmstart.steps,
        seed=config.seed,
        pad_id=renderer.pad_id,
    )
    if learner.world.broadcast(checkpoint.is_usable(kept)):
        trainer.restore(kept)
    progress.on_phase("warm start", config.warmstart.steps - trainer.steps_done)
    await trainer.run(
        on_progress=lambda done, total, loss: progress.on_step({"loss": loss}), kept=kept
    )
    _save_start(learner, place)
