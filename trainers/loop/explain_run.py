"""`explain_run`: one group that a run has trained on, its numbers made anew from the run's files.

What a preset computes from records alone, it computes here as it did there. Where it asks the model
(values, beliefs, an anchor), the weights before the step must be there: the start's, or a
checkpoint of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.config import RunConfig
from agentgym.errors import ConfigError
from agentgym.records import Group, Score, Trajectory
from agentgym.renderer.base import Renderer
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.group import has_ended, place_of
from agentgym.runs.folder import read_config, read_metrics, read_scores, read_trajectories
from agentgym.runs.policies import start_of
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner import checkpoint
from agentgym.trainers.learner.distributed import join_world
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.probe_scoring import with_beliefs
from agentgym.trainers.loop.collect import group_id, make_batch, minibatches, wanted_groups
from agentgym.trainers.loop.open_learner import open_learner
from agentgym.trainers.loop.run_preset import measures_gap, preset_of
from agentgym.trainers.loop.setup import check_inputs
from agentgym.trainers.models.load import resolve_policy
from agentgym.trainers.objective.explain import explain
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.parts.registry import Need
from agentgym.trainers.rollout.staleness import split_stale


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a run says of one of its steps."""

    config: RunConfig
    number: int
    draws: range
    """Numbers of the groups that were taken for it, those that were replaced included."""
    version: int
    """Updates behind the weights that it trained."""


def explain_run(
    run: Path,
    name: str,
    overrides: Mapping[str, Any],
    *,
    step: int,
    group: str | None = None,
) -> tuple[str, ...]:
    """Return lines that walk through the numbers of a group of a run, as `explain` does.

    Args:
        run: Folder of the run.
        name: Preset: the run's own, with its overrides, or another on the same episodes.
        overrides: Settings of the preset, over the run's.
        step: Step of the run, from 1.
        group: Id of the group; by default the first one whose outcomes differ.

    Raises:
        ConfigError: If the run has no such step or group, or lacks weights that the preset needs.
    """
    config = read_config(run)
    own = dict(config.preset_overrides) if name == config.preset else {}
    preset = preset_of(config, name, {**own, **overrides})
    found = _step(run, config, step)
    groups, scores = _trained(run, found)
    chosen = _chosen(groups, scores, group)
    pieces = minibatches(groups, config.optim.minibatches)
    # Those that share an update with it: statistics may span them.
    members = next(piece for piece in pieces if any(group.id == chosen for group in piece))
    renderer = load_renderer(_start(run, config), history=config.rollout.history)
    batch = _batch(found, preset, members, scores, pad_id=renderer.pad_id)
    batch = _asked(run, found, preset, batch, members, renderer=renderer)
    return explain(preset, batch, chosen)


def _step(run: Path, config: RunConfig, number: int) -> _Step:
    rows = {int(row["step"]): row for row in read_metrics(run)}
    if number not in rows:
        had = f"it has 1 to {max(rows)}" if rows else "it has none yet"
        raise ConfigError(f"{run} has no step {number}: {had}")
    earlier = [rows[step] for step in range(1, number)]
    first = sum(_taken(row, config) for row in earlier)
    return _Step(
        config=config,
        number=number,
        draws=range(first, first + _taken(rows[number], config)),
        version=int(sum(row["updates"] for row in earlier)),
    )


def _taken(row: Mapping[str, Any], config: RunConfig) -> int:
    """Return how many groups a step used up: those trained on, and those that were replaced."""
    kept = row.get("groups", config.rollout.groups_per_step)
    return int(kept + row["discarded_groups"] + row["stale_groups"])


def _trained(run: Path, step: _Step) -> tuple[list[Group], list[Score]]:
    """Return the groups that the step was trained on, and the scores."""
    wanted = {group_id(draw): list[Trajectory]() for draw in step.draws}
    for trajectory in read_trajectories(run):
        if trajectory.group_id in wanted:
            wanted[trajectory.group_id].append(trajectory)
    scores = [s for s in read_scores(run) if s.trajectory_id.partition("-")[0] in wanted]
    groups: list[Group] = []
    for name, records in wanted.items():
        records.sort(key=place_of)
        kept, stale = split_stale(
            records,
            version=step.version,
            max_staleness=step.config.rollout.max_staleness,
        )
        if kept and not (stale and not any(map(has_ended, kept))):
            groups.append(_group(name, records))
    return _without_replaced(step, groups, scores), scores


