"""From records to tensors: `collate` builds the two tables of a step, once, on the CPU.

In order: `Batch`, `collate`. Every rank holds the whole batch; a rank's share is a list of rows.
What the model adds later (proximal log-probabilities, values, beliefs) is attached by
`with_logprobs`, `with_token_fields` and `with_turn_fields`, never written into a record.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import RecordError
from agentgym.records import Sample, Score, Source, Trajectory
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The whole batch of one optimiser step.

    Example:
        Two trajectories of one group, the second in two segments: 3 rows,
        `rows.trajectory = [0, 1, 1]`, `table.group = [0, 0]`.
    """

    trajectory_ids: tuple[str, ...]
    """[trajectory] ids of the records."""
    group_ids: tuple[str, ...]
    """[group] ids of the groups, in the order of `table.group`."""
    sample_ids: tuple[str, ...]
    """[batch] ids of the samples, one a row."""
    agent_ids: tuple[str, ...]
    """[agent] names, in the order of `table.agent`."""
    ids: Tensor
    """[batch, time] token ids, padded on the right."""
    lengths: Tensor
    """[batch] number of real tokens of each row."""
    table: TurnTable
    """Rewards and statistics live here."""
    rows: RowTable
    """Everything from the ratio on lives here."""

    def with_logprobs(self, **logprobs: Tensor) -> Batch:
        """Return the batch with more log-probabilities `[batch, time]`, by policy name."""
        self._check(logprobs, tuple(self.ids.shape))
        merged = {**self.rows.logprobs, **logprobs}
        return dataclasses.replace(self, rows=dataclasses.replace(self.rows, logprobs=merged))

    def with_token_fields(self, **fields: Tensor) -> Batch:
        """Return the batch with more numbers `[batch, time]`, such as `values`."""
        self._check(fields, tuple(self.ids.shape))
        merged = {**self.rows.fields, **fields}
        return dataclasses.replace(self, rows=dataclasses.replace(self.rows, fields=merged))

    def with_turn_fields(self, **fields: Tensor) -> Batch:
        """Return the batch with more numbers `[trajectory, …]`, such as `belief_logprobs`."""
        self._check(fields, (len(self.trajectory_ids),))
        merged = {**self.table.fields, **fields}
        return dataclasses.replace(self, table=dataclasses.replace(self.table, fields=merged))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device: `prepare` runs where its tables are."""
        table, rows = self.table, self.rows
        rewards = {
            name: TurnValues(values=one.values.to(device), valid=one.valid.to(device))
            for name, one in table.rewards.items()
        }
        return dataclasses.replace(
            self,
            ids=self.ids.to(device),
            lengths=self.lengths.to(device),
            table=dataclasses.replace(
                table, **_moved(table, device), rewards=rewards, fields=_all(table.fields, device)
            ),
            rows=dataclasses.replace(
                rows,
                **_moved(rows, device),
                logprobs=_all(rows.logprobs, device),
                fields=_all(rows.fields, device),
            ),
        )

    @staticmethod
    def _check(tensors: Mapping[str, Tensor], leading: tuple[int, ...]) -> None:
        for name, tensor in tensors.items():
            if tuple(tensor.shape[: len(leading)]) != leading:
                raise ValueError(
                    f"field {name!r} must begin with shape {leading!r} "
                    f"(got {tuple(tensor.shape)!r})"
                )


def _moved(record: TurnTable | RowTable, device: torch.device | str) -> dict[str, Any]:
    """Return the tensors of a table on a device, by field."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: one.to(device) for name, one in values.items() if isinstance(one, Tensor)}


