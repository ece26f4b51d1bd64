"""The first half of a step, tasks to scored groups: `Episodes`, `collect`, `episode_metrics`."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgym import seeding
from agentgym.config import RunConfig
from agentgym.errors import InfrastructureError
from agentgym.records import Failure, FinishReason, Group, Score, StopReason, Trajectory, Turn
from agentgym.rollouts.engine import GroupSpec
from agentgym.rollouts.group import has_ended
from agentgym.rollouts.samples import to_samples
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.loop.session import Session
from agentgym.trainers.objective import prepare
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.parts.registry import Slot
from agentgym.trainers.rollout.buffer import Drawn
from agentgym.trainers.rollout.staleness import split_stale, token_lags
from agentgym.trainers.rollout.task_stream import TaskStream

logger = logging.getLogger(__name__)

MAX_REFILLS = 8
"""Rounds in which groups without signal are replaced: past it the step goes on with what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """What a step collected."""

    groups: tuple[Group, ...]
    """Groups that are trained on; members that are too old count in the statistics alone."""
    drawn: tuple[Group, ...]
    """Every group that was taken for the step, those that were replaced included."""
    scores: tuple[Score, ...]
    """Scores of all their trajectories: what success is shown over."""
    answers: Mapping[str, tuple[str, ...]]
    """Gold answers by task id, for probes."""
    version: int
    """Updates behind the weights that are trained on them."""
    discarded: int
    """Groups that a filter wanted replaced."""
    stale_groups: int
    """Groups that were replaced since every episode was too old."""
    stale: tuple[Trajectory, ...]
    """Episodes that were too old to be trained on."""
    seconds: float
    """Wall time that the learner waited for them."""
    ahead: int
    """Groups that were under way for later steps when these were taken."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Every record of the step, failed ones too."""
        return tuple(t for group in self.drawn for t in group.trajectories)

    @property
    def trained(self) -> tuple[Trajectory, ...]:
        """The records of the groups that are trained on, less those that are too old."""
        stale = {t.id for t in self.stale}
        return tuple(t for group in self.groups for t in group.trajectories if t.id not in stale)


@dataclass(slots=True, kw_only=True)
class _Collected:
    """What the rounds of a step have brought so far."""

    kept: list[Group] = field(default_factory=list[Group])
    drawn: list[Group] = field(default_factory=list[Group])
    scores: list[Score] = field(default_factory=list[Score])
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    stale: list[Trajectory] = field(default_factory=list[Trajectory])
    failures: list[Failure] = field(default_factory=list[Failure])
    stale_groups: int = 0
    tokens: int = 0


def group_spec(config: RunConfig, stream: TaskStream, draw: int) -> GroupSpec:
    """Return group number `draw` of a run: the same one whenever it is asked for."""
    seed = seeding.derive(config.seed, "group", draw)
    return GroupSpec(
        id=group_id(draw),
        task=stream.draw(draw),
        size=config.rollout.group_size,
        seed=seed,
        sampling=dataclasses.replace(config.rollout.sampling(), seed=seed),
        limits=config.limits.to_limits(),
    )


def group_id(draw: int) -> str:
    """Return the id of group number `draw`."""
    return f"g{draw}"


async def collect(session: Session, state: LoopState) -> tuple[Episodes, LoopState]:
    """Take the groups of a step, replacing stale ones and those that the preset's filters refuse.

    Raises:
        InfrastructureError: If not one episode came to an end.
    """
    found: tuple[Episodes, LoopState] | None = None
    with session.world.together():
        if session.world.is_main:
            found = await _collect(session, state)
    return session.world.broadcast(found)


