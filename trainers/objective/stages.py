"""The stages of `agentgym.trainers.objective.prepare.prepare`, one function each, in their order.

In order: `call_part`, `restrict`, `apply_filters`, `turn_sources`, `merge_rewards`, `finish_term`,
`combine_terms`, `ends_of`, `anchor_logprobs`, `correct`, `clip_widths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.objective.preset import CriticConfig, PartConfig, Preset, TermConfig
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.bounds import ClipWidths
from agentgym.trainers.parts.combine import Term
from agentgym.trainers.parts.correction import Correction
from agentgym.trainers.parts.filters import FilterVerdict
from agentgym.trainers.parts.registry import Need, Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """What the filters left."""

    statistics: Tensor
    """[trajectory, turn] True where the statistics count it."""
    mask: Tensor
    """[batch, time] True on tokens that are trained."""
    refill: tuple[int, ...]
    """Indices of the groups for which others should be drawn."""


def call_part(slot: Slot, config: PartConfig, *data: object, **replaced: object) -> Any:
    """Call a part with its data and its parameters, some of them replaced."""
    parameters = {**config.parameters, **replaced}
    return registry.find(slot, config.part).function(*data, **parameters)


def restrict(values: TurnValues, statistics: Tensor) -> TurnValues:
    """Return the values without those that the statistics leave out."""
    counted = statistics if values.valid.shape == statistics.shape else statistics.any(1, True)
    return TurnValues(values=values.values, valid=values.valid & counted)


def apply_filters(preset: Preset, table: TurnTable, rows: RowTable) -> Filtered:
    """Return what stays in the statistics and on the loss mask.

    Trajectories that were not scored (an infrastructure failure, no score) leave both, always.
    """
    statistics = table.turn_valid & table.scored[:, None]
    kept = statistics.clone()
    tokens = rows.mask.clone()
    refill = torch.zeros_like(table.scored)
    for config in preset.filters:
        traits = registry.find(Slot.FILTER, config.part).traits
        sources = (turn_sources(preset, table),) if "reads_rewards" in traits else ()
        verdict: FilterVerdict = call_part(Slot.FILTER, config, table, rows, *sources)
        statistics = statistics & verdict.statistics
        kept = kept & verdict.mask
        refill = refill | verdict.refill
        if verdict.tokens is not None:
            tokens = tokens & verdict.tokens
    on_turn = kept[rows.trajectory].gather(1, rows.turn_ids.clamp(min=0))
    return Filtered(
        statistics=statistics,
        mask=tokens & on_turn,
        refill=tuple(sorted({int(group) for group in table.group[refill]})),
    )


def turn_sources(preset: Preset, table: TurnTable) -> tuple[TurnValues, ...]:
    """Return the rewards of turns that the preset's advantages are made of.

    A belief that was not asked for yet may be anything: it stands as a reward that differs
    everywhere, so that no group is given up before its beliefs are known.
    """
    readers = [term.reward for term in preset.terms if term.weight]
    readers += [preset.critic.reward] if preset.critic is not None else []
    used = {name for weights in readers for name, weight in weights.items() if weight}
    found: list[TurnValues] = []
    for config in preset.rewards:
        part = registry.find(Slot.REWARD, config.part)
        if (config.name or config.part) not in used or part.traits & {"at_end", "per_trajectory"}:
            continue
        if Need.BELIEF in part.needs and "belief_logprobs" not in table.fields:
            found.append(_unknown(table))
        else:
            found.append(call_part(Slot.REWARD, config, table))
    return tuple(found)


def _unknown(table: TurnTable) -> TurnValues:
    """Return a number a turn, no two of them equal."""
    count = table.turn_valid.numel()
    values = torch.arange(count, dtype=table.outcome.dtype, device=table.outcome.device)
    return TurnValues(values=values.reshape(table.turn_valid.shape), valid=table.turn_valid)


def merge_rewards(names: Mapping[str, float], rewards: Mapping[str, TurnValues]) -> TurnValues:
    """Return the weighted sum of named rewards; a place has a value where one of them has.

    Raises:
        ValueError: If some are numbers of turns and others of trajectories.
    """
    shapes = {name: tuple(rewards[name].values.shape) for name in names}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"rewards of turns and of trajectories cannot be added (got {shapes!r})")
    weighted = [weight * rewards[name].zeroed() for name, weight in names.items()]
    valid = [rewards[name].valid for name in names]
    return TurnValues(values=torch.stack(weighted).sum(dim=0), valid=torch.stack(valid).any(dim=0))


def finish_term(
    term: TermConfig, rewards: Mapping[str, TurnValues], table: TurnTable
) -> tuple[TurnValues, ...]:
    """Return a term after each of its operations; the first is the rewards, the last the result."""
    chain = [merge_rewards(term.reward, rewards)]
    for op in term.ops:
        chain.append(call_part(Slot.OP, op, chain[-1], table))
    return tuple(chain)


def combine_terms(preset: Preset, terms: Mapping[str, TurnValues], table: TurnTable) -> Tensor:
    """Return [trajectory, turn] the turn-level advantages."""
    assert preset.combine is not None  # held by preset.contradictions
    weighted = tuple(
        Term(name=term.name, weight=term.weight, result=terms[term.name]) for term in preset.terms
    )
    return call_part(Slot.COMBINE, preset.combine, weighted, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What a critic is told of the ends of episodes."""

    rewards: Mapping[str, TurnValues]
    """The named rewards, without those that a bootstrap stands for."""
    after_end: Tensor
    """[trajectory] value after the last token; 0 where the outcome says all."""


