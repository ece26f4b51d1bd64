"""New weights into a module: by name, all of them or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from agentgym.errors import PolicyError

_SHOWN = 3


def load_tensors(
    model: nn.Module, weights: nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
) -> None:
    """Copy named tensors into `model`. Nothing is copied unless everything fits.

    Names that share one tensor in the model (a tied output head) count as given when one of them
    is.

    Raises:
        PolicyError: If a name is unknown, a shape differs, or a tensor is not given.
    """
    given = dict(_named(weights))
    own = model.state_dict(keep_vars=True)
    unknown = sorted(set(given) - set(own))
    shapes = sorted(n for n in given if n in own and given[n].shape != own[n].shape)
    covered = {own[name].data_ptr() for name in given if name in own}
    missing = sorted(name for name, tensor in own.items() if tensor.data_ptr() not in covered)
    for what, names in (("unknown", unknown), ("of another shape", shapes), ("missing", missing)):
        if names:
            raise PolicyError(
                f"{len(names)} of {len(own)} weight tensors are {what}, {names[:_SHOWN]!r} among "
                "them; nothing was copied"
            )
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)


def _named(
    weights: nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
) -> Iterable[tuple[str, Tensor]]:
    if isinstance(weights, nn.Module):
        return weights.state_dict().items()
    if isinstance(weights, Mapping):
        return cast("Mapping[str, Tensor]", weights).items()
    return weights


__all__ = ["load_tensors"]
