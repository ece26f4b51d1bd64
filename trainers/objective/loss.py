"""The second half of an objective: the loss of some rows, from what `prepare` left.

In order: `micro_loss`, then `micro_clip`, `hook_loss`, `hook_scale` and `needs_hook_norm`, which
are what hooks add. The sum of `micro_loss` over any split of the rows is the step's loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.objective.records import MicroLoss, Prepared, ValueTargets
from agentgym.trainers.objective.stages import call_part
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.critic import clipped_value_loss
from agentgym.trainers.parts.hooks import ClipSums, clip_sums, clipped_tokens
from agentgym.trainers.parts.registry import Need, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The rows of a micro-batch, as wide, on the device and of the type of the model's numbers."""

    rows: Tensor
    like: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        chosen = values.detach()[self.rows.to(values.device), : self.like.shape[1]]
        chosen = chosen.to(self.like.device)
        return chosen.to(self.like.dtype) if chosen.is_floating_point() else chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gated:
    """The middle of `micro_loss`: everything about the ratio of some rows."""

    mask: Tensor
    policy: Tensor
    log_ratio: Tensor
    advantages: Tensor
    coefficients: Tensor
    widths: Mapping[str, Tensor]


def _gated(preset: Preset, prepared: Prepared, cut: _Cut, policy_logprobs: Tensor) -> _Gated:
    mask = cut(prepared.mask)
    # Replaced before anything is computed: a padded position may hold any number, also NaN.
    policy = torch.where(mask, policy_logprobs, torch.zeros_like(policy_logprobs))
    anchor = policy.detach()
    if prepared.anchor_logprobs is not None:
        anchor = torch.where(mask, cut(prepared.anchor_logprobs), torch.zeros_like(policy))
    widths: dict[str, Tensor] = {}
    if prepared.widths is not None:
        widths = {"clip_low": cut(prepared.widths.low), "clip_high": cut(prepared.widths.high)}
    return _Gated(
        mask=mask,
        policy=policy,
        log_ratio=call_part(
            Slot.RATIO, preset.ratio, policy - anchor, mask, cut(prepared.turn_ids)
        ),
        advantages=cut(prepared.advantages),
        coefficients=cut(prepared.coefficients),
        widths=widths,
    )


def micro_loss(
    preset: Preset,
    prepared: Prepared,
    rows: Tensor,
    policy_logprobs: Tensor,
    *,
    entropy: Tensor | None = None,
    values: Tensor | None = None,
    surrogate_weight: float = 1.0,
    trains_policy: bool = True,
) -> MicroLoss:
    """Return the share of some rows in the step's loss.

    Args:
        preset: The objective.
        prepared: What `prepare` returned for the whole batch.
        rows: [row] indices of the rows in the batch.
        policy_logprobs: [row, time] log-probabilities of the rows' ids under the policy that is
            trained, with gradient; may be narrower than the batch where the rest is padding.
        entropy: [row, time] entropy of the policy, where the preset needs it.
        values: [row, time] values of the value head, where the preset has a critic.
        surrogate_weight: Factor of the surrogate's loss alone, from `hook_scale`.
        trains_policy: False where the value loss is all, as while the critic warms up.
    """
    cut = _Cut(rows=rows, like=policy_logprobs)
    gated = _gated(preset, prepared, cut, policy_logprobs)
    token_loss = _gate_loss(preset, gated)
    loss = surrogate_weight * (gated.coefficients * token_loss).sum()
    known = {name: cut(tensor) for name, tensor in prepared.logprobs.items()}
    for config, coefficients in zip(
        preset.regularizers, prepared.regularizer_coefficients, strict=True
    ):
        extra = call_part(Slot.REGULARIZER, config, gated.policy, known, entropy, gated.mask)
        loss = loss + (cut(coefficients) * extra).sum()
    if not trains_policy:
        # Connected, so that every rank's backward is the same; and 0 also where the loss is not.
        loss = torch.where(torch.zeros_like(gated.mask), policy_logprobs, 0.0).sum()
    if prepared.value_targets is not None:
        loss = loss + _value_loss(preset, prepared.value_targets, cut, gated.mask, values)
    return MicroLoss(
        loss=loss,
        clip=_clip_sums(preset, gated),
        metrics=_token_metrics(gated, token_loss, entropy),
    )


def _gate_loss(preset: Preset, gated: _Gated) -> Tensor:
    """Return [row, time] the loss of each token, before any coefficient."""
    detached = gated.policy.detach()
    if "weighted" in registry.find(Slot.GATE, preset.gate.part).traits:
        weight = call_part(
            Slot.GATE,
            preset.gate,
            gated.log_ratio.detach(),
            gated.advantages,
            detached,
            **gated.widths,
        )
        return -weight.detach() * gated.advantages * gated.policy
    return -call_part(
        Slot.GATE, preset.gate, gated.log_ratio, gated.advantages, detached, **gated.widths
    )