async def _collect(session: Session, state: LoopState) -> tuple[Episodes, LoopState]:
    session.enter("wait for episodes")
    began = time.monotonic()
    rollouts, wanted = session.rollouts, session.config.rollout.groups_per_step
    found = _Collected()
    for _ in range(MAX_REFILLS + 1):
        rollouts.fill(state.next_step, replaced=len(found.drawn) - len(found.kept))
        drawn = await rollouts.take(wanted - len(found.kept))
        _sort(session, state, drawn, found)
        if len(found.kept) == wanted:
            break
    if not found.scores:
        raise InfrastructureError(_all_failed(found.failures))
    if len(found.kept) < wanted:
        logger.warning(
            "step %d trains on %d of %d groups: %d were drawn, and the others were too old or gave "
            "the preset's filters nothing to learn from",
            *(state.next_step + 1, len(found.kept), wanted, len(found.drawn)),
        )
    for score in found.scores:
        session.folder.append_score(score)
    rollouts.consume()
    session.rubric.cache.clear()
    episodes = Episodes(
        groups=tuple(found.kept),
        drawn=tuple(found.drawn),
        scores=tuple(found.scores),
        answers=found.answers,
        version=state.policy_version,
        discarded=len(found.drawn) - len(found.kept) - found.stale_groups,
        stale_groups=found.stale_groups,
        stale=tuple(found.stale),
        seconds=time.monotonic() - began,
        ahead=len(rollouts.outstanding),
    )
    sampled = state.sampled_tokens + found.tokens
    state = dataclasses.replace(state, next_draw=rollouts.next_draw, sampled_tokens=sampled)
    return episodes, state


def _sort(session: Session, state: LoopState, drawn: Sequence[Drawn], found: _Collected) -> None:
    """Add what of some groups is trained on to `found`."""
    found.drawn += [one.group for one in drawn]
    found.answers.update({one.task.id: one.task.answers for one in drawn})
    found.tokens += sum(sampled_tokens(t) for one in drawn for t in one.group.trajectories)
    found.failures += [t.failure for one in drawn for t in one.group.trajectories if t.failure]
    scores = [score for one in drawn for score in one.scores]
    found.scores += scores
    fresh: list[Group] = []
    for one in drawn:
        kept, stale = split_stale(
            one.group.trajectories,
            version=state.policy_version,
            max_staleness=session.config.rollout.max_staleness,
        )
        found.stale += stale
        if stale and not any(has_ended(t) for t in kept):
            found.stale_groups += 1
        else:
            fresh.append(one.group)
    found.kept += without_refilled(session, fresh, scores)


def without_refilled(
    session: Session, groups: Sequence[Group], scores: Sequence[Score]
) -> list[Group]:
    """Return the groups that no filter of the preset wants replaced by others."""
    return wanted_groups(session.preset, groups, lambda: batch_of(session, groups, scores))


def wanted_groups(
    preset: Preset, groups: Sequence[Group], batch_of_them: Callable[[], Batch]
) -> list[Group]:
    """Return the groups that no filter wants replaced; their batch is made only if one may."""
    # The other filters ask for nothing, and may read what the learner has not attached yet.
    asking = tuple(one for one in preset.filters if one.parameters.get("refill"))
    if not asking or not groups:
        return list(groups)
    batch = batch_of_them()
    preset = preset.model_copy(update={"filters": asking})
    refill = prepare.apply_filters(preset, batch.table, batch.rows).refill
    unwanted = {batch.group_ids[index] for index in refill}
    return [group for group in groups if group.id not in unwanted]


def batch_of(session: Session, groups: Sequence[Group], scores: Sequence[Score]) -> Batch:
    """Return the batch of some groups, without what the preset needs beside it."""
    # No update is taken between the collection of a step's episodes and its last batch.
    return make_batch(
        session.preset,
        groups,
        scores,
        pad_id=session.renderer.pad_id,
        version=session.learner.updates,
        max_staleness=session.config.rollout.max_staleness,
    )


