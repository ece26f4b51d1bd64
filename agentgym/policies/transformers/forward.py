"""`ModelRunner`: the forwards of generation and scoring, for any causal model of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentgym.errors import PolicyError
from agentgym.policies.transformers.architecture import (
    added_mask,
    layer_masks,
    layer_types,
    scaled_logits,
)
from agentgym.policies.transformers.store import KeyValueStore

_HEAD_POSITIONS = 2_048
"""Positions whose logits exist at once when scoring: bounds memory to this times the vocabulary."""
_CHECK_TOLERANCE = 1e-3
"""Largest difference allowed between our output head and the model's, relative to its scale."""


class ModelRunner:
    """Runs one model. Only the worker thread of a policy calls it.

    Args:
        model: A causal model of transformers, or a peft model around one.

    Raises:
        PolicyError: If the model has layers without keys and values (state-space, linear).
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        get_base: Any = getattr(model, "get_base_model", None)
        # peft puts its layers into the model itself: without its wrapper they still act.
        self._causal: Any = get_base() if callable(get_base) else model
        self.config: Any = self._causal.config
        text: Any = self.config.get_text_config(decoder=True)
        layer_types(text)  # raises for a model that cannot be run here
        self.context_tokens: int | None = getattr(text, "max_position_embeddings", None)
        self.vocabulary_size: int = text.vocab_size
        names = inspect.signature(self._causal.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._body: Any = self._causal.base_model
        self._head: Any = self._causal.get_output_embeddings()
        self._text = text
        self.has_own_head = self._check_head()

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return self._causal.get_input_embeddings().weight.device

    def prepare(self) -> None:
        """Switch dropout off; the learner, which may share the module, switches it on itself."""
        if self.model.training:
            self.model.eval()

    def extend(
        self,
        store: KeyValueStore,
        first: int,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
    ) -> None:
        """Write keys and values of new tokens for the rows from `first` on. No logits are made.

        Args:
            store: Where to; it has room.
            first: First row.
            tokens: [row][time] at least one new id a row; rows may differ in length.
            starts: [row] column of each row's first new id.
        """
        longest = max(len(row) for row in tokens)
        padded = [[*row, *([0] * (longest - len(row)))] for row in tokens]
        begin = torch.tensor(starts, device=self.device)[:, None]
        columns = begin + torch.arange(longest, device=self.device)
        # Padding stands right of a row's end, where later ids overwrite it; its position is held
        # at the last real one, which learned position tables are sure to have.
        last = begin + torch.tensor([len(row) - 1 for row in tokens], device=self.device)[:, None]
        store.aim(first=first, columns=columns, width=max(starts) + longest)
        self._run(
            torch.tensor(padded, device=self.device), columns, torch.minimum(columns, last), store
        )

    def decode(self, store: KeyValueStore, tokens: Sequence[int], columns: Sequence[int]) -> Tensor:
        """Return [row, vocab] logits after one more id for each of the first rows."""
        places = torch.tensor(columns, device=self.device)[:, None]
        store.aim(first=0, columns=places, width=max(columns) + 1)
        ids = torch.tensor(tokens, device=self.device)[:, None]
        return self._logits(ids, places, places, store)

    def score(self, rows: Sequence[Sequence[int]], skip: Sequence[int]) -> list[tuple[float, ...]]:
        """Return log-probabilities, at temperature 1, of each row's ids from `skip` (>= 1) on."""
        longest = max(len(row) for row in rows)
        ids = torch.tensor(
            [[*row, *([0] * (longest - len(row)))] for row in rows], device=self.device
        )
        mask = torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self.device
        )
        hidden_or_logits = self._plain(ids, mask)
        scores: list[tuple[float, ...]] = []
        for index, row in enumerate(rows):
            states = hidden_or_logits[index, skip[index] - 1 : len(row) - 1]
            targets = ids[index, skip[index] : len(row)]
            scores.append(tuple(self._target_logprobs(states, targets)))
        return scores

    def _plain(self, ids: Tensor, mask: Tensor) -> Tensor:
        if self.has_own_head:
            return self._body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return self._causal(input_ids=ids, attention_mask=mask, use_cache=False).logits

    def _target_logprobs(self, states: Tensor, targets: Tensor) -> list[float]:
        found: list[float] = []
        for start in range(0, len(targets), _HEAD_POSITIONS):
            part = states[start : start + _HEAD_POSITIONS]
            logits = self._apply_head(part) if self.has_own_head else part
            chosen = targets[start : start + _HEAD_POSITIONS, None]
            logprobs: Any = logits.float().log_softmax(dim=-1).gather(-1, chosen)[:, 0]
            values: list[float] = logprobs.tolist()
            found += values
        return found

    def _logits(
        self, ids: Tensor, columns: Tensor, positions: Tensor, store: KeyValueStore
    ) -> Tensor:
        output = self._run(ids, columns, positions, store)
        if self.has_own_head:
            return self._apply_head(output.last_hidden_state[:, -1])
        return output.logits[:, -1]

    def _run(self, ids: Tensor, columns: Tensor, positions: Tensor, store: KeyValueStore) -> Any:
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": self._masks(columns, store.width),
            "position_ids": positions,
            "use_cache": True,
            self._cache_name: store,
        }
        if self.has_own_head:
            return self._body(**arguments)
        return self._causal(**arguments, logits_to_keep=1)

    def _masks(self, columns: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """Return the mask, [row, 1, time, width], or one for each type of layer."""
        keys = torch.arange(width, device=columns.device)
        distance = columns[:, None, :, None] - keys
        masks = layer_masks(distance >= 0, distance, self._text)
        if isinstance(masks, dict):
            return {kind: self._added(mask) for kind, mask in masks.items()}
        return self._added(masks)

    def _added(self, mask: Tensor) -> Tensor:
        # Added to the scores: every attention implementation takes this form, and on CPU it is
        # faster than a mask of booleans.
        return added_mask(mask, next(self._causal.parameters()).dtype)

    def _apply_head(self, hidden: Tensor) -> Tensor:
        return scaled_logits(self._head(hidden), self._text)

    def _check_head(self) -> bool:
        """Return whether body and head, run apart, give the model's own logits."""
        if self._head is None:
            return False
        was_training = self.model.training
        self.model.eval()
        ids = torch.arange(4, device=self.device)[None] % self.vocabulary_size
        try:
            with torch.no_grad():
                expected = self._causal(input_ids=ids, use_cache=False).logits.float()
                return self._agrees(ids, expected)
        except ValueError as error:
            raise PolicyError(f"the model cannot run as it was loaded: {error}") from error
        finally:
            self.model.train(was_training)

    def _agrees(self, ids: Tensor, expected: Tensor) -> bool:
        try:
            hidden = self._body(input_ids=ids, use_cache=False).last_hidden_state
            actual = self._apply_head(hidden).float()
        except (AttributeError, TypeError, RuntimeError):
            return False
        scale = float(expected.abs().max()) or 1.0
        return bool((actual - expected).abs().max() <= _CHECK_TOLERANCE * scale)


__all__ = ["ModelRunner"]
