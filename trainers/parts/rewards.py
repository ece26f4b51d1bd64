"""Rewards: from the trajectory table to named numbers of turns, each with its validity.

In order: `outcome`, `turn_rewards`, `belief_gain`, `soft_overlong`. A reward part returns
`TurnValues`; the preset gives the name under which the terms find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from agentgym.trainers.parts.registry import Count, Need, part
from agentgym.trainers.parts.tables import TurnTable, TurnValues


@part("reward", traits=("at_end",))
def outcome(table: TurnTable, *, place: Literal["last_turn", "trajectory"]) -> TurnValues:
    """Return the outcome of each trajectory, on its last turn or as one number.

    A trajectory that was not scored has none: it is no 0.

    Args:
        table: The trajectories.
        place: `last_turn` puts it where a return to go starts; `trajectory` gives one column.
    """
    column = table.outcome[:, None]
    if place == "trajectory":
        return TurnValues(values=column, valid=table.scored[:, None])
    valid = table.last_turn & table.scored[:, None]
    return TurnValues(values=torch.where(valid, column, torch.zeros_like(column)), valid=valid)


@part("reward")
def turn_rewards(table: TurnTable, *, weights: Mapping[str, float]) -> TurnValues:
    """Return the weighted sum of the turn rewards that the scorer recorded by name.

    A turn has a value where at least one of the names has one. Without names no turn has any. A
    name that the batch has not has no value anywhere: names exist where an episode earned one, and
    in a batch nobody may have (`agentgym.trainers.objective.named_rewards` tells that from a typo).

    Args:
        table: The trajectories.
        weights: Weight of each name.
    """
    values = torch.zeros_like(table.turn_valid, dtype=table.outcome.dtype)
    valid = torch.zeros_like(table.turn_valid)
    for key, weight in weights.items():
        if key not in table.rewards:
            continue
        values = values + weight * table.rewards[key].zeroed()
        valid = valid | table.rewards[key].valid
    return TurnValues(values=values, valid=valid)


@part("reward", needs=(Need.BELIEF,))
def belief_gain(table: TurnTable, *, mode: Literal["prob", "log"], final_turn: bool) -> TurnValues:
    """Return the rise of the belief in the gold answer over each turn, b[k+1] - b[k].

    b[k] is the model's belief before turn k: the exponential of the mean log-probability of the
    gold answer's tokens (`prob`), or that mean itself (`log`). The turn's own action and the
    observation it brought lie between b[k] and b[k+1].

    Args:
        table: The trajectories; `fields["belief_logprobs"]` is [trajectory, turn + 1], the mean
            log-probability before each turn and, last, at the final prompt; NaN where not scored.
        mode: Difference of probabilities or of log-probabilities.
        final_turn: Whether the last turn gets a gain too (it needs the final prompt's belief).

    Raises:
        LookupError: If the probe results are missing.

    Source: Wang et al. 2025 (IGPO), arXiv:2510.14967.
    """
    if "belief_logprobs" not in table.fields:
        raise LookupError(
            "the batch has no 'belief_logprobs', which 'belief_gain' needs: run the preset's "
            "probes and attach them by with_turn_fields"
        )
    logprobs = table.fields["belief_logprobs"].to(table.outcome.dtype)
    belief = logprobs.exp() if mode == "prob" else logprobs
    gain = belief[:, 1:] - belief[:, :-1]
    valid = gain.isfinite() & table.turn_valid
    if not final_turn:
        valid = valid & ~table.last_turn
    return TurnValues(values=torch.where(valid, gain, torch.zeros_like(gain)), valid=valid)


def _overlong_problem(parameters: Mapping[str, Any]) -> str | None:
    longest, buffer = parameters["max_tokens"], parameters["buffer"]
    if buffer <= longest:
        return None
    return f"key 'buffer' must be at most 'max_tokens', {longest!r} (got {buffer!r})"


@part("reward", traits=("per_trajectory",), problem_of=_overlong_problem)
def soft_overlong(table: TurnTable, *, max_tokens: Count, buffer: Count) -> TurnValues:
    """Return a penalty of length: 0 up to max - buffer, then linear to -1 at max, -1 beyond.

    Args:
        table: The trajectories; their numbers of trained tokens are read.
        max_tokens: Largest wanted number of sampled tokens.
        buffer: Length of the slope, in (0, max_tokens].

    Raises:
        ValueError: If `buffer` is not in (0, max_tokens].

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.
    """
    if not 0 < buffer <= max_tokens:
        raise ValueError(f"'buffer' must be in (0, {max_tokens}] (got {buffer!r})")
    over = (table.length - (max_tokens - buffer)).to(table.outcome.dtype)
    penalty = -(over / buffer).clamp(0, 1)
    return TurnValues(values=penalty[:, None], valid=table.scored[:, None])
