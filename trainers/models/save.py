"""Writes trained weights as an ordinary transformers folder."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from agentgym.trainers.models.progress_bars import no_progress_bars

# Everything of a model folder that is neither weights nor made anew by `save_pretrained`.
_COPIED = ("tokenizer*", "*.jinja", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")


def save_policy(
    model: nn.Module, base: Path, folder: Path, weights: Mapping[str, Tensor] | None = None
) -> Path:
    """Write a model with the tokenizer it began with, whole or not at all; return the folder.

    Adapters are merged into the weights of a copy, so the folder loads like any other and the
    model in training is left as it is.

    Args:
        model: The trained model.
        base: Folder it began from.
        folder: Where to write; what is there is replaced.
        weights: Whole weights by name, where the model's own are sharded.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    plain = cast("Any", model)
    if hasattr(plain, "merge_and_unload"):
        plain = copy.deepcopy(plain).merge_and_unload()
    with no_progress_bars():
        plain.save_pretrained(partial, state_dict=dict(weights) if weights is not None else None)
    for pattern in _COPIED:
        for file in base.glob(pattern):
            if not (partial / file.name).exists():
                shutil.copy2(file, partial / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return folder
