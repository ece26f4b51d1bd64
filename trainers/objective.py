"""The pipeline of an objective: `prepare` once for the whole batch, `micro_loss` for some rows.

`prepare` computes everything that depends on the whole batch before the first backward: rewards,
filters, terms, advantages, corrections, clip widths and the coefficient of each token. Then the
sum of `micro_loss` over any split of the rows into micro-batches and ranks is the step's loss,
and the sum of their gradients its gradient. No model is called here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.batch import Batch
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.bounds import ClipWidths
from agentgym.trainers.parts.combine import Term
from agentgym.trainers.parts.correction import Correction
from agentgym.trainers.parts.filters import FilterVerdict
from agentgym.trainers.parts.registry import Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues
from agentgym.trainers.preset import PartConfig, Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """What the filters left."""

    statistics: Tensor
    """[trajectory, turn] True where the statistics count it."""
    mask: Tensor
    """[batch, time] True on tokens that are trained."""
    refill: tuple[int, ...]
    """Indices of the groups for which others should be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything of one optimiser step that is known before its first backward."""

    mask: Tensor
    """[batch, time] True on tokens that are trained."""
    turn_ids: Tensor
    """[batch, time] turn of each trained token, -1 elsewhere."""
    advantages: Tensor
    """[batch, time] advantage of each token."""
    coefficients: Tensor
    """[batch, time] aggregation times correction: the factor of each token's gate loss."""
    anchor_logprobs: Tensor | None
    """[batch, time] what the ratio is measured from; None if the policy is its own anchor."""
    widths: ClipWidths | None
    """Clip widths of tokens; None if the gate's own hold."""
    logprobs: Mapping[str, Tensor]
    """[batch, time] log-probabilities by policy name, for the regularizers."""
    turn_advantages: Tensor | None
    """[trajectory, turn] turn-level advantages; None with a token critic."""
    rewards: Mapping[str, TurnValues]
    """The named rewards."""
    terms: Mapping[str, TurnValues]
    """The finished terms, without their weights."""
    refill: tuple[int, ...]
    """Indices of the groups for which the sampler should draw others."""
    metrics: Mapping[str, float]
    """Numbers for people; nothing reads them to decide anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    """What one micro-batch adds to the step."""

    loss: Tensor
    """Its share of the loss: the step's loss is the sum over all micro-batches and ranks."""
    metrics: Mapping[str, float]
    """Sums over trained tokens, named `…_sum`, and `tokens`: add them over micro-batches."""


def call_part(slot: Slot, config: PartConfig, *data: object, **replaced: object) -> Any:
    """Call a part with its data and its parameters, some of them replaced."""
    parameters = {**config.parameters, **replaced}
    return registry.find(slot, config.part).function(*data, **parameters)


def prepare(preset: Preset, batch: Batch) -> Prepared:
    """Return all that is computed from the whole batch before the first backward.

    Args:
        preset: The objective.
        batch: The whole batch, with the fields that the preset's needs ask for attached.

    Raises:
        LookupError: If a field is missing that the preset needs.
    """
    table, rows = batch.table, batch.rows
    filtered = apply_filters(preset, table, rows)
    rewards = {
        config.name or config.part: restrict(
            call_part(Slot.REWARD, config, table), filtered.statistics
        )
        for config in preset.rewards
    }
    terms = {term.name: _term(term.reward, term.ops, rewards, table) for term in preset.terms}
    assert preset.spread is not None  # held by preset.contradictions
    turn_advantages = _combine(preset, terms, table)
    advantages = call_part(Slot.SPREAD, preset.spread, turn_advantages, rows)
    for config in preset.reshape:
        advantages = call_part(Slot.RESHAPE, config, advantages, filtered.mask, rows)
    anchor = anchor_logprobs(preset, rows)
    correction = correct(preset, rows, anchor, filtered.mask)
    coefficients = call_part(
        Slot.AGGREGATION, preset.aggregation, filtered.mask, advantages, rows, table
    )
    return Prepared(
        mask=filtered.mask,
        turn_ids=torch.where(filtered.mask, rows.turn_ids, -1),
        advantages=torch.where(filtered.mask, advantages, torch.zeros_like(advantages)),
        coefficients=coefficients * correction.weight * correction.keep,
        anchor_logprobs=anchor,
        widths=_widths(preset, rows, terms),
        logprobs=rows.logprobs,
        turn_advantages=turn_advantages,
        rewards=rewards,
        terms=terms,
        refill=filtered.refill,
        metrics=_metrics(batch, filtered, turn_advantages, correction),
    )


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
        verdict: FilterVerdict = call_part(Slot.FILTER, config, table, rows)
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


def _term(
    reward: Mapping[str, float],
    ops: tuple[PartConfig, ...],
    rewards: Mapping[str, TurnValues],
    table: TurnTable,
) -> TurnValues:
    """Return one term: the weighted rewards, then its operations in order."""
    chosen = [rewards[name] for name in reward]
    values = torch.stack([weight * rewards[name].zeroed() for name, weight in reward.items()]).sum(
        dim=0
    )
    result = TurnValues(values=values, valid=torch.stack([one.valid for one in chosen]).any(dim=0))
    for op in ops:
        result = call_part(Slot.OP, op, result, table)
    return result


