"""The learner: from a batch to new weights.

In order: `Learner.score` (log-probabilities of a batch under the present weights), `Learner.update`
(one optimiser step: forward, loss, backward, hooks, clipping, step). What the loss is, is the
preset's; nothing here knows an algorithm by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor

from agentgym.config import OptimConfig
from agentgym.errors import AgentGymError
from agentgym.records import Trajectory
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.distributed import World, shard
from agentgym.trainers.learner.layout import (
    MicroBatch,
    TokenRows,
    UpdateOptions,
    rank_micro_batches,
)
from agentgym.trainers.learner.optimizer import (
    learning_rate_factor,
    make_optimizer,
    set_learning_rates,
)
from agentgym.trainers.learner.token_logprobs import TokenScorer, transformer_blocks
from agentgym.trainers.learner.value_model import ValueModel, final_prompts
from agentgym.trainers.objective import prepare
from agentgym.trainers.objective.named_rewards import NameWatch
from agentgym.trainers.objective.prepare import Prepared
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.parts.hooks import ClipSums
from agentgym.trainers.parts.registry import Need


class DivergedError(AgentGymError, ArithmeticError):
    """A loss or a gradient is not finite; the weights are still those of the step before."""


class Learner:
    """Owns the trained model and its optimiser.

    Args:
        model: A transformers causal language model; sharded here if `world` has several ranks.
        preset: The objective.
        optim: Optimiser settings.
        total_updates: Planned updates of the whole run, for the learning-rate schedule.
        temperature: Sampling temperature of the episodes that are trained on.
        world: This process's place.
        options: How batches are cut.
        compute: Number format of the matrix products where the weights are wider; None for the
            weights' own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        preset: Preset,
        optim: OptimConfig,
        total_updates: int,
        temperature: float,
        world: World | None = None,
        options: UpdateOptions | None = None,
        compute: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.preset = preset
        self.optim = optim
        self.world = world if world is not None else World()
        # Copied before the policy is sharded: a copy of a shard is no model.
        self.critic: ValueModel | None = None
        if Need.VALUES in preset.needs:
            self.critic = ValueModel(model, compute=compute)
        self.scorer = TokenScorer(model, compute=compute)
        shard(self.scorer, transformer_blocks(model), self.world)
        if self.critic is not None:
            shard(self.critic, transformer_blocks(self.critic), self.world)
        self.reference: TokenScorer | None = None
        own = list(self.critic.parameters()) if self.critic is not None else []
        self.optimizer = make_optimizer(model.parameters(), optim, critic=own)
        self.updates = 0
        self._names = NameWatch(preset)
        self.options = options if options is not None else UpdateOptions()
        self._total_updates = total_updates
        self._temperature = temperature

    def start_from_here(self, reference: nn.Module | None) -> None:
        """Let the critic, and what regularizers measure from, begin at the present weights.

        Args:
            reference: A frozen copy of them, where the preset has such a regularizer.
        """
        if reference is not None:
            self.reference = TokenScorer(
                reference.requires_grad_(requires_grad=False), compute=self.scorer.compute
            )
        if self.critic is not None:
            decoder: Any = self.model
            decoder = decoder.get_decoder() if hasattr(decoder, "get_decoder") else decoder.model
            whole = StateDictOptions(full_state_dict=True)
            weights = get_model_state_dict(decoder, options=whole)
            set_model_state_dict(self.critic.model, weights, options=whole)

    def score(self, batch: Batch) -> Tensor:
        """Return [batch, time] log-probabilities of the trained tokens as the weights are now."""
        return self._over_rows(batch, lambda micro: self._logprobs(self.scorer, batch, micro))

    def _logprobs(self, scorer: TokenScorer, batch: Batch, micro: MicroBatch) -> Tensor:
        return scorer(micro, self._mask(batch, micro), self._temperature, False)[0]

    def _over_rows(self, batch: TokenRows, function: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Return [batch, time] numbers of every row, computed without gradient by all ranks.

        Each rank computes its share of the rows; the sum over ranks is the whole, since a row that
        is not a rank's own is 0 there.
        """
        result: Tensor | None = None
        with torch.no_grad():
            for micro, is_filler in self._micro_batches(batch):
                found = function(micro).cpu()
                if result is None:
                    result = torch.zeros(batch.ids.shape, dtype=found.dtype)
                if not is_filler:
                    result[micro.rows.cpu(), : found.shape[1]] = found
        if result is None:
            result = torch.zeros(batch.ids.shape)
        return self.world.sum(result.to(self.world.device)).cpu()

    def with_needs(self, batch: Batch, trajectories: Sequence[Trajectory]) -> Batch:
        """Return the batch with the values and the reference that the preset needs.

        Args:
            batch: The whole batch of the step.
            trajectories: Its trajectories, in its order, for the values of final prompts.
        """
        if self.reference is not None:
            reference = self.reference
            scored = self._over_rows(batch, lambda micro: self._logprobs(reference, batch, micro))
            batch = batch.with_logprobs(reference=scored)
        if self.critic is None:
            return batch
        batch = batch.with_token_fields(values=self._over_rows(batch, self.critic))
        settings = self.preset.critic
        if settings is None or settings.at_truncation == "outcome":
            return batch
        prompts = final_prompts(trajectories)
        bootstrap = torch.full((len(trajectories), 1), torch.nan, dtype=torch.float64)
        found = prompts.last(self._over_rows(prompts, self.critic))
        bootstrap[list(prompts.owners), 0] = found.to(bootstrap.dtype)
        return batch.with_turn_fields(bootstrap_values=bootstrap)

    def update(
        self, batch: Batch, *, is_single: bool, planned: int | None = None
    ) -> dict[str, float]:
        """Take one optimiser step on a batch and return its metrics.

        A batch that leaves nothing to learn from (after filters, corrections and scores no token is
        trained, or every advantage is 0 and no regularizer acts) changes nothing and does not
        count: no step, no momentum, no weight decay. All ranks decide alike.

        Args:
            batch: The whole batch of the step; every rank holds it.
            is_single: True if it is the only update on these episodes, so that the policy may
                stand for its own anchor where the preset allows.
            planned: Planned updates before this one, by which the learning rate goes; None takes
                those that were taken.

        Raises:
            DivergedError: If the loss or the gradient is not finite; nothing was changed.
        """
        if not (is_single and self.preset.can_skip_proximal):
            batch = self.with_anchor(batch)
        # On the model's device: at 512 rows of 4,096 tokens a CPU would hold it up for seconds.
        prepared = prepare.prepare(self.preset, batch.to(self.world.device))
        if self.world.is_main:
            self._names.see(batch.table.rewards)
        moves = not self._is_warming and self._agree(prepared.moves_policy)
        if not moves and not self._agree(prepared.moves_critic):
            return dict(prepared.metrics)
        self.optimizer.zero_grad(set_to_none=True)
        metrics = self._accumulate(batch, prepared, moves=moves)
        norms = self._clip()
        if not moves:
            # Zeros would still count in Adam's moments, and the weights would decay.
            self.model.zero_grad(set_to_none=True)
        rates = self._rates(self.updates if planned is None else planned)
        set_learning_rates(self.optimizer, **rates)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return {
            **prepared.metrics,
            **metrics,
            **norms,
            "learning_rate": rates["policy"] if moves else 0.0,
        }

    def _agree(self, has_work: bool) -> bool:
        """Return whether any rank has work: a sum on a GPU may differ from rank to rank."""
        return bool(self.world.max(int(has_work)))

    def _rates(self, planned: int) -> dict[str, float]:
        """Return the learning rates after so many planned updates; the policy's begin after the
        critic's warm-up, in which it stands still.
        """
        late = self.preset.critic.warmup_updates if self.preset.critic is not None else 0
        return {
            name: self.optim.learning_rate
            * learning_rate_factor(
                max(planned - start, 0),
                warmup=self.optim.warmup_steps,
                total=max(self._total_updates - start, 1),
                schedule=self.optim.schedule,
            )
            for name, start in (("policy", late), ("critic", 0))
        }

    def with_anchor(self, batch: Batch) -> Batch:
        """Return the batch with the proximal log-probabilities, where the preset needs them.

        Call it before the first update of a step that takes several.
        """
        if Need.PROXIMAL not in self.preset.needs or "proximal" in batch.rows.logprobs:
            return batch
        return batch.with_logprobs(proximal=self.score(batch))

    @property
    def _is_warming(self) -> bool:
        """Whether the next update trains the critic alone."""
        critic = self.preset.critic
        return critic is not None and self.updates < critic.warmup_updates

    def _surrogate_weight(self, batch: Batch, prepared: Prepared) -> float:
        """Return the factor of the surrogate's gradient, which the hooks give."""
        # A policy that is its own anchor has ratio 1 everywhere: nothing can be clipped.
        if not self.preset.hooks or prepared.anchor_logprobs is None:
            return 1.0
        return self._hook_scale(batch, prepared)

    def _hook_scale(self, batch: Batch, prepared: Prepared) -> float:
        """Return the hooks' factor, measured in a pass of its own before the step's backward."""
        wants_norm = prepare.needs_hook_norm(self.preset)
        sums = ClipSums(tokens=0.0, clipped=0.0, signed=0.0, absolute=0.0)
        for micro, is_filler in self._micro_batches(batch):
            with torch.set_grad_enabled(wants_norm):
                logprobs = self._logprobs(self.scorer, batch, micro)
                if wants_norm:
                    loss = prepare.hook_loss(self.preset, prepared, micro.rows, logprobs)
                    (loss * (0.0 if is_filler else 1.0)).backward()
            if not is_filler:
                sums += prepare.micro_clip(self.preset, prepared, micro.rows, logprobs.detach())
        names = ("tokens", "clipped", "signed", "absolute")
        totals = torch.tensor([getattr(sums, name) for name in names], dtype=torch.float64)
        totals = self.world.sum(totals.to(self.world.device)).tolist()
        norm: float | None = None
        if wants_norm:
            norm = float(_clip_norm(self.model, None))
            self.optimizer.zero_grad(set_to_none=True)
        total = ClipSums(**dict(zip(names, totals, strict=True)))
        return prepare.hook_scale(self.preset, total, norm)

    def _accumulate(self, batch: Batch, prepared: Prepared, *, moves: bool) -> dict[str, float]:
        """Add every micro-batch's gradient; their losses sum to the step's loss.

        Args:
            batch: The whole batch.
            prepared: What was computed from it.
            moves: Whether the policy is trained; else the critic alone.

        Raises:
            DivergedError: If the loss is not finite, in all ranks at once.
        """
        weight = self._surrogate_weight(batch, prepared) if moves else 0.0
        with_entropy = Need.ENTROPY in self.preset.needs
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        sums: dict[str, float] = {}
        for micro, is_filler in self._micro_batches(batch):
            mask = self._mask(batch, micro)
            logprobs, entropy, _ = self.scorer(micro, mask, self._temperature, with_entropy)
            critic: Any = self.critic
            values: Any = critic(micro) if critic is not None else None
            if is_filler:
                # Ranks must take part in the same number of collective calls.
                nothing = logprobs.sum() * 0 + (values.sum() * 0 if values is not None else 0)
                nothing.backward()
                continue
            part = prepare.micro_loss(
                self.preset,
                prepared,
                micro.rows,
                logprobs,
                entropy=entropy,
                values=values,
                surrogate_weight=weight,
                trains_policy=moves,
            )
            part.loss.backward()
            total += part.loss.detach().double()
            _add_metrics(sums, part.metrics)
        # Looked at when every rank has gone through all its rows: one that left the loop early
        # would leave the others waiting in a collective call.
        loss = float(self.world.sum(total))
        if not math.isfinite(loss):
            self.optimizer.zero_grad(set_to_none=True)
            raise DivergedError(f"the loss is {loss!r}; the step was not taken")
        return {"loss": loss, "policy_weight": weight, **sums}

    def _clip(self) -> dict[str, float]:
        """Clip the gradients, the critic's by a norm of its own, and return both norms.

        Raises:
            DivergedError: If one of them is not finite; the gradients are gone.
        """
        bound = self.optim.max_grad_norm
        norms = {"grad_norm": _clip_norm(self.model, bound)}
        if self.critic is not None:
            norms["critic_grad_norm"] = _clip_norm(self.critic, bound)
        for name, norm in norms.items():
            if not torch.isfinite(norm):
                self.optimizer.zero_grad(set_to_none=True)
                whose = "gradient" if name == "grad_norm" else "critic's gradient"
                raise DivergedError(
                    f"the norm of the {whose} is {norm.item()!r}; the step was not taken"
                )
        return {name: float(norm) for name, norm in norms.items()}

    def _mask(self, batch: Batch, micro: MicroBatch) -> Tensor:
        width = micro.valid.shape[1]
        return batch.rows.mask[micro.rows.cpu(), :width].to(micro.ids.device)

    def _micro_batches(self, batch: TokenRows) -> Iterator[tuple[MicroBatch, bool]]:
        return rank_micro_batches(batch, range(batch.ids.shape[0]), self.world, self.options)


def _clip_norm(module: nn.Module, bound: float | None) -> Tensor:
    """Scale a module's gradients down to a norm of at most `bound` and return what it was."""
    limit = bound if bound is not None else float("inf")
    norm = nn.utils.clip_grad_norm_(module.parameters(), limit)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _add_metrics(sums: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Add a micro-batch's numbers to the step's: sums add up, largest values stay."""
    for name, value in metrics.items():
        if name.endswith("_max"):
            sums[name] = max(sums.get(name, value), value)
        else:
            sums[name] = sums.get(name, 0.0) + value
