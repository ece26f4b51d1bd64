"""Log-probabilities of the trained tokens under a causal model, never `[tokens, vocab]` at once.

The model's body runs over a micro-batch; its head runs over the trained positions only, in chunks
that are computed again in the backward pass. Rows come padded or packed, with equal results.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentgym.errors import ConfigError
from agentgym.policies.transformers.architecture import added_mask, layer_masks, scaled_logits
from agentgym.trainers.learner.gradient_checkpointing import recomputing
from agentgym.trainers.learner.layout import MicroBatch

_HEAD_TOLERANCE = 0.02
"""Nats between two ways to the same log-probability; only their last steps round apart."""
CHUNK_TOKENS = 2048
"""Positions whose logits exist at one time: 400 MB in float32 for a vocabulary of 49,152."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutputs:
    """What the model says of the trained tokens of a micro-batch; 0 off the mask."""

    logprobs: Tensor
    """[row, time] log-probability of each trained token under the sampling temperature, in nats."""
    entropy: Tensor | None
    """[row, time] entropy of the distribution it was drawn from, in nats; None if not asked for."""
    hidden: Tensor
    """[row, time, hidden] last hidden state at each token, 0 on padding."""


def token_outputs(
    model: nn.Module,
    micro: MicroBatch,
    mask: Tensor,
    *,
    temperature: float,
    with_entropy: bool = False,
    attention: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> TokenOutputs:
    """Return log-probabilities (and entropies) of the masked tokens of a micro-batch.

    Args:
        model: A transformers causal language model.
        micro: Rows as the model takes them.
        mask: [row, time] True on tokens to score; a row's first token has no log-probability.
        temperature: Divides the logits, as it did when the tokens were sampled.
        with_entropy: Whether to return entropies too.
        attention: [line, 1, query, key] True where a token may look; None for each row's own past.
        chunk_tokens: Positions whose logits exist at one time.

    Raises:
        ConfigError: If `temperature` is not positive, or a row's first token is masked in.
    """
    if temperature <= 0:
        raise ConfigError(f"a log-probability needs a temperature > 0 (got {temperature!r})")
    if bool(mask[:, 0].any()):
        raise ConfigError("a row's first token cannot be trained: nothing precedes it")
    hidden = body(model, micro, attention)
    row, time = mask.nonzero(as_tuple=True)
    flat = hidden.flatten(0, 1)
    before = micro.index[row, time - 1]
    targets = micro.ids.flatten()[micro.index[row, time]]
    logprobs, entropy = _head_in_chunks(
        model,
        flat[before],
        targets,
        temperature=temperature,
        chunk=chunk_tokens,
        entropy=with_entropy,
    )
    shape = mask.shape
    return TokenOutputs(
        logprobs=_scatter(logprobs, row, time, shape),
        entropy=_scatter(entropy, row, time, shape) if with_entropy else None,
        hidden=micro.to_rows(hidden),
    )


class TokenScorer(nn.Module):
    """A causal model whose forward is `token_outputs`, so that sharding sees one module's call.

    Args:
        model: The model.
        compute: Number format of the matrix products, such as bfloat16, where the weights are kept
            in a wider one; None computes in the weights' own.
    """

    def __init__(self, model: nn.Module, *, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(
        self,
        micro: MicroBatch,
        mask: Tensor,
        temperature: float,
        with_entropy: bool,
        attention: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the fields of `TokenOutputs` as a tuple, which sharding can hook into."""
        with computing_in(self.compute, micro.ids.device):
            outputs = token_outputs(
                self.model,
                micro,
                mask,
                temperature=temperature,
                with_entropy=with_entropy,
                attention=attention,
            )
        return outputs.logprobs, outputs.entropy, outputs.hidden


def computing_in(
    number: torch.dtype | None, device: torch.device
) -> AbstractContextManager[object]:
    """Return a context in which matrix products are computed in a number format; None: nothing."""
    if number is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=number)


def body(model: Any, micro: MicroBatch, attention: Tensor | None = None) -> Tensor:
    """Return [line, position, hidden] last hidden states of a micro-batch."""
    is_packed = bool((micro.segment_ids.max(dim=1).values > micro.segment_ids[:, 0]).any())
    masks: Tensor | dict[str, Tensor] | None = None
    if attention is not None or is_packed:
        positions = micro.position_ids
        seen = attention if attention is not None else block_mask(micro.segment_ids)
        distance = (positions[:, :, None] - positions[:, None, :])[:, None]
        masks = _attention_masks(model, seen, distance)
    else:
        # Right padding is never seen by a real token, so plain causal attention is exact, and
        # positions that go on over the padding keep the fast path.
        width = micro.ids.shape[1]
        positions = torch.arange(width, device=micro.ids.device).expand_as(micro.ids)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    with recomputing(model):
        return decoder(
            input_ids=micro.ids, position_ids=positions, attention_mask=masks, use_cache=False
        ).last_hidden_state


def check_head(model: Any) -> None:
    """Check that body and head, run apart, give the model's own log-probabilities.

    Raises:
        ConfigError: If they do not: the learner would train another distribution than is sampled.
    """
    text = _text_config(model)
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(4, device=device)[None] % text.vocab_size
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits.float().log_softmax(dim=-1)
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
        apart = _logits(model, hidden).float().log_softmax(dim=-1)
    off = float((own - apart).abs().max())
    if not off <= _HEAD_TOLERANCE:
        raise ConfigError(
            f"{type(model).__name__} cannot be trained: its logits are more than the output of its "
            f"head (log-probabilities differ by {off:.3g}, at most {_HEAD_TOLERANCE:g} is accepted)"
        )


def _attention_masks(model: Any, seen: Tensor, distance: Tensor) -> Tensor | dict[str, Tensor]:
    """Return what the model's attention takes for a mask of booleans, for each kind of layer."""
    text = _text_config(model)
    masks = layer_masks(seen, distance, text)
    if getattr(text, "_attn_implementation", None) != "eager":
        return masks
    dtype = next(model.parameters()).dtype  # this one adds its mask, of whatever type
    if isinstance(masks, dict):
        return {kind: added_mask(mask, dtype) for kind, mask in masks.items()}
    return added_mask(masks, dtype)


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _logits(model: Any, states: Tensor) -> Tensor:
    return scaled_logits(model.get_output_embeddings()(states), _text_config(model))


def transformer_blocks(model: Any) -> list[nn.Module]:
    """Return the decoder's layers, in order; empty where they are not found by the usual name."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return list(getattr(decoder, "layers", ()))


def block_mask(segment_ids: Tensor) -> Tensor:
    """Return [line, 1, query, key]: True where a token may look, at its own segment's past."""
    size = segment_ids.shape[1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    causal = torch.ones(size, size, dtype=torch.bool, device=segment_ids.device).tril()
    return (same & causal)[:, None]


def _head_in_chunks(
    model: Any, hidden: Tensor, targets: Tensor, *, temperature: float, chunk: int, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Return [token] log-probabilities and entropies, computed in pieces of `chunk` tokens."""

    def piece(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = _logits(model, states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        normaliser = logits.logsumexp(dim=-1)
        chosen = logits.gather(-1, ids[:, None])[:, 0] - normaliser
        if not entropy:
            return chosen, torch.zeros_like(chosen)
        expected = (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)
        return chosen, normaliser - expected

    chosen: list[Tensor] = []
    entropies: list[Tensor] = []
    for states, ids in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        if torch.is_grad_enabled() and hidden.requires_grad:
            logprob, spread = checkpoint(piece, states, ids, use_reentrant=False)
        else:
            logprob, spread = piece(states, ids)
        chosen.append(logprob)
        entropies.append(spread)
    if not chosen:
        empty = hidden.new_zeros(0, dtype=torch.promote_types(hidden.dtype, torch.float32))
        return empty, empty
    return torch.cat(chosen), torch.cat(entropies)


def _scatter(values: Tensor, row: Tensor, time: Tensor, shape: torch.Size) -> Tensor:
    """Return values of single tokens as [row, time], 0 elsewhere."""
    return torch.zeros(shape, dtype=values.dtype, device=values.device).index_put(
        (row, time), values
    )
