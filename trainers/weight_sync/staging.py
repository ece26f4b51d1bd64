"""Weights as an engine takes them: `checkpoint_weights`, `untied_copy`, and `Staging`, a copy.

A staging copy stands between learner and engine: the learner goes on while the engine reads, and
what was sent last can be sent again to an engine that was restarted.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import pickle
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agentgym.errors import PolicyError

UNTIED_FROM = "agentgym_untied_from"
"""Key in the config of a copy made by `untied_copy`: the folder that it was made of."""
_SHOWN = 3
_ALIGNMENT = 256
"""Bytes: tensors begin where the copy engine likes it."""
_VOCABULARY_STEP = 64
"""vLLM pads the rows of embeddings and output heads to a multiple of this."""
_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""Module of a checkpoint -> module of the engine, and its place in it, for the Llama family."""
_LLAMA_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model under the names of its checkpoint, tied ones under each name.

    Adapters are merged into copies; the model is left as it is.
    """
    plain: Any = model
    if hasattr(plain, "merge_and_unload"):
        return dict(_merged(plain))
    return {n: tensor.detach() for n, tensor in model.state_dict(keep_vars=True).items()}


def _merged(model: Any) -> Iterable[tuple[str, Tensor]]:
    """Yield the weights of a model with low-rank adapters, base and adapter summed up."""
    inner: nn.Module = model.get_base_model()
    deltas: dict[str, Tensor] = {}
    for name, module in inner.named_modules():
        layer: Any = module
        if hasattr(layer, "get_delta_weight"):
            for adapter in cast("Sequence[str]", layer.active_adapters):
                delta = layer.get_delta_weight(adapter).detach()
                key = f"{name}.weight"
                deltas[key] = deltas[key] + delta if key in deltas else delta
    for name, tensor in inner.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        own = name.replace(".base_layer.", ".")
        value = tensor.detach()
        yield own, value + deltas[own].to(value.dtype) if own in deltas else value


def checkpoint_names(folder: Path) -> frozenset[str]:
    """Return the names of all tensors in a folder's safetensors files."""
    names: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as opened:
            names.update(opened.keys())
    return frozenset(names)


def checkpoint_weights(model: nn.Module, stored: frozenset[str]) -> dict[str, Tensor]:
    """Return the tensors of a model that an engine's checkpoint has, all of them.

    Args:
        model: Whose weights.
        stored: Names in the checkpoint that the engine began with.

    Raises:
        PolicyError: If the model lacks a name, or has a tensor that the checkpoint has under no
            name: a tied one counts as had when one of its names is there.
    """
    weights = named_weights(model)
    had = {weights[name].data_ptr() for name in stored & set(weights)}
    missing = sorted(stored - set(weights))
    unknown = sorted(n for n in set(weights) - stored if weights[n].data_ptr() not in had)
    for what, names in (("missing", missing), ("not in the engine's checkpoint", unknown)):
        if names:
            raise PolicyError(
                f"{len(names)} weight tensors are {what}, {names[:_SHOWN]!r} among them; "
                "nothing was sent"
            )
    return {name: weights[name] for name in sorted(stored)}


