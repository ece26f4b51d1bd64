"""Controllers: parameters that follow what was measured; their state is in the checkpoint.

In order: `adaptive_coefficient`.
"""

from __future__ import annotations

from agentgym.trainers.parts.registry import AboveZero, part


@part("controller")
def adaptive_coefficient(
    coefficient: float, measured: float, trajectories: int, *, target: AboveZero, horizon: AboveZero
) -> float:
    """Return the coefficient times 1 + clip(measured / target - 1, +-0.2) * trajectories / horizon.

    Args:
        coefficient: The present coefficient: this number is the whole state.
        measured: The measured KL of the step.
        trajectories: Number of trajectories of the step.
        target: The wanted KL, above 0.
        horizon: Trajectories over which a full correction is made, above 0.

    Raises:
        ValueError: If `target` or `horizon` is not above 0.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"'target' and 'horizon' must be > 0 (got {target!r}, {horizon!r})")
    largest_error = 0.2
    error = min(max(measured / target - 1, -largest_error), largest_error)
    return coefficient * (1 + error * trajectories / horizon)