def make_batch(
    preset: Preset,
    groups: Sequence[Group],
    scores: Sequence[Score],
    *,
    pad_id: int,
    version: int,
    max_staleness: int,
) -> Batch:
    """Return the batch of some groups, trained on by weights of a version.

    An episode that is too old for them stays in its group's statistics, as age goes with length and
    length with failure; none of its tokens is trained.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    ids = {t.id for t in trajectories}
    samples = prepare.call_part(
        Slot.ROWS, preset.rows, [sample for t in trajectories for sample in to_samples(t)]
    )
    own = [score for score in scores if score.trajectory_id in ids]
    _, stale = split_stale(trajectories, version=version, max_staleness=max_staleness)
    old = frozenset(t.id for t in stale)
    batch = collate(samples, trajectories, own, pad_id=pad_id, untrained=old)
    # Off the mask, where a token has no version, the lag means nothing.
    return batch.with_token_fields(lag=(version - batch.rows.versions).float())


def minibatches(groups: Sequence[Group], pieces: int) -> list[Sequence[Group]]:
    """Return the groups of each update of a pass: `pieces` of them, as even as can be.

    Fewer where there are fewer groups.

    Example:
        4 groups in 3 pieces: 1, 1 and 2.
    """
    count = min(pieces, len(groups))
    ends = [len(groups) * place // count for place in range(count + 1)] if count else [0]
    return [groups[start:stop] for start, stop in itertools.pairwise(ends)]


def episode_metrics(episodes: Episodes, *, wall_s: float) -> dict[str, float]:
    """Return what a step's episodes were like: scores, lengths, ends, mistakes, failures, ages.

    They are taken over every episode of the step, also of groups that were replaced: over those
    that are trained on alone, a preset that replaces solved groups would look as if it never
    solved one.

    Args:
        episodes: What the step collected.
        wall_s: Seconds in which as many were sampled.
    """
    trajectories = episodes.trajectories
    ended = [t for t in trajectories if has_ended(t)]
    count = max(len(ended), 1)
    turns = [turn for t in ended for turn in t.turns]
    errors = Counter(str(turn.error_kind) for turn in turns if turn.error_kind is not None)
    failures = Counter(str(t.failure.kind) for t in trajectories if t.failure is not None)
    tokens = sum(sampled_tokens(t) for t in ended)
    return {
        "outcome": _mean([score.outcome for score in episodes.scores]),
        "success": _mean([float(score.is_success) for score in episodes.scores]),
        **_named_rewards(ended),
        "groups": float(len(episodes.groups)),
        "episodes": float(len(trajectories)),
        "turns_per_episode": len(turns) / count,
        "tokens_per_episode": tokens / count,
        "tool_calls_per_episode": sum(len(turn.tool_results) for turn in turns) / count,
        "truncated_share": sum(t.truncated for t in ended) / count,
        "discarded_groups": float(episodes.discarded),
        **_ages(episodes),
        "rollout_s": episodes.seconds,
        "rollout_tokens_per_s": tokens / max(wall_s, 1e-9),
        **_turn_seconds(turns),
        **{f"errors_{kind}": float(number) for kind, number in sorted(errors.items())},
        **{f"failures_{kind}": float(number) for kind, number in sorted(failures.items())},
    }


def _named_rewards(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean over episodes of each named reward, summed over its turns."""
    sums: dict[str, float] = {}
    for turn in (turn for t in trajectories for turn in t.turns):
        for name, value in turn.rewards.items():
            sums[name] = sums.get(name, 0.0) + value
    return {f"reward_{name}": sums[name] / len(trajectories) for name in sorted(sums)}


def _turn_seconds(turns: Sequence[Turn]) -> dict[str, float]:
    """Return what a turn took on average, in the policy (its queue included) and in the env."""
    return {
        f"turn_{name}": _mean([turn.timings.get(name, 0.0) for turn in turns])
        for name in ("policy_s", "env_s")
    }


def _ages(episodes: Episodes) -> dict[str, float]:
    lags = token_lags(episodes.trained, version=episodes.version)
    tokens = sum(count for _, count in lags)
    cancelled = sum(t.stop_reason is StopReason.CANCELLED for t in episodes.trajectories)
    return {
        "staleness_mean": sum(lag * count for lag, count in lags) / max(tokens, 1),
        "staleness_max": float(max((lag for lag, _ in lags), default=0)),
        "stale_episodes": float(len(episodes.stale)),
        "stale_groups": float(episodes.stale_groups),
        "cancelled_episodes": float(cancelled),
        "groups_ahead": float(episodes.ahead),
    }


def sampled_tokens(trajectory: Trajectory) -> int:
    """Return how many ids were sampled in an episode."""
    traces = [turn.completion.tokens for turn in trajectory.turns]
    return sum(len(trace.ids) for trace in traces if trace is not None)


def cut_off(episodes: Episodes) -> list[bool]:
    """Return for each episode that came to an end whether a turn was cut off by length."""
    return [
        any(turn.completion.finish_reason is FinishReason.LENGTH for turn in t.turns)
        for t in episodes.trajectories
        if has_ended(t)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _all_failed(failures: Sequence[Failure]) -> str:
    first = failures[0].message if failures else "no episode came to an end"
    return f"all {len(failures)} episodes of a step failed, the first one with: {first}"


__all__ = [
    "MAX_REFILLS",
    "Episodes",
    "batch_of",
    "collect",
    "cut_off",
    "episode_metrics",
    "group_id",
    "group_spec",
    "make_batch",
    "minibatches",
    "sampled_tokens",
    "wanted_groups",
]