def _group(name: str, records: Sequence[Trajectory]) -> Group:
    return Group(
        id=name,
        task_id=records[0].task_id,
        requested_size=len(records),
        trajectories=tuple(records),
    )


def _without_replaced(step: _Step, groups: list[Group], scores: Sequence[Score]) -> list[Group]:
    preset = preset_of(step.config)
    return wanted_groups(preset, groups, lambda: _batch(step, preset, groups, scores, pad_id=0))


def _batch(
    step: _Step, preset: Preset, groups: Sequence[Group], scores: Sequence[Score], *, pad_id: int
) -> Batch:
    bound = step.config.rollout.max_staleness
    return make_batch(
        preset, groups, scores, pad_id=pad_id, version=step.version, max_staleness=bound
    )


def _chosen(groups: Sequence[Group], scores: Sequence[Score], wanted: str | None) -> str:
    ids = [group.id for group in groups]
    if not ids:
        raise ConfigError("no group of this step was trained on: every episode failed")
    if wanted is not None:
        if wanted not in ids:
            raise ConfigError(
                f"'group' must be one that the step trained on, {ids!r} (got {wanted!r})"
            )
        return wanted
    outcomes = {name: set[float]() for name in ids}
    for score in scores:
        name = score.trajectory_id.partition("-")[0]
        if name in outcomes:
            outcomes[name].add(score.outcome)
    return next((name for name in ids if len(outcomes[name]) > 1), ids[0])


def _asked(
    run: Path,
    step: _Step,
    preset: Preset,
    batch: Batch,
    groups: Sequence[Group],
    *,
    renderer: Renderer,
) -> Batch:
    """Return the batch with what the preset asks of the model as it was before the step."""
    is_single = step.config.optim.updates_per_step == 1 and not measures_gap(step.config)
    wants_anchor = not (is_single and preset.can_skip_proximal)
    if not wants_anchor and not preset.needs & {Need.VALUES, Need.BELIEF}:
        return batch
    learner = _learner_before(run, step, preset)
    trajectories = [t for group in groups for t in group.trajectories]
    if Need.BELIEF in preset.needs:
        stream = check_inputs(step.config).stream
        tasks = [stream.draw(draw) for draw in step.draws]
        answers = {task.id: task.answers for task in tasks}
        batch = with_beliefs(
            preset, learner, batch, trajectories, answers=answers, encode=renderer.encode
        )
    batch = learner.with_needs(batch, trajectories)
    return learner.with_anchor(batch) if wants_anchor else batch


def _learner_before(run: Path, step: _Step, preset: Preset) -> Learner:
    """Return a learner with the weights that the step began from.

    Raises:
        ConfigError: If they are not there any more.
    """
    config = step.config
    world = join_world(config.optim.device)
    # The reference enters the loss, not what is shown.
    learner = open_learner(config, preset, _start(run, config), world)
    if step.number == 1:
        learner.start_from_here(None)
        return learner
    before = run / "checkpoints" / f"step_{step.number - 1:06d}"
    if not before.is_dir():
        there = sorted(path.name for path in before.parent.glob("step_*"))
        raise ConfigError(
            f"preset {preset.name!r} asks the model as it was before step {step.number}, and "
            f"{before} is not there (there are: {', '.join(there) or 'none'}); explain the step "
            "after one of them, or step 1, or run with 'checkpoint.every' and 'checkpoint.keep'"
        )
    checkpoint.load(before, learner)
    return learner


def _start(run: Path, config: RunConfig) -> Path:
    """Return the folder of the model that the first step began from."""
    return resolve_policy(start_of(run, config))


__all__ = ["explain_run"]
