"""A renderer from a model folder: its tokenizer files, its chat template, its end ids."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from agentgym.errors import RenderError
from agentgym.renderer.base import History
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.fast_tokenizer import FastTokenizer, read_json
from agentgym.renderer.template import ChatTemplate


def load_renderer(
    folder: Path | str,
    *,
    history: History = History.VERBATIM,
    template: str | None = None,
    template_names: Mapping[str, Any] | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> ChatRenderer:
    """Return the renderer of a model folder.

    Args:
        folder: Folder with `tokenizer.json` (or slow tokenizer files, which need transformers).
        history: How earlier turns enter the next prompt.
        template: Chat template to use in place of the folder's own.
        template_names: Keyword arguments of the template, such as `enable_thinking`.
        now: Clock behind `strftime_now`.

    Raises:
        RenderError: If files are missing or unreadable, or there is no chat template.
    """
    path = Path(folder)
    tokenizer = load_tokenizer(path)
    source = template if template is not None else read_chat_template(path)
    if source is None:
        raise RenderError(
            f"{str(path)!r} has no chat template, as base models have none; write one, a Jinja "
            f"text, to {str(path / 'chat_template.jinja')!r}"
        )
    names = {**tokenizer.template_names, **(template_names or {})}
    return ChatRenderer(
        tokenizer,
        ChatTemplate(source, names=names, now=now),
        history=history,
        vocabulary_size=read_vocabulary_size(path),
    )


def read_vocabulary_size(folder: Path) -> int | None:
    """Return how many ids the model of a folder can sample; None if its config does not say.

    It may be more than the tokenizer has: many models pad their vocabulary.
    """
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    parts = [config, cast("dict[str, Any]", text)] if isinstance(text, dict) else [config]
    sizes = [size for part in parts if isinstance(size := part.get("vocab_size"), int)]
    return sizes[-1] if sizes else None


def load_tokenizer(folder: Path) -> FastTokenizer:
    """Return the tokenizer of a model folder; slow formats are converted by transformers."""
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer.from_folder(folder)
    # By name: the module imports transformers, which the core must not.
    module = importlib.import_module("agentgym.renderer.hf_tokenizer")
    return cast("FastTokenizer", module.load_converted(folder))


def read_chat_template(folder: Path) -> str | None:
    """Return a folder's chat template: its own file, or the entry of a JSON file; None if none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        value: Any = read_json(folder / name).get("chat_template")
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            named = {
                entry.get("name"): entry.get("template")
                for entry in cast("list[dict[str, str]]", value)
            }
            if named.get("default"):
                return named["default"]
    return None


__all__ = ["load_renderer", "load_tokenizer", "read_chat_template"]
