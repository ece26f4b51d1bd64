"""The pipeline of an objective: `prepare` once for the whole batch, `micro_loss` for some rows.

`prepare` computes everything that depends on the whole batch before the first backward: rewards,
filters, terms, advantages, corrections, clip widths and the coefficient of each token. Then the
sum of `micro_loss` over any split of the rows into micro-batches and ranks is the step's loss,
and the sum of their gradients its gradient. No model is called here. The single stages are in
`agentgym.trainers.objective.stages`, the loss and the hooks in `agentgym.trainers.objective.loss`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentgym.trainers.batch import Batch
from agentgym.trainers.objective.loss import (
    hook_loss,
    hook_scale,
    micro_clip,
    micro_loss,
    needs_hook_norm,
)
from agentgym.trainers.objective.preset import CriticConfig, Preset
from agentgym.trainers.objective.records import MicroLoss, Prepared, ValueTargets
from agentgym.trainers.objective.stages import (
    Filtered,
    anchor_logprobs,
    apply_filters,
    call_part,
    clip_widths,
    combine_terms,
    correct,
    ends_of,
    finish_term,
    merge_rewards,
    restrict,
)
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.correction import Correction
from agentgym.trainers.parts.critic import CriticResult
from agentgym.trainers.parts.registry import Need, Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

__all__ = [
    "MicroLoss",
    "Prepared",
    "apply_filters",
    "call_part",
    "hook_loss",
    "hook_scale",
    "micro_clip",
    "micro_loss",
    "needs_hook_norm",
    "prepare",
]


@torch.no_grad()
def prepare(preset: Preset, batch: Batch) -> Prepared:
    """Return all that is computed from the whole batch before the first backward; no gradient.

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
    terms = {term.name: finish_term(term, rewards, table)[-1] for term in preset.terms}
    turn_advantages, critic = _advantages(preset, rewards, terms, table, rows)
    advantages = _token_advantages(preset, turn_advantages, critic, filtered.mask, batch)
    anchor = anchor_logprobs(preset, rows)
    correction = correct(preset, rows, anchor, filtered.mask)
    coefficients = call_part(
        Slot.AGGREGATION, preset.aggregation, filtered.mask, advantages, rows, table
    )
    return Prepared(
        mask=filtered.mask,
        turn_ids=torch.where(filtered.mask, rows.turn_ids, -1),
        advantages=torch.where(filtered.mask, advantages, torch.zeros_like(advantages)),
        coefficients=torch.where(correction.keep, coefficients * correction.weight, 0),
        anchor_logprobs=anchor,
        widths=clip_widths(preset, rows, terms),
        logprobs=rows.logprobs,
        regularizer_coefficients=_regularizer_coefficients(
            preset, coefficients, filtered.mask, advantages, rows=rows, table=table
        ),
        value_targets=_value_targets(preset.critic, critic, filtered.mask, rows),
        turn_advantages=turn_advantages,
        rewards=rewards,
        terms=terms,
        refill=filtered.refill,
        metrics={
            **_metrics(batch, filtered, advantages, anchor, correction),
            **_belief_metrics(preset, rewards, table),
        },
    )


def _advantages(
    preset: Preset,
    rewards: Mapping[str, TurnValues],
    terms: Mapping[str, TurnValues],
    table: TurnTable,
    rows: RowTable,
) -> tuple[Tensor | None, CriticResult | None]:
    """Return turn-level advantages, or what the critic gives instead of them."""
    config = preset.critic
    if config is None:
        return combine_terms(preset, terms, table), None
    if "values" not in rows.fields:
        raise LookupError(
            f"the batch has no 'values', which critic {config.part!r} needs; attach them by "
            "with_token_fields"
        )
    ends = ends_of(preset, config, rewards, table)
    merged = merge_rewards(config.reward, ends.rewards)
    return None, call_part(
        Slot.CRITIC, config, merged, rows.fields["values"], ends.after_end, rows, table
    )


