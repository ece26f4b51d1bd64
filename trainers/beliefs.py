"""Scores probe targets: all turns of a trajectory in one pass of the model.

Each target hangs off the row that its prefix belongs to, as a branch: it sees the row up to the
end of the prefix, and itself. So a trajectory of K turns costs its own length and K targets, not
K prefixes. A target whose prefix is no beginning of a row gets a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.batch import Batch, MicroBatch
from agentgym.trainers.learner import Learner
from agentgym.trainers.parts.probes import ScoringRequest


@dataclass(frozen=True, slots=True)
class _Tree:
    """A trunk of ids and the requests whose prefixes are beginnings of it."""

    trunk: tuple[int, ...]
    requests: tuple[int, ...]

    def size(self, requests: Sequence[ScoringRequest]) -> int:
        return len(self.trunk) + sum(len(requests[index].target) for index in self.requests)


def score_requests(
    learner: Learner, batch: Batch, requests: Sequence[ScoringRequest]
) -> tuple[float, ...]:
    """Return the mean log-probability of each request's target after its prefix, at temperature 1.

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
        micro, mask, attention = _layout(chosen, requests)
        with torch.no_grad():
            logprobs, _, _ = learner.scorer(
                micro.to(world.device),
                mask.to(world.device),
                1.0,
                False,
                attention.to(world.device),
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


def _layout(
    trees: list[_Tree], requests: Sequence[ScoringRequest]
) -> tuple[MicroBatch, Tensor, Tensor]:
    """Return one line a tree, its mask of scored tokens, and who may look at whom.

    The rows of the micro-batch are the targets, each preceded by the token that predicts it.
    """
    width = max(tree.size(requests) for tree in trees)
    shape = (len(trees), width)
    ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    attention = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    longest = 1 + max(len(requests[index].target) for tree in trees for index in tree.requests)
    rows: list[list[int]] = []
    for line, tree in enumerate(trees):
        end = len(tree.trunk)
        ids[line, :end] = torch.tensor(tree.trunk)
        positions[line, :end] = torch.arange(end)
        attention[line, :end, :end] = torch.ones(end, end, dtype=torch.bool).tril()
        for index in tree.requests:
            prefix, target = len(requests[index].prefix), requests[index].target
            stop = end + len(target)
            ids[line, end:stop] = torch.tensor(target)
            positions[line, end:stop] = prefix + torch.arange(len(target))
            attention[line, end:stop, :prefix] = True
            attention[line, end:stop, end:stop] = torch.ones(
                len(target), len(target), dtype=torch.bool
            ).tril()
            rows.append([line * width + at for at in (prefix - 1, *range(end, stop))])
            end = stop
    index_map = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    valid = torch.tensor([[at < len(row) for at in range(longest)] for row in rows])
    mask = valid.clone()
    mask[:, 0] = False
    micro = MicroBatch(
        rows=torch.arange(len(rows)),
        ids=ids,
        position_ids=positions,
        segment_ids=torch.zeros(shape, dtype=torch.long),
        index=index_map,
        valid=valid,
    )
    return micro, mask, attention[:, None]


def _collect(
    results: Tensor, trees: list[_Tree], requests: Sequence[ScoringRequest], logprobs: Tensor
) -> None:
    """Write each target's mean log-probability to its place."""
    members = [index for tree in trees for index in tree.requests]
    for row, index in enumerate(members):
        results[index] = logprobs[row].sum() / len(requests[index].target)