def save_weights(weights: Mapping[str, Tensor], folder: Path) -> Path:
    """Write tensors as a safetensors file, whole or not at all, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # Clones: the format takes no tensors that share memory.
    tensors = {name: tensor.detach().clone().cpu() for name, tensor in weights.items()}
    partial = folder / ".model.partial"
    save_file(tensors, str(partial), metadata={"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
    return folder


def untied_copy(folder: Path, target: Path) -> Path:
    """Return a copy of a model folder whose output head is a tensor of its own.

    vLLM packs the output head of a CPU model once, and does not pack it again when the embedding
    that it is tied to is replaced.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings", False):
        return folder
    shutil.copytree(folder, target, dirs_exist_ok=True)
    for file in target.glob("*.safetensors*"):
        file.unlink()
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(str(file))
    embedding = next(name for name in weights if name.endswith("embed_tokens.weight"))
    weights.setdefault("lm_head.weight", weights[embedding])
    save_weights(weights, target)
    config |= {"tie_word_embeddings": False, UNTIED_FROM: str(folder.resolve())}
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where one tensor stands in the buffer."""

    name: str
    shape: tuple[int, ...]
    offset: int


class Staging:
    """One stretch of memory with a copy of all weights, in the engine's number format.

    Args:
        weights: Names, shapes and device.
        dtype: Number format of the copies; None keeps each tensor's own.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        device = next(iter(weights.values())).device
        self._places: list[tuple[_Place, torch.dtype]] = []
        size = 0
        for name in sorted(weights, key=_fused_order):
            tensor = weights[name]
            own = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            if not _continues_fused(name):
                size = math.ceil(size / _ALIGNMENT) * _ALIGNMENT
            place = _Place(name=name, shape=tuple(tensor.shape), offset=size)
            self._places.append((place, own))
            rows = _padded_rows(name, tensor)
            size += (rows * tensor[0].numel() if tensor.dim() else 1) * own.itemsize
        self.buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        self.views = {p.name: self._view(p.offset, p.shape, own) for p, own in self._places}

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, padding included."""
        return self.buffer.numel()

    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in and wait until they are there."""
        names = list(self.views)
        with torch.no_grad():
            # One call for all tensors.
            cast("Any", torch)._foreach_copy_(
                [self.views[name] for name in names], [weights[name] for name in names]
            )
        if self.buffer.is_cuda:
            torch.cuda.current_stream(self.buffer.device).synchronize()

    def layout(self) -> dict[str, Any]:
        """Return names, number formats and shapes, as vLLM's transfers want them."""
        return {
            "names": list(self.views),
            "dtype_names": [str(view.dtype).removeprefix("torch.") for view in self.views.values()],
            "shapes": [list(view.shape) for view in self.views.values()],
        }

    def handles(self) -> str:
        """Return handles to the tensors, pickled and in base64, as vLLM's ipc transfer wants them.

        They stay valid as long as this object does, whatever is copied in.
        """
        from torch.multiprocessing.reductions import reduce_tensor

        device = self.buffer.device
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handles = [{uuid: reduce_tensor(view)[1]} for view in self.views.values()]
        return base64.b64encode(pickle.dumps(handles)).decode()

    def shared_pairs(self) -> bytes:
        """Return pairs of an engine's own names and tensors, pickled as handles to shared memory.

        Projections that the engine has as one are one view: their parts lie side by side.
        """
        stream = io.BytesIO()
        ForkingPickler(stream).dump(list(self.fused().items()))
        return stream.getvalue()

    def fused(self) -> dict[str, Tensor]:
        """Return the tensors as an engine of the Llama family has them."""
        found: dict[str, Tensor] = {}
        groups: dict[str, list[tuple[_Place, torch.dtype]]] = {}
        for place, dtype in self._places:
            groups.setdefault(_fused_name(place.name), []).append((place, dtype))
        for name, places in groups.items():
            first, dtype = places[0]
            rows = sum(place.shape[0] for place, _ in places)
            if len(places) == 1:
                rows = _padded_rows(first.name, self.views[first.name])
            found[name] = self._view(first.offset, (rows, *first.shape[1:]), dtype)
        return found

    def _view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        return self.buffer[offset : offset + size].view(dtype).view(shape)


def is_fusable(model: nn.Module) -> bool:
    """Return whether the engine's own names of a model's tensors are known here."""
    config: Any = getattr(model, "config", None)
    return getattr(config, "model_type", "") in _LLAMA_FAMILY


def _split(name: str) -> tuple[str, str, str]:
    """Return what stands before the module of a tensor, the module, and the tensor's own name."""
    head, _, leaf = name.rpartition(".")
    before, _, module = head.rpartition(".")
    return before, module, leaf


def _fused_name(name: str) -> str:
    before, module, leaf = _split(name)
    return f"{before}.{_FUSED[module][0]}.{leaf}" if module in _FUSED else name


def _fused_order(name: str) -> tuple[str, int]:
    return _fused_name(name), _FUSED.get(_split(name)[1], ("", 0))[1]


def _continues_fused(name: str) -> bool:
    return _FUSED.get(_split(name)[1], ("", 0))[1] > 0


def _padded_rows(name: str, tensor: Tensor) -> int:
    if not tensor.dim():
        return 1
    rows = tensor.shape[0]
    if _split(name)[1] in {"embed_tokens", "lm_head"}:
        return math.ceil(rows / _VOCABULARY_STEP) * _VOCABULARY_STEP
    return rows


__all__ = [
    "UNTIED_FROM",
    "Staging",
    "checkpoint_names",
    "checkpoint_weights",
    "is_fusable",
    "named_weights",
    "save_weights",
    "untied_copy",
]
