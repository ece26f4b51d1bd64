"""Mixer: which stored or foreign trajectories join a batch. In order: `none`."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.records import Group
from agentgym.trainers.parts.registry import part


@part("mixer")
def none(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups as they were sampled.

    Args:
        groups: The groups of the step.
    """
    return tuple(groups)
