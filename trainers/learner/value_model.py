"""The value model of a critic: a trunk of its own with a scalar head.

It begins as a copy of the policy's weights with a head of zeros, and is a network apart: what the
critic learns never moves the policy, so its warm-up leaves the policy as it is. A value belongs to
the context before its token, as a log-probability does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentgym.records import Trajectory
from agentgym.trainers.learner.layout import MicroBatch
from agentgym.trainers.learner.token_logprobs import body, computing_in
from agentgym.trainers.parts.probes import final_prompt_ids


class ValueModel(nn.Module):
    """Values of contexts.

    Args:
        model: The policy, a transformers causal language model; it is copied.
        compute: Number format of the matrix products; None for the weights' own.
    """

    def __init__(self, model: Any, *, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.compute = compute
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
        self.model = copy.deepcopy(decoder)
        if compute is not None:
            # Also where the policy's own are frozen in a narrow format: these are all trained.
            self.model.to(torch.float32)
        self.model.requires_grad_(requires_grad=True)
        width = model.config.hidden_size
        parameter = next(self.model.parameters())
        self.head = nn.Linear(width, 1, bias=False, device=parameter.device, dtype=parameter.dtype)
        # Zero: before it has learned anything the critic changes no advantage.
        nn.init.zeros_(self.head.weight)

    def forward(self, micro: MicroBatch) -> Tensor:
        """Return [row, time] the value of the context before each token; 0 for a first token."""
        with computing_in(self.compute, micro.ids.device):
            hidden = micro.to_rows(body(self, micro))
            values = self.head(hidden)[..., 0]
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        return torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalPrompts:
    """The final prompts of some trajectories as rows, for bootstrap values.

    Each row has one further id at its end, so that the value before it is the final prompt's.
    """

    owners: tuple[int, ...]
    """[batch] position of the trajectory."""
    ids: Tensor
    """[batch, time] token ids, padded on the right."""
    lengths: Tensor
    """[batch] number of real tokens of each row."""

    def last(self, values: Tensor) -> Tensor:
        """Return [batch] the value at the last id of each row."""
        return values.gather(1, self.lengths[:, None] - 1)[:, 0]


def final_prompts(trajectories: Sequence[Trajectory]) -> FinalPrompts:
    """Return the final prompts of the trajectories that were cut short."""
    found = {
        position: ids
        for position, trajectory in enumerate(trajectories)
        if trajectory.is_cut_short and (ids := final_prompt_ids(trajectory))
    }
    rows = [(*ids, ids[-1]) for ids in found.values()]
    width = max([1, *map(len, rows)])
    padded = [row + (0,) * (width - len(row)) for row in rows]
    return FinalPrompts(
        owners=tuple(found),
        ids=torch.tensor(padded, dtype=torch.long).reshape(len(rows), width),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.long),
    )
