"""Tokenizers of folders without `tokenizer.json`, converted by transformers.

The only renderer module that imports transformers; nothing imports it but by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from agentgym.errors import MissingExtraError, RenderError
from agentgym.renderer.fast_tokenizer import FastTokenizer, read_end_ids, read_token_names


def load_converted(folder: Path) -> FastTokenizer:
    """Return the fast form of a folder's tokenizer. No code of the folder is run.

    Raises:
        MissingExtraError: If transformers is not installed.
        RenderError: If the folder has no tokenizer that transformers can convert.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("a folder without tokenizer.json", extra="train") from error
    try:
        loaded: Any = cast("Any", AutoTokenizer).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()
        raise RenderError(
            f"{str(folder)!r} has no readable tokenizer: {reason[0] if reason else error!r}"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise RenderError(f"the tokenizer of {str(folder)!r} has no fast form")
    return FastTokenizer(
        backend, template_names=read_token_names(folder), end_ids=read_end_ids(folder)
    )


__all__ = ["load_converted"]
