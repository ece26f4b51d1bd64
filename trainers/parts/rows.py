"""Rows: how a trajectory becomes training rows.

In order: `segment`, `turn`. Every sampled id is trained in exactly one row, whichever is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from agentgym.records import Sample
from agentgym.trainers.parts.registry import part


@part("rows")
def segment(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return one row for each stretch in which the context only grew, as the renderer cut them.

    Args:
        samples: The samples of a batch.
    """
    return tuple(samples)


@part("rows")
def turn(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return one row for each turn: its whole context, and its own tokens alone trained.

    Args:
        samples: The samples of a batch.
    """
    rows: list[Sample] = []
    for sample in samples:
        wanted = dict.fromkeys(
            turn for turn, trained in zip(sample.turn_ids, sample.loss_mask, strict=True) if trained
        )
        rows.extend(_only(sample, turn) for turn in wanted)
    return tuple(rows)


def _only(sample: Sample, turn: int) -> Sample:
    """Return the sample up to the end of one turn, trained on that turn alone."""
    own = [
        trained and index == turn
        for index, trained in zip(sample.turn_ids, sample.loss_mask, strict=True)
    ]
    stop = max(position for position, is_own in enumerate(own) if is_own) + 1
    logprobs = sample.behavior_logprobs
    return dataclasses.replace(
        sample,
        id=f"{sample.id}/turn-{turn}",
        ids=sample.ids[:stop],
        loss_mask=tuple(own[:stop]),
        behavior_logprobs=None if logprobs is None else logprobs[:stop],
        versions=sample.versions[:stop],
        turn_ids=tuple(turn if is_own else -1 for is_own in own[:stop]),
        role_ids=sample.role_ids[:stop],
    )