def ends_of(
    preset: Preset, config: CriticConfig, rewards: Mapping[str, TurnValues], table: TurnTable
) -> Ends:
    """Return one credit for the end of each episode: its outcome or a bootstrap, never both.

    Decided here for every critic. `bootstrap_values` has NaN where an episode was not cut short.

    Raises:
        LookupError: If the preset bootstraps and the batch does not have the values.
    """
    nothing = torch.zeros_like(table.outcome)
    if config.at_truncation == "outcome":
        return Ends(rewards=rewards, after_end=nothing)
    if "bootstrap_values" not in table.fields:
        raise LookupError(
            "the batch has no 'bootstrap_values', which critic.at_truncation 'bootstrap' needs: "
            "attach the values of final prompts by with_turn_fields"
        )
    values = table.fields["bootstrap_values"][:, 0].to(nothing.dtype)
    is_open = values.isfinite()
    at_end = {
        one.name or one.part
        for one in preset.rewards
        if "at_end" in registry.find(Slot.REWARD, one.part).traits
    }
    kept = {
        name: TurnValues(values=one.values, valid=one.valid & ~is_open[:, None])
        if name in at_end
        else one
        for name, one in rewards.items()
    }
    return Ends(rewards=kept, after_end=torch.where(is_open, values, nothing))


def anchor_logprobs(preset: Preset, rows: RowTable) -> Tensor | None:
    """Return `[batch, time]` what the ratio is measured from, or None for the policy itself.

    Raises:
        LookupError: If the anchor was not attached to the batch, and is needed before the loss.
    """
    try:
        return call_part(Slot.ANCHOR, preset.anchor, rows.logprobs)
    except KeyError as error:
        if preset.can_skip_proximal:
            return None
        raise LookupError(
            f"the batch has no {error.args[0]!r} log-probabilities, which preset {preset.name!r} "
            f"needs (it has: {', '.join(sorted(rows.logprobs))}); attach them by with_logprobs"
        ) from error


def correct(preset: Preset, rows: RowTable, anchor: Tensor | None, mask: Tensor) -> Correction:
    """Return the weights for the gap between sampler and anchor; detached."""
    behavior = rows.logprobs["behavior"]
    base = behavior if anchor is None else anchor
    gap = torch.where(mask, base - behavior, torch.zeros_like(base)).detach()
    turn_ids = torch.where(mask, rows.turn_ids, -1)
    return call_part(Slot.CORRECTION, preset.correction, gap, mask, turn_ids)


def clip_widths(
    preset: Preset, rows: RowTable, terms: Mapping[str, TurnValues]
) -> ClipWidths | None:
    """Return the clip widths of tokens, or None where the gate's own hold everywhere."""
    low = preset.gate.parameters.get("clip_low", 0.0)
    high = preset.gate.parameters.get("clip_high", 0.0)
    return call_part(Slot.BOUNDS, preset.bounds, low, high, rows, terms)