def _all(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def collate(
    samples: Sequence[Sample],
    trajectories: Sequence[Trajectory],
    scores: Sequence[Score],
    *,
    pad_id: int,
    untrained: Collection[str] = frozenset(),
) -> Batch:
    """Return the two tables of the samples and the trajectories they come from.

    A trajectory without a score, or with a failure, stays in the table as not scored: it enters no
    statistic and none of its tokens is trained. So does one with a reward that is no number. Of
    several scores of a trajectory the last counts.

    Args:
        samples: Rows; each trajectory may have any number of them, also none.
        trajectories: All trajectories of the step, failed ones too.
        scores: What the scorer said of them.
        pad_id: Token id on padding; masks come from lengths, never from this value.
        untrained: Ids of trajectories that count in the statistics and have no rows.

    Raises:
        RecordError: If a sample or a score names an unknown trajectory, an id comes twice, a
            sample's turn does not exist, or a scored row lacks the log-probabilities of its
            sampled ids.
    """
    index = {trajectory.id: position for position, trajectory in enumerate(trajectories)}
    if len(index) != len(trajectories):
        raise RecordError("two trajectories of a batch have one id")
    for record in (*samples, *scores):
        if record.trajectory_id not in index:
            raise RecordError(f"unknown trajectory {record.trajectory_id!r} in {record!r:.80}")
    latest = {score.trajectory_id: score for score in scores}
    latest = {name: score for name, score in latest.items() if _has_numbers(score)}
    groups = {group: position for position, group in enumerate(_ordered(trajectories))}
    agents = tuple(dict.fromkeys(turn.agent_id for item in trajectories for turn in item.turns))
    trained = torch.zeros(len(trajectories), dtype=torch.long)
    for sample in samples:
        trained[index[sample.trajectory_id]] += sum(sample.loss_mask)
    samples = [sample for sample in samples if sample.trajectory_id not in untrained]
    for sample in samples:
        if sample.trajectory_id in latest:
            _check_logprobs(sample)
    rows, ids, lengths = _rows(samples, trajectories, index, pad_id=pad_id)
    return Batch(
        trajectory_ids=tuple(index),
        group_ids=tuple(groups),
        sample_ids=tuple(sample.id for sample in samples),
        agent_ids=agents,
        ids=ids,
        lengths=lengths,
        table=_table(trajectories, latest, groups, agents, trained),
        rows=rows,
    )


def _has_numbers(score: Score) -> bool:
    """Return whether every reward is finite: a NaN would spread over the group's statistics."""
    for name, given in score.turn_rewards.items():
        if not all(value is None or math.isfinite(value) for value in given):
            said = "trajectory %r is not trained on: its reward %r is not finite (got %r)"
            logger.warning(said, score.trajectory_id, name, given)
            return False
    return True


def _ordered(trajectories: Sequence[Trajectory]) -> tuple[str, ...]:
    """Return the group ids in order of first appearance."""
    return tuple(dict.fromkeys(trajectory.group_id for trajectory in trajectories))


def _table(
    trajectories: Sequence[Trajectory],
    scores: Mapping[str, Score],
    groups: Mapping[str, int],
    agents: tuple[str, ...],
    trained: Tensor,
) -> TurnTable:
    count = len(trajectories)
    width = max([1, *(len(trajectory.turns) for trajectory in trajectories)])
    turn_valid = torch.zeros((count, width), dtype=torch.bool)
    agent = torch.full((count, width), -1, dtype=torch.long)
    outcome = torch.zeros(count, dtype=torch.float64)
    scored = torch.zeros(count, dtype=torch.bool)
    on_policy = torch.zeros(count, dtype=torch.bool)
    for position, trajectory in enumerate(trajectories):
        turn_valid[position, : len(trajectory.turns)] = True
        for turn in trajectory.turns:
            agent[position, turn.index] = agents.index(turn.agent_id)
        score = scores.get(trajectory.id)
        if score is not None and trajectory.failure is None:
            outcome[position], scored[position] = score.outcome, True
        on_policy[position] = all(
            turn.completion.source is Source.POLICY for turn in trajectory.turns
        )
    return TurnTable(
        group=torch.tensor([groups[item.group_id] for item in trajectories], dtype=torch.long),
        turn_valid=turn_valid,
        agent=agent,
        outcome=outcome,
        scored=scored,
        truncated=torch.tensor([item.truncated for item in trajectories], dtype=torch.bool),
        on_policy=on_policy,
        length=trained,
        rewards=_named_rewards(trajectories, scores, width),
        fields={},
    )


def _named_rewards(
    trajectories: Sequence[Trajectory], scores: Mapping[str, Score], width: int
) -> dict[str, TurnValues]:
    """Return each name of the scores as `[trajectory, turn]`; None differs from 0."""
    names = sorted({name for score in scores.values() for name in score.turn_rewards})
    rewards: dict[str, TurnValues] = {}
    for name in names:
        values = torch.zeros((len(trajectories), width), dtype=torch.float64)
        valid = torch.zeros((len(trajectories), width), dtype=torch.bool)
        for position, trajectory in enumerate(trajectories):
            score = scores.get(trajectory.id)
            if score is None or trajectory.failure is not None:
                continue
            given = score.turn_rewards.get(name, ())
            if len(given) > len(trajectory.turns):
                raise RecordError(
                    f"reward {name!r} of {trajectory.id!r} has {len(given)} entries for "
                    f"{len(trajectory.turns)} turns"
                )
            for turn, value in enumerate(given):
                if value is not None:
                    values[position, turn], valid[position, turn] = value, True
        rewards[name] = TurnValues(values=values, valid=valid)
    return rewards


def _check_logprobs(sample: Sample) -> None:
    """Raise where an objective would take ids that nobody said the probability of.

    Rows without scores (demonstrations) need none: nothing of theirs is a ratio.
    """
    if sample.behavior_logprobs is None and any(sample.loss_mask):
        raise RecordError(
            f"row {sample.id!r} has sampled ids without log-probabilities (got None), which the "
            "ratio is taken over: the policy must give 'behavior_logprobs' in every turn's tokens"
        )


def _check_turns(sample: Sample, trajectory: Trajectory) -> None:
    """Raise where a sample names a turn that its trajectory has not."""
    turns = len(trajectory.turns)
    if sample.turn_ids and max(sample.turn_ids) >= turns:
        raise RecordError(f"sample {sample.id!r} names turn {max(sample.turn_ids)} of {turns}")


def _rows(
    samples: Sequence[Sample],
    trajectories: Sequence[Trajectory],
    index: Mapping[str, int],
    *,
    pad_id: int,
) -> tuple[RowTable, Tensor, Tensor]:
    count = len(samples)
    width = max([1, *(len(sample.ids) for sample in samples)])
    ids = torch.full((count, width), pad_id, dtype=torch.long)
    lengths = torch.tensor([len(sample.ids) for sample in samples], dtype=torch.long)
    mask = torch.zeros((count, width), dtype=torch.bool)
    behavior = torch.zeros((count, width), dtype=torch.float32)
    versions, turn_ids, role_ids = (
        torch.full((count, width), -1, dtype=torch.long) for _ in range(3)
    )
    for row, sample in enumerate(samples):
        _check_turns(sample, trajectories[index[sample.trajectory_id]])
        stop = len(sample.ids)
        ids[row, :stop] = torch.tensor(sample.ids, dtype=torch.long)
        mask[row, :stop] = torch.tensor(sample.loss_mask, dtype=torch.bool)
        versions[row, :stop] = torch.tensor(sample.versions, dtype=torch.long)
        turn_ids[row, :stop] = torch.tensor(sample.turn_ids, dtype=torch.long)
        if sample.role_ids:
            role_ids[row, :stop] = torch.tensor(sample.role_ids, dtype=torch.long)
        # What is not known is no number: 0 would be the log of certainty.
        known = sample.behavior_logprobs
        behavior[row, :stop] = torch.tensor(known) if known is not None else torch.nan
    if bool((mask & (turn_ids < 0)).any()):
        raise RecordError("a trained token has no turn: 'turn_ids' must be >= 0 on the loss mask")
    rows = RowTable(
        mask=mask,
        turn_ids=torch.where(mask, turn_ids, -1),
        role_ids=role_ids,
        trajectory=torch.tensor([index[item.trajectory_id] for item in samples], dtype=torch.long),
        versions=versions,
        logprobs={"behavior": behavior},
        fields={},
    )
    return rows, ids, lengths
