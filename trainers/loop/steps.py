"""The stages of a training step and the ends of a run, each a function of the session.

In the order of a step, after `agentgym.trainers.loop.collect.collect`: `collate_step`, `learn`,
`publish`, `record_step`, `look_back`; then `start_run`, `evaluate`, `save_checkpoint` and
`finish_run`. What computes runs in the learner's thread, so that episodes go on meanwhile.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.config.schema import PartialRollouts
from agentgym.errors import CheckpointError
from agentgym.evaluation import EvaluationResult, evaluate_policy
from agentgym.evaluation.signals import length_warning
from agentgym.records import Group
from agentgym.runs.jsonl import DiskError
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner import checkpoint
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.distributed import full_state
from agentgym.trainers.learner.probe_scoring import with_beliefs
from agentgym.trainers.loop.collect import (
    Episodes,
    batch_of,
    cut_off,
    episode_metrics,
    minibatches,
)
from agentgym.trainers.loop.run_preset import measures_gap
from agentgym.trainers.loop.session import Session
from agentgym.trainers.models.save import save_policy
from agentgym.trainers.parts.registry import Need

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of a run."""

    folder: Path
    """The run folder."""
    steps: int
    """Steps taken, earlier processes counted."""
    sampled_tokens: int
    """Tokens sampled in training."""
    seconds: float
    """Seconds of training, warm start excluded."""
    step_s: float
    """Of these, seconds in rollouts and updates."""
    final: EvaluationResult | None
    """The last evaluation; None if none was asked for."""


# ---------------------------------------------------------------------------- the step


async def collate_step(session: Session, episodes: Episodes) -> list[Batch]:
    """Return the batches of a step, one for each optimiser update of a pass, probes attached."""
    session.enter("collate")
    with session.clock.time("collate_s"):
        return await session.compute(_batches, session, episodes)


def _batches(session: Session, episodes: Episodes) -> list[Batch]:
    batches: list[Batch] = []
    for groups in minibatches(episodes.groups, session.config.optim.minibatches):
        batch = batch_of(session, groups, episodes.scores)
        batch = _with_beliefs(session, batch, groups, episodes.answers)
        trajectories = [t for group in groups for t in group.trajectories]
        batches.append(session.learner.with_needs(batch, trajectories))
    return batches


def _with_beliefs(
    session: Session,
    batch: Batch,
    groups: Sequence[Group],
    answers: Mapping[str, tuple[str, ...]],
) -> Batch:
    """Return the batch with what the preset's probes ask of the model."""
    if Need.BELIEF not in session.preset.needs:
        return batch
    trajectories = [t for group in groups for t in group.trajectories]
    with session.clock.time("beliefs_s"):
        return with_beliefs(
            session.preset,
            session.learner,
            batch,
            trajectories,
            answers=answers,
            encode=session.renderer.encode,
        )


async def learn(session: Session, batches: Sequence[Batch]) -> dict[str, float]:
    """Take the optimiser updates of a step and return their mean metrics.

    Planned are `optim.updates_per_step`; `updates` were taken, `skipped_updates` had nothing to
    learn from. The learning rate goes by the plan.
    """
    session.enter("learn")
    return await session.compute(_updates, session, batches)


def _updates(session: Session, batches: Sequence[Batch]) -> dict[str, float]:
    began = time.monotonic()
    learner, optim = session.learner, session.config.optim
    is_single = optim.epochs * len(batches) == 1 and not measures_gap(session.config)
    if not (is_single and session.preset.can_skip_proximal):
        with session.clock.time("logprob_s"):
            batches = [learner.with_anchor(batch) for batch in batches]
    before, planned = learner.updates, session.step * optim.updates_per_step
    with session.clock.time("update_s"):
        results = [
            learner.update(
                batch, is_single=is_single, planned=planned + epoch * optim.minibatches + place
            )
            for epoch in range(optim.epochs)
            for place, batch in enumerate(batches)
        ]
    taken = learner.updates - before
    if not taken:
        logger.warning(
            "step %d changes nothing: no token is trained, or every advantage is 0",
            session.step + 1,
        )
    return {
        **_means(results),
        "updates": float(taken),
        "skipped_updates": float(optim.updates_per_step - taken),
        "learn_s": time.monotonic() - began,
    }