def _combine(preset: Preset, terms: Mapping[str, TurnValues], table: TurnTable) -> Tensor:
    assert preset.combine is not None  # held by preset.contradictions
    weighted = tuple(
        Term(name=term.name, weight=term.weight, result=terms[term.name]) for term in preset.terms
    )
    return call_part(Slot.COMBINE, preset.combine, weighted, table)


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


def _widths(preset: Preset, rows: RowTable, terms: Mapping[str, TurnValues]) -> ClipWidths | None:
    low = preset.gate.parameters.get("clip_low", 0.0)
    high = preset.gate.parameters.get("clip_high", 0.0)
    return call_part(Slot.BOUNDS, preset.bounds, low, high, rows, terms)


def micro_loss(
    preset: Preset,
    prepared: Prepared,
    rows: Tensor,
    policy_logprobs: Tensor,
    *,
    entropy: Tensor | None = None,
) -> MicroLoss:
    """Return the share of some rows in the step's loss.

    Args:
        preset: The objective.
        prepared: What `prepare` returned for the whole batch.
        rows: [row] indices of the rows in the batch.
        policy_logprobs: [row, time] log-probabilities of the rows' ids under the policy that is
            trained, with gradient; may be narrower than the batch where the rest is padding.
        entropy: [row, time] entropy of the policy, where the preset needs it.
    """
    width = policy_logprobs.shape[1]
    like = policy_logprobs

    def cut(values: Tensor) -> Tensor:
        chosen = values[rows.to(values.device), :width].to(like.device)
        return chosen.to(like.dtype) if chosen.is_floating_point() else chosen

    mask = cut(prepared.mask)
    # Replaced before anything is computed: a padded position may hold any number, also NaN.
    policy = torch.where(mask, policy_logprobs, torch.zeros_like(policy_logprobs))
    anchor = policy.detach()
    if prepared.anchor_logprobs is not None:
        anchor = torch.where(mask, cut(prepared.anchor_logprobs), torch.zeros_like(policy))
    log_ratio = call_part(Slot.RATIO, preset.ratio, policy - anchor, mask, cut(prepared.turn_ids))
    advantages = cut(prepared.advantages)
    token_loss = gate_loss(preset, prepared, rows, log_ratio, advantages, policy)
    loss = (cut(prepared.coefficients) * token_loss).sum()
    return MicroLoss(loss=loss, metrics=_token_metrics(log_ratio, token_loss, mask))


def gate_loss(
    preset: Preset,
    prepared: Prepared,
    rows: Tensor,
    log_ratio: Tensor,
    advantages: Tensor,
    policy_logprobs: Tensor,
) -> Tensor:
    """Return [row, time] the loss of each token, before any coefficient."""
    widths: dict[str, object] = {}
    if prepared.widths is not None:
        for name, tensor in (
            ("clip_low", prepared.widths.low),
            ("clip_high", prepared.widths.high),
        ):
            chosen = tensor[rows.to(tensor.device), : log_ratio.shape[1]]
            widths[name] = chosen.to(device=log_ratio.device, dtype=log_ratio.dtype)
    detached = policy_logprobs.detach()
    if "weighted" in registry.find(Slot.GATE, preset.gate.part).traits:
        weight = call_part(
            Slot.GATE, preset.gate, log_ratio.detach(), advantages, detached, **widths
        )
        return -weight.detach() * advantages * policy_logprobs
    return -call_part(Slot.GATE, preset.gate, log_ratio, advantages, detached, **widths)


def _token_metrics(log_ratio: Tensor, token_loss: Tensor, mask: Tensor) -> dict[str, float]:
    """Return sums over trained tokens, to be added over micro-batches."""
    ratio = torch.where(mask, log_ratio.detach(), torch.zeros_like(log_ratio))
    spread = float(ratio.abs().max()) if mask.any() else 0.0
    return {
        "tokens": float(mask.sum()),
        "log_ratio_sum": float(ratio.sum()),
        "log_ratio_squared_sum": float(ratio.square().sum()),
        "log_ratio_abs_max": spread,
        "nonfinite_sum": float((~token_loss.detach().isfinite() & mask).sum()),
    }


def _metrics(
    batch: Batch, filtered: Filtered, turn_advantages: Tensor | None, correction: Correction
) -> dict[str, float]:
    """Return numbers of the whole batch."""
    table = batch.table
    sizes = torch.bincount(table.group[table.scored], minlength=len(batch.group_ids))
    trained = int(filtered.mask.sum())
    metrics = {
        "trajectories": float(len(batch.trajectory_ids)),
        "unscored_trajectories": float((~table.scored).sum()),
        "singleton_groups": float((sizes == 1).sum()),
        "trained_tokens": float(trained),
        "filtered_tokens": float(batch.rows.mask.sum() - filtered.mask.sum()),
        "refill_groups": float(len(filtered.refill)),
        "corrected_away_tokens": float((filtered.mask & ~correction.keep).sum()),
    }
    if turn_advantages is not None:
        valid = filtered.statistics
        metrics["zero_advantage_turns"] = float(((turn_advantages == 0) & valid).sum())
        metrics["advantage_abs_mean"] = (
            float(turn_advantages[valid].abs().mean()) if bool(valid.any()) else 0.0
        )
    return metrics
