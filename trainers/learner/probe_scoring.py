"""Scores probe targets: all turns of a trajectory in one pass of the model.

Each target hangs off the row that its prefix belongs to, as a branch: it sees the row up to the
end of the prefix, and itself. So a trajectory of K turns costs its own length and K targets, not
K prefixes. A target whose prefix is no beginning of a row gets a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.policies.transformers.store import aligned
from agentgym.records import Trajectory
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.layout import MicroBatch
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.objective.stages import call_part
from agentgym.trainers.parts.probes import ScoringRequest, belief_fields
from agentgym.trainers.parts.registry import Slot


@dataclass(frozen=True, slots=True)
class _Tree:
    """A trunk of ids and the requests whose prefixes are beginnings of it."""

    trunk: tuple[int, ...]
    requests: tuple[int, ...]

    def size(self, requests: Sequence[ScoringRequest]) -> int:
        return len(self.trunk) + sum(len(requests[index].target) for index in self.requests)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Trees as lines, and what decides who may look at whom; small, so that the mask itself is made
    on the model's device.
    """

    micro: MicroBatch
    mask: Tensor
    reach: Tensor
    branch: Tensor

    def to(self, device: torch.device) -> _Layout:
        return _Layout(
            self.micro.to(device),
            self.mask.to(device),
            self.reach.to(device),
            self.branch.to(device),
        )


def with_beliefs(
    preset: Preset,
    learner: Learner,
    batch: Batch,
    trajectories: Sequence[Trajectory],
    *,
    answers: Mapping[str, tuple[str, ...]],
    encode: Callable[[str], Sequence[int]],
) -> Batch:
    """Return the batch with what a preset's probes ask of the model.

    Args:
        preset: Whose probes.
        learner: Owner of the model.
        batch: The batch.
        trajectories: Its trajectories, in its order.
        answers: Gold answers by task id.
        encode: Tokenizer of the policy.
    """
    requests: tuple[ScoringRequest, ...] = ()
    for config in preset.probes:
        requests += call_part(Slot.PROBE, config, trajectories, answers, encode)
    means = score_requests(learner, batch, requests) if requests else ()
    count, turns = batch.table.turn_valid.shape
    beliefs = belief_fields(requests, means, trajectories=count, turns=turns)
    return batch.with_turn_fields(belief_logprobs=beliefs)


def score_requests(
    learner: Learner, batch: Batch, requests: Sequence[ScoringRequest]
) -> tuple[float, ...]:
    """Return the mean log-probability of each request's scored ids after its prefix.

    At temperature 1, whatever the episodes were sampled at.

    Args:
        learner: Owner of the model; every rank must call this with the same requests.
        batch: The batch that the requests are about.
        requests: What to score.
    """
    trees = _grow(batch, requests)
    results = torch.zeros(len(requests), dtype=torch.float64, device=learner.world.device)
    bound = learner.options.micro_batch_tokens
    chunks = _chunks(trees, requests, max_tokens=bound if bound is not None else 1 << 14)
    world = learner.world
    own = chunks[world.rank :: world.size]
    for index in range(world.max(len(own))):
        is_filler = index >= len(own)
        chosen = own[index] if not is_filler else chunks[0]
        layout = _layout(chosen, requests).to(world.device)
        with torch.no_grad():
            logprobs, _, _ = learner.scorer(
                layout.micro,
                layout.mask,
                1.0,
                False,
                _who_looks_at_whom(layout.reach, layout.branch),
            )
        if not is_filler:
            _collect(results, chosen, requests, logprobs.double())
    return tuple(world.sum(results).tolist())


def _grow(batch: Batch, requests: Sequence[ScoringRequest]) -> list[_Tree]:
    """Return trees that hold every request once, on the row of its trajectory where it fits."""
    rows: dict[int, list[tuple[int, ...]]] = {}
    for row, owner in enumerate(batch.rows.trajectory.tolist()):
        ids = tuple(batch.ids[row, : int(batch.lengths[row])].tolist())
        rows.setdefault(owner, []).append(ids)
    grown: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(requests):
        size = len(request.prefix)
        trunk = next(
            (ids for ids in rows.get(request.trajectory, ()) if ids[:size] == request.prefix),
            request.prefix,
        )
        grown.setdefault(trunk, []).append(index)
    trees = []
    for trunk, members in grown.items():
        # Nothing after the longest prefix is looked at.
        needed = max(len(requests[index].prefix) for index in members)
        trees.append(_Tree(trunk[:needed], tuple(members)))
    return trees