def _value_loss(
    preset: Preset, targets: ValueTargets, cut: _Cut, mask: Tensor, values: Tensor | None
) -> Tensor:
    assert preset.critic is not None  # there are no targets without one
    if values is None:
        raise LookupError(f"critic {preset.critic.part!r} needs 'values' in micro_loss (got None)")
    nothing = torch.zeros_like(values)
    loss = clipped_value_loss(
        torch.where(mask, values, nothing),
        torch.where(mask, cut(targets.old_values), nothing),
        torch.where(mask, cut(targets.returns), nothing),
        width=preset.critic.value_width,
    )
    return (cut(targets.coefficients) * loss).sum()


def _clipped(preset: Preset, gated: _Gated) -> Tensor:
    """Return [row, time] True where the clip takes the gradient away; nowhere without a clip."""
    found = registry.find(Slot.GATE, preset.gate.part)
    if "clip_low" not in found.parameters:
        return torch.zeros_like(gated.mask)
    parameters = preset.gate.parameters
    widths = {name: gated.widths.get(name, parameters[name]) for name in ("clip_low", "clip_high")}
    ratio = gated.log_ratio.detach().exp()
    clipped = clipped_tokens(ratio, gated.advantages, **widths)
    if "cap" in found.parameters:  # what bounds the ratio of a negative advantage from above
        clipped = clipped | ((gated.advantages < 0) & (ratio > parameters["cap"]))
    return gated.mask & clipped


def _clip_sums(preset: Preset, gated: _Gated) -> ClipSums:
    return clip_sums(
        gated.coefficients,
        gated.log_ratio.detach().exp(),
        gated.advantages,
        _clipped(preset, gated),
        int(gated.mask.sum()),
    )


def micro_clip(
    preset: Preset, prepared: Prepared, rows: Tensor, policy_logprobs: Tensor
) -> ClipSums:
    """Return what the clip takes away of some rows, as `MicroLoss.clip`, without their loss."""
    gated = _gated(preset, prepared, _Cut(rows=rows, like=policy_logprobs), policy_logprobs)
    return _clip_sums(preset, gated)


def hook_loss(preset: Preset, prepared: Prepared, rows: Tensor, policy_logprobs: Tensor) -> Tensor:
    """Return the share of some rows in the loss whose gradient is the clipping bias C.

    C = sum over clipped tokens of coefficient * r * A * grad log r. The learner adds these up over
    all rows, takes the gradient and hands its norm to `hook_scale`; only where the preset's needs
    have `gradient_norm`.
    """
    gated = _gated(preset, prepared, _Cut(rows=rows, like=policy_logprobs), policy_logprobs)
    clipped = _clipped(preset, gated)
    surrogate = gated.coefficients * gated.log_ratio.exp() * gated.advantages
    # The sum over all tokens keeps the graph connected where nothing is clipped.
    return torch.where(clipped, surrogate, torch.zeros_like(surrogate)).sum()


def hook_scale(preset: Preset, sums: ClipSums, norm: float | None = None) -> float:
    """Return the factor of the policy's gradient: the product over the preset's hooks.

    Args:
        preset: The objective.
        sums: `MicroLoss.clip` added up over all micro-batches and ranks.
        norm: Norm of the gradient of `hook_loss` over all rows, where it is needed.
    """
    scale = 1.0
    for config in preset.hooks:
        scale *= call_part(Slot.HOOK, config, sums, norm)
    return scale


def needs_hook_norm(preset: Preset) -> bool:
    """Return whether `hook_scale` wants the norm of an extra backward."""
    return Need.GRADIENT_NORM in preset.needs


def _token_metrics(gated: _Gated, token_loss: Tensor, entropy: Tensor | None) -> dict[str, float]:
    """Return sums over trained tokens, to be added over micro-batches, and maxima."""
    gap = torch.where(gated.mask, gated.log_ratio.detach(), torch.zeros_like(gated.log_ratio))
    metrics = {
        "tokens": float(gated.mask.sum()),
        "log_ratio_sum": float(gap.sum()),
        "log_ratio_squared_sum": float(gap.square().sum()),
        "log_ratio_abs_max": float(gap.abs().max()) if gap.numel() else 0.0,
        "nonfinite_sum": float((~token_loss.detach().isfinite() & gated.mask).sum()),
    }
    if entropy is not None:
        metrics["entropy_sum"] = float(torch.where(gated.mask, entropy.detach(), 0.0).sum())
    return metrics
