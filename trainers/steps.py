"""The stages of a training step and the ends of a run, each a function of the session.

In the order of a step: `collect`, `collate_step`, `learn`, `publish`, `record_step`; then
`start_run`, `evaluate`, `save_checkpoint` and `finish_run`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym import seeding
from agentgym.engine import GroupSpec
from agentgym.errors import InfrastructureError
from agentgym.evaluation import EvaluationResult, evaluate_policy
from agentgym.evaluation.signals import length_warning
from agentgym.records import FinishReason, Group, Score, Trajectory
from agentgym.rewards import score_all
from agentgym.samples import to_samples
from agentgym.trainers import checkpoint, objective
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.beliefs import score_requests
from agentgym.trainers.checkpoint import LoopState
from agentgym.trainers.models.save import save_policy
from agentgym.trainers.parts.probes import ScoringRequest, belief_fields
from agentgym.trainers.parts.registry import Need, Slot
from agentgym.trainers.session import Session
from agentgym.trainers.world import full_state

logger = logging.getLogger(__name__)

MAX_REFILLS = 8
"""Rounds in which groups without signal are replaced: past it the step goes on with what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """What a step collected."""

    groups: tuple[Group, ...]
    """Groups that are trained on."""
    scores: tuple[Score, ...]
    """Scores of their trajectories."""
    answers: Mapping[str, tuple[str, ...]]
    """Gold answers by task id, for probes."""
    discarded: int
    """Groups that a filter wanted replaced."""
    seconds: float
    """Wall time of the rollouts."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Every record of the groups, failed ones too."""
        return tuple(t for group in self.groups for t in group.trajectories)


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


async def collect(session: Session, state: LoopState) -> tuple[Episodes, LoopState]:
    """Run the groups of a step, replacing those that the preset's filters want replaced.

    Raises:
        InfrastructureError: If not one episode came to an end.
    """
    if not session.world.is_main:
        return session.world.broadcast(None)
    began = time.monotonic()
    kept: list[Group] = []
    scores: list[Score] = []
    answers: dict[str, tuple[str, ...]] = {}
    draw, discarded, tokens = state.next_draw, 0, 0
    for _ in range(MAX_REFILLS + 1):
        specs = [
            _group_spec(session, draw + i)
            for i in range(session.config.rollout.groups_per_step - len(kept))
        ]
        draw += len(specs)
        answers.update({spec.task.id: spec.task.answers for spec in specs})
        groups = await session.engine.run_groups(specs, session.folder.append_trajectory)
        tokens += sum(sampled_tokens(t) for group in groups for t in group.trajectories)
        fresh = await score_all([t for g in groups for t in g.trajectories], session.rubric)
        if not fresh:
            raise InfrastructureError(_all_failed(groups))
        good = without_refilled(session, groups, fresh)
        discarded += len(groups) - len(good)
        kept += good
        scores += fresh
        if len(kept) == session.config.rollout.groups_per_step:
            break
    ids = {t.id for group in kept for t in group.trajectories}
    episodes = Episodes(
        groups=tuple(kept),
        scores=tuple(score for score in scores if score.trajectory_id in ids),
        answers=answers,
        discarded=discarded,
        seconds=time.monotonic() - began,
    )
    for score in scores:
        session.folder.append_score(score)
    session.rubric.cache.clear()
    state = dataclasses.replace(state, next_draw=draw, sampled_tokens=state.sampled_tokens + tokens)
    return session.world.broadcast((episodes, state))


def _group_spec(session: Session, draw: int) -> GroupSpec:
    config = session.config
    seed = seeding.derive(config.seed, "group", draw)
    return GroupSpec(
        id=f"g{draw}",
        task=session.stream.draw(draw),
        size=config.rollout.group_size,
        seed=seed,
        sampling=dataclasses.replace(config.rollout.sampling(), seed=seed),
        limits=config.limits.to_limits(),
    )


def without_refilled(
    session: Session, groups: Sequence[Group], scores: Sequence[Score]
) -> list[Group]:
    """Return the groups that no filter of the preset wants replaced by others."""
    if not session.preset.filters:
        return list(groups)
    batch = _batch(session, groups, scores)
    refill = objective.apply_filters(session.preset, batch.table, batch.rows).refill
    unwanted = {batch.group_ids[index] for index in refill}
    return [group for group in groups if group.id not in unwanted]