def _chunks(
    trees: list[_Tree], requests: Sequence[ScoringRequest], *, max_tokens: int
) -> list[list[_Tree]]:
    """Return the trees in padded chunks of at most `max_tokens`, similar sizes together."""
    chunks: list[list[_Tree]] = []
    for tree in sorted(trees, key=lambda item: -item.size(requests)):
        last = chunks[-1] if chunks else None
        if last is not None and last[0].size(requests) * (len(last) + 1) <= max_tokens:
            last.append(tree)
        else:
            chunks.append([tree])
    return chunks


def _layout(trees: list[_Tree], requests: Sequence[ScoringRequest]) -> _Layout:
    """Return one line a tree. The rows of its micro-batch are the targets, each preceded by the
    token that predicts it.
    """
    width = aligned(max(tree.size(requests) for tree in trees))
    ids, positions, reach, branch = (
        torch.tensor(numbers)
        for numbers in zip(*(_line(tree, requests, width) for tree in trees), strict=True)
    )
    rows = [
        row for line, tree in enumerate(trees) for row in _target_rows(tree, requests, line * width)
    ]
    longest = max(len(row) for row in rows)
    index = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    valid = torch.arange(longest) < lengths[:, None]
    windows = [requests[index].scored for tree in trees for index in tree.requests]
    # Shifted by one, for the predictor. What is not scored costs no pass of the model's head.
    start, stop = (torch.tensor(windows).T + 1)[:, :, None]
    place = torch.arange(longest)
    mask = (place >= start) & (place < stop)
    micro = MicroBatch(
        rows=torch.arange(len(rows)),
        ids=ids,
        position_ids=positions,
        segment_ids=torch.zeros_like(ids),
        index=index,
        valid=valid,
    )
    return _Layout(micro=micro, mask=mask, reach=reach, branch=branch)


def _line(
    tree: _Tree, requests: Sequence[ScoringRequest], width: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return a tree's ids, positions, first tokens that each may look at, and branches."""
    end = len(tree.trunk)
    ids, positions = list(tree.trunk), list(range(end))
    reach, branch = list(range(1, end + 1)), [-1] * end
    for number, index in enumerate(tree.requests):
        prefix, target = len(requests[index].prefix), requests[index].target
        ids += target
        positions += range(prefix, prefix + len(target))
        reach += [prefix] * len(target)
        branch += [number] * len(target)
    padding = width - len(ids)
    # A padded position looks at the line's first token: a row of a softmax must not be empty.
    return (
        ids + [0] * padding,
        positions + [0] * padding,
        reach + [1] * padding,
        branch + [-1] * padding,
    )


def _target_rows(tree: _Tree, requests: Sequence[ScoringRequest], offset: int) -> list[list[int]]:
    """Return where each target's tokens are among the flattened lines, its predictor first."""
    rows: list[list[int]] = []
    end = len(tree.trunk)
    for index in tree.requests:
        stop = end + len(requests[index].target)
        places = (len(requests[index].prefix) - 1, *range(end, stop))
        rows.append([offset + place for place in places])
        end = stop
    return rows


def _who_looks_at_whom(reach: Tensor, branch: Tensor) -> Tensor:
    """Return [line, 1, query, key] True where a token may look: at the beginning of the line that
    it may reach, and at what stands before it in its own branch.
    """
    key = torch.arange(reach.shape[1], device=reach.device)
    is_before = key <= key[:, None]
    same = (branch[:, :, None] == branch[:, None, :]) & (branch[:, :, None] >= 0)
    return ((key < reach[:, :, None]) | (same & is_before))[:, None]


def _collect(
    results: Tensor, trees: list[_Tree], requests: Sequence[ScoringRequest], logprobs: Tensor
) -> None:
    """Write the mean log-probability of each request's scored ids to its place."""
    members = [index for tree in trees for index in tree.requests]
    windows = [requests[index].scored for index in members]
    lengths = [stop - start for start, stop in windows]
    means = logprobs.sum(dim=1) / torch.tensor(lengths, device=logprobs.device)
    results[torch.tensor(members, device=results.device)] = means