def _token_advantages(
    preset: Preset,
    turn_advantages: Tensor | None,
    critic: CriticResult | None,
    mask: Tensor,
    batch: Batch,
) -> Tensor:
    """Return [batch, time] advantages: the critic's or spread from turns, then reshaped."""
    if critic is not None:
        advantages = critic.advantages
    else:
        assert preset.spread is not None  # held by preset_checks.contradictions
        advantages = call_part(Slot.SPREAD, preset.spread, turn_advantages, batch.rows)
    for config in preset.reshape:
        advantages = call_part(Slot.RESHAPE, config, advantages, mask, batch.rows, batch.table)
    return advantages


def _regularizer_coefficients(
    preset: Preset,
    coefficients: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    rows: RowTable,
    table: TurnTable,
) -> tuple[Tensor, ...]:
    """Return each regularizer's coefficient times its aggregation; no correction weighs it."""
    return tuple(
        config.coefficient
        * (
            coefficients
            if config.aggregation is None
            else call_part(Slot.AGGREGATION, config.aggregation, mask, advantages, rows, table)
        )
        for config in preset.regularizers
    )


def _value_targets(
    config: CriticConfig | None, critic: CriticResult | None, mask: Tensor, rows: RowTable
) -> ValueTargets | None:
    if config is None or critic is None:
        return None
    per_token = config.value_coefficient / mask.sum().clamp(min=1)
    return ValueTargets(
        old_values=rows.fields["values"].detach(),
        returns=critic.returns,
        coefficients=torch.where(mask, per_token, 0),
    )


def _metrics(
    batch: Batch,
    filtered: Filtered,
    advantages: Tensor,
    anchor: Tensor | None,
    correction: Correction,
) -> dict[str, float]:
    """Return numbers of the whole batch."""
    table, mask = batch.table, filtered.mask
    sizes = torch.bincount(table.group[table.scored], minlength=len(batch.group_ids))
    chosen = advantages[mask]
    metrics = {
        "trajectories": float(len(batch.trajectory_ids)),
        "unscored_trajectories": float((~table.scored).sum()),
        "singleton_groups": float((sizes == 1).sum()),
        "trained_tokens": float(mask.sum()),
        "filtered_tokens": float(batch.rows.mask.sum() - mask.sum()),
        "refill_groups": float(len(filtered.refill)),
        "zero_advantage_tokens": float((chosen == 0).sum()),
        "advantage_abs_mean": float(chosen.abs().mean()) if chosen.numel() else 0.0,
    }
    if anchor is not None and chosen.numel():
        gap = (anchor - batch.rows.logprobs["behavior"])[mask].abs().double()
        weights = correction.weight[mask]
        metrics |= {
            "mismatch_abs_mean": float(gap.mean()),
            "mismatch_abs_p95": float(torch.quantile(gap[:: 1 + gap.numel() // _SAMPLED], 0.95)),
            "mismatch_abs_max": float(gap.max()),
            "correction_mean": float(weights.mean()),
            "correction_max": float(weights.max()),
            "corrected_away_tokens": float((mask & ~correction.keep).sum()),
        }
    return metrics


def _belief_metrics(
    preset: Preset, rewards: Mapping[str, TurnValues], table: TurnTable
) -> dict[str, float]:
    """Return how many scored trajectories have no value of a reward that is made of beliefs.

    They are trained on the outcome alone: a task without a gold answer, or a single turn.
    """
    made = [
        rewards[config.name or config.part]
        for config in preset.rewards
        if Need.BELIEF in registry.find(Slot.REWARD, config.part).needs
    ]
    if not made:
        return {}
    without = [table.scored & ~one.valid.any(dim=1) for one in made]
    return {"trajectories_without_belief_reward": float(torch.stack(without).any(dim=0).sum())}


_SAMPLED = 2**16
"""A quantile sorts: it is taken over every n-th token, this many at most."""