def collate_step(session: Session, episodes: Episodes) -> list[Batch]:
    """Return the batches of a step, one for each optimiser update of a pass, probes attached."""
    pieces = session.config.optim.minibatches
    size = -(-len(episodes.groups) // pieces)
    batches: list[Batch] = []
    for start in range(0, len(episodes.groups), max(size, 1)):
        groups = episodes.groups[start : start + size]
        batch = _batch(session, groups, episodes.scores)
        batch = _with_beliefs(session, batch, groups, episodes.answers)
        trajectories = [t for group in groups for t in group.trajectories]
        batches.append(session.learner.with_needs(batch, trajectories))
    return batches


def _batch(session: Session, groups: Sequence[Group], scores: Sequence[Score]) -> Batch:
    trajectories = [t for group in groups for t in group.trajectories]
    ids = {t.id for t in trajectories}
    samples = objective.call_part(
        Slot.ROWS, session.preset.rows, [sample for t in trajectories for sample in to_samples(t)]
    )
    own = [score for score in scores if score.trajectory_id in ids]
    return collate(samples, trajectories, own, pad_id=session.renderer.pad_id)


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
    requests: tuple[ScoringRequest, ...] = ()
    for config in session.preset.probes:
        requests += objective.call_part(
            Slot.PROBE, config, trajectories, answers, session.renderer.encode
        )
    means = score_requests(session.learner, batch, requests) if requests else ()
    count, turns = batch.table.turn_valid.shape
    beliefs = belief_fields(requests, means, trajectories=count, turns=turns)
    return batch.with_turn_fields(belief_logprobs=beliefs)


def learn(session: Session, batches: Sequence[Batch]) -> dict[str, float]:
    """Take the optimiser updates of a step and return their mean metrics."""
    began = time.monotonic()
    epochs = session.config.optim.epochs
    is_single = epochs * len(batches) == 1
    if not is_single:
        batches = [session.learner.with_anchor(batch) for batch in batches]
    results = [
        session.learner.update(batch, is_single=is_single)
        for _ in range(epochs)
        for batch in batches
        if bool(batch.rows.mask.any())
    ]
    if not results:
        logger.warning("no token of this step is trained: every episode failed or was filtered")
    names = {name for result in results for name in result}
    means = {name: sum(r.get(name, 0.0) for r in results) / len(results) for name in sorted(names)}
    return {**means, "updates": float(len(results)), "learn_s": time.monotonic() - began}


async def publish(session: Session, state: LoopState) -> LoopState:
    """Let the policy sample with the new weights, under the next version."""
    version = session.learner.updates
    weights = full_state(session.learner.model, session.world) if session.has_copy else None
    if session.world.is_main:
        await session.policy.update_weights(weights, version=version)
    return dataclasses.replace(state, next_step=state.next_step + 1, policy_version=version)


async def record_step(
    session: Session, state: LoopState, episodes: Episodes, metrics: Mapping[str, float]
) -> LoopState:
    """Write the step's metrics; evaluate and save where it is time. Return the state."""
    config = session.config
    spent = state.step_s + episodes.seconds + metrics["learn_s"]
    state = dataclasses.replace(state, elapsed_s=session.elapsed_s(), step_s=spent)
    row = {
        "step": state.next_step,
        **episode_metrics(episodes),
        **metrics,
        "sampled_tokens_total": state.sampled_tokens,
        "elapsed_s": state.elapsed_s,
    }
    if session.world.is_main:
        session.folder.append_metrics(row)
        session.progress.on_step(row)
        warning = length_warning(_cut_off(episodes), [score.outcome for score in episodes.scores])
        if warning is not None:
            logger.warning("step %d: %s", state.next_step, warning)
    is_last = session.is_finished(state)
    if config.eval.every and state.next_step % config.eval.every == 0 and not is_last:
        await evaluate(session, state)
    if config.checkpoint.every and state.next_step % config.checkpoint.every == 0:
        save_checkpoint(session, state)
    return state


def episode_metrics(episodes: Episodes) -> dict[str, float]:
    """Return what a step's episodes were like: scores, lengths, ends, mistakes, failures."""
    trajectories = episodes.trajectories
    ended = [t for t in trajectories if t.failure is None]
    count = max(len(ended), 1)
    turns = [turn for t in ended for turn in t.turns]
    errors = Counter(str(turn.error_kind) for turn in turns if turn.error_kind is not None)
    failures = Counter(str(t.failure.kind) for t in trajectories if t.failure is not None)
    tokens = sum(sampled_tokens(t) for t in ended)
    return {
        "outcome": _mean([score.outcome for score in episodes.scores]),
        "success": _mean([float(score.is_success) for score in episodes.scores]),
        "episodes": float(len(trajectories)),
        "turns_per_episode": len(turns) / count,
        "tokens_per_episode": tokens / count,
        "tool_calls_per_episode": sum(len(turn.tool_results) for turn in turns) / count,
        "truncated_share": sum(t.truncated for t in ended) / count,
        "discarded_groups": float(episodes.discarded),
        "rollout_s": episodes.seconds,
        "rollout_tokens_per_s": tokens / max(episodes.seconds, 1e-9),
        **{f"errors_{kind}": float(number) for kind, number in sorted(errors.items())},
        **{f"failures_{kind}": float(number) for kind, number in sorted(failures.items())},
    }


def sampled_tokens(trajectory: Trajectory) -> int:
    """Return how many ids were sampled in an episode."""
    traces = [turn.completion.tokens for turn in trajectory.turns]
    return sum(len(trace.ids) for trace in traces if trace is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _cut_off(episodes: Episodes) -> list[bool]:
    return [
        any(turn.completion.finish_reason is FinishReason.LENGTH for turn in t.turns)
        for t in episodes.trajectories
        if t.failure is None
    ]


def _all_failed(groups: Sequence[Group]) -> str:
    failures = [t.failure for group in groups for t in group.trajectories if t.failure is not None]
    first = failures[0].message if failures else "no episode came to an end"
    return f"all {len(failures)} episodes of a step failed, the first one with: {first}"


# ---------------------------------------------------------------------------- ends of a run


async def start_run(session: Session, state: LoopState) -> LoopState:
    """Evaluate before the first step, where that is asked for."""
    if session.config.eval.at_start and state.next_step == 0:
        await evaluate(session, state)
    return state


async def evaluate(session: Session, state: LoopState) -> EvaluationResult | None:
    """Evaluate the present policy on the held-out tasks and write the result; None off rank 0."""
    if not session.world.is_main:
        return None
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


def save_checkpoint(session: Session, state: LoopState) -> Path:
    """Save everything that has state; what is written after it is cut off by a resume."""
    offsets = session.folder.offsets() if session.world.is_main else {}
    state = dataclasses.replace(state, offsets=offsets)
    return checkpoint.save(
        session.folder.checkpoints, session.learner, state, keep=session.config.checkpoint.keep
    )


async def finish_run(session: Session, state: LoopState) -> Summary:
    """Evaluate, save the state and the policy, and return the summary."""
    final = await evaluate(session, state) if session.config.eval.at_end else None
    save_checkpoint(session, state)
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