def _means(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that have it."""
    names = sorted({name for result in results for name in result})
    found = {name: [result[name] for result in results if name in result] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


async def publish(session: Session, state: LoopState) -> None:
    """Let the policy sample with the new weights, under their version; live episodes too."""
    session.enter("publish")
    weights = None
    with session.clock.time("publish_s"):
        if session.has_copy:
            weights = await session.compute(full_state, session.learner.model, session.world)
        with session.world.together():
            if session.world.is_main:
                await session.policy.update_weights(weights, version=state.policy_version)
    if session.world.is_main and session.config.rollout.partial is PartialRollouts.DROP:
        session.engine.restart_live()


def record_step(
    session: Session, state: LoopState, episodes: Episodes, metrics: Mapping[str, float]
) -> LoopState:
    """Write the step's metrics and return the state that a run could go on from.

    The weights are those after the step from here on: whatever fails next, the run goes on there.
    """
    spent = state.step_s + episodes.seconds + metrics["learn_s"]
    elapsed = session.elapsed_s()
    wall_s = elapsed - state.elapsed_s if session.config.rollout.max_staleness else episodes.seconds
    state = dataclasses.replace(
        state,
        next_step=state.next_step + 1,
        policy_version=session.learner.updates,
        elapsed_s=elapsed,
        step_s=spent,
    )
    session.reached = _with_offsets(session, state)
    row = {
        "step": state.next_step,
        **episode_metrics(episodes, wall_s=wall_s),
        **metrics,
        **session.clock.take(),
        **session.world.peak_memory(),
        "sampled_tokens_total": state.sampled_tokens,
        "elapsed_s": state.elapsed_s,
    }
    session.step = state.next_step
    with session.world.together():
        if session.world.is_main:
            session.folder.append_metrics(row)
    if not session.world.is_main:
        return state
    session.progress.on_step(row)
    warning = length_warning(cut_off(episodes), [score.outcome for score in episodes.scores])
    if warning is not None and not session.has_warned_of_length:
        session.has_warned_of_length = True
        logger.warning("step %d (said once): %s", state.next_step, warning)
    session.reached = _with_offsets(session, state)
    return session.reached


def _with_offsets(session: Session, state: LoopState) -> LoopState:
    """Return the state with how much is written, where an interrupted run must be bit-equal.

    Such a run drops the step in flight whole, and goes on from there.
    """
    is_written = session.config.deterministic and session.world.is_main
    offsets = session.folder.offsets() if is_written else {}
    return dataclasses.replace(state, offsets=offsets)


async def look_back(session: Session, state: LoopState) -> None:
    """Evaluate and save, where it is time after a step."""
    config = session.config
    is_last = session.is_finished(state)
    if (
        config.eval.every
        and state.next_step % config.eval.every == 0
        and not (is_last and config.eval.at_end)
    ):
        await evaluate(session, state)
    if config.checkpoint.every and state.next_step % config.checkpoint.every == 0:
        session.enter("save")
        await session.compute(save_checkpoint, session, position(session, state))


# ---------------------------------------------------------------------------- ends of a run


async def start_run(session: Session, state: LoopState) -> LoopState:
    """Evaluate before the first step, where that is asked for."""
    if session.config.eval.at_start and state.next_step == 0:
        await evaluate(session, state)
    return state


async def evaluate(session: Session, state: LoopState) -> EvaluationResult | None:
    """Evaluate the present policy on the held-out tasks and write the result; None off rank 0."""
    with session.world.together():
        return await _evaluate(session, state) if session.world.is_main else None


async def _evaluate(session: Session, state: LoopState) -> EvaluationResult:
    session.enter("evaluate")
    result = await evaluate_policy(
        session.engine,
        session.eval_tasks,
        session.config.eval,
        name=f"step-{state.next_step:06d}",
        step=state.next_step,
        limits=session.config.limits.to_limits(),
        rubric=dataclasses.replace(session.rubric, cache={}),
    )
    session.folder.write_evaluation(result.name, result.to_dict())
    session.progress.on_evaluation(result)
    return result


def position(session: Session, state: LoopState) -> LoopState:
    """Return the state with what is under way and what is on disk at this moment.

    What is recorded later is cut off by a resume, which runs it again under the same ids.
    """
    if not session.world.is_main or session.config.deterministic:
        return state
    return dataclasses.replace(
        state,
        next_draw=session.rollouts.next_draw,
        outstanding=session.rollouts.outstanding,
        offsets=session.folder.offsets(),
    )


def save_checkpoint(session: Session, state: LoopState) -> Path:
    """Save everything that has state."""
    return checkpoint.save(
        session.folder.checkpoints, session.learner, state, keep=session.config.checkpoint.keep
    )


def save_what_is_whole(session: Session, state: LoopState) -> None:
    """Save the state after the last whole step, as a run ends before its time.

    A disk that is full does not hide why the run ended: that is said, and older checkpoints stay.
    """
    try:
        save_checkpoint(session, position(session, state))
    except (CheckpointError, DiskError) as error:
        logger.warning("the state could not be saved: %s", error)


async def finish_run(session: Session, state: LoopState) -> Summary:
    """Evaluate, save the state and the policy, and return the summary."""
    final = await evaluate(session, state) if session.config.eval.at_end else None
    session.enter("save")
    await session.compute(save_checkpoint, session, position(session, state))
    weights = full_state(session.learner.model, session.world) if session.world.size > 1 else None
    if session.world.is_main:
        save_policy(session.learner.model, session.base, session.folder.policy, weights)
    return Summary(
        folder=session.folder.path,
        steps=state.next_step,
        sampled_tokens=state.sampled_tokens,
        seconds=session.elapsed_s(),
        step_s=state.step_s,
        final=final,
    )
