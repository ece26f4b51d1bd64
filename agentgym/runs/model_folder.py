"""What is wrong with a model folder, found before anything slow starts or is written.

In order: `find_cached` (a Hugging Face id to the folder of its download), `folder_problems` (all
that can be known of a folder) and `weight_problems` (of its config and its weights alone).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from agentgym.config.validation import Problem
from agentgym.errors import ConfigError, MissingExtraError, RenderError
from agentgym.files.bounded import MAX_CONFIG_BYTES, DataError, open_regular, parse_json, read_text

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_MOST_HEADER_BYTES = 100_000_000
"""Of a safetensors file; the format's own bound."""
_BITS = {"BOOL": 8, "BF16": 16}
"""Element types whose name does not end in their size."""


def find_cached(name: str) -> Path | None:
    """Return the folder of a Hugging Face model that was downloaded; None if there is none.

    Args:
        name: Its id, such as `Qwen/Qwen2.5-0.5B-Instruct`.
    """
    if not _HUB_ID.fullmatch(name):
        return None
    place = _hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        commit = (place / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = place / "snapshots" / commit
    return folder if commit and (folder / "config.json").is_file() else None


def download_hint(name: str) -> str:
    """Return how to get a model whose name may be a Hugging Face id; empty if it cannot be one."""
    if not _HUB_ID.fullmatch(name):
        return ""
    return f"; a model of that name on Hugging Face must be downloaded first: hf download {name}"


def _hub_cache() -> Path:
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return (Path(home) if home else cache / "huggingface").expanduser() / "hub"


def folder_problems(folder: Path, name: str = "") -> Iterator[Problem]:
    """Yield what is wrong with a model folder, without loading its weights.

    Args:
        folder: A transformers folder.
        name: What the user called it; by default its path.
    """
    policy = name or str(folder)
    found = list(weight_problems(folder, policy))
    if not found and not any((folder / file).is_file() for file in _TOKENIZERS):
        found = [_problem(f"{policy!r} has no tokenizer ({', '.join(_TOKENIZERS)})")]
    yield from found or [*_prompt_problems(folder, policy)] or _fit_problems(folder)


def weight_problems(folder: Path, name: str = "") -> Iterator[Problem]:
    """Yield what is wrong with the config and the weights of a folder: missing, cut, unreadable."""
    policy = name or str(folder)
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "there is no such folder"
        yield _problem(f"{policy!r} is no model folder: {what}")
        return
    try:
        content = parse_json(read_text(folder / "config.json", max_bytes=MAX_CONFIG_BYTES))
    except DataError as error:
        reason = _one_line(error)
        yield _problem(f"{policy!r} is no model folder: its config.json cannot be read ({reason})")
        return
    if not isinstance(content, dict) or "model_type" not in content:
        yield _problem(f"{policy!r} is no model folder: config.json has no model_type")
        return
    try:
        files = _weight_files(folder)
    except (DataError, ValueError) as error:
        yield _problem(f"{policy!r}: {_INDEX} cannot be read ({_one_line(error)})")
        return
    if not files:
        yield _problem(_no_weights(folder, policy))
    for file in files:
        if wrong := _broken(folder / file):
            yield _problem(f"{policy!r}: {file} {wrong}; copy or download it again")


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the files that hold the weights; empty if none is named or there."""
    if not (folder / _INDEX).is_file():
        return [_WEIGHTS] if (folder / _WEIGHTS).is_file() else []
    index: Any = parse_json(read_text(folder / _INDEX, max_bytes=_MOST_HEADER_BYTES))
    try:
        names = sorted({str(name) for name in index["weight_map"].values()})
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it has no 'weight_map'") from None
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ValueError(f"it names files outside the folder: {outside[0]!r}")
    return names


def _no_weights(folder: Path, policy: str) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        return (
            f"{policy!r} has no .safetensors weights; other formats can run code and are not read: "
            "convert them"
        )
    if (folder / "adapter_model.safetensors").is_file():
        return f"{policy!r} holds an adapter alone: merge it into its model, and give that folder"
    return f"{policy!r} has no .safetensors weights ({_WEIGHTS}, or {_INDEX} and its files)"


def _broken(path: Path) -> str:
    """Return what is wrong with a safetensors file, seen from its header and its size."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
                return f"is cut off or no safetensors file ({size:,} bytes)"
            file.seek(0)
            header: Any = _header_of(file)
    except (DataError, OSError) as error:
        return f"cannot be used: {_one_line(error)}"
    except (ValueError, RecursionError):
        return "is no safetensors file: its header cannot be read"
    try:
        end = _end_of_data(header)
    except (AttributeError, KeyError, TypeError, ValueError):
        return "is damaged: its header does not describe its tensors"
    found = size - 8 - length
    return "" if end == found else f"is cut off or damaged: {found:,} bytes of {end:,}"


def weights_in(path: Path) -> float:
    """Return the number of weights in a safetensors file that has nothing wrong with it."""
    with open_regular(path) as file:
        return float(sum(math.prod(entry["shape"]) for entry in _tensors(_header_of(file))))


def _header_of(file: BinaryIO) -> Any:
    """Return the header of a safetensors file, which is as long as the file's first bytes say."""
    length = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(min(length, _MOST_HEADER_BYTES)))


def _tensors(header: Any) -> list[Any]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _end_of_data(header: Any) -> int:
    """Return how many bytes the tensors of a file take.

    Raises:
        ValueError: If they overlap, leave gaps, or are not as long as their shapes say.
    """
    end = 0
    for entry in sorted(_tensors(header), key=lambda one: tuple(one["data_offsets"])):
        start, stop = entry["data_offsets"]
        bits = _BITS.get(entry["dtype"]) or int(re.findall(r"^[A-Z](\d+)", entry["dtype"])[0])
        if start != end or (stop - start) * 8 != math.prod(entry["shape"]) * bits:
            raise ValueError
        end = stop
    return end


def _prompt_problems(folder: Path, policy: str) -> Iterator[Problem]:
    """Yield what keeps prompts from being written: template, end of a message, vocabulary."""
    # Imported here: the tokenizers package takes a while, and few commands name a folder.
    from agentgym.renderer.folder import load_renderer, read_vocabulary_size

    try:
        renderer = load_renderer(folder)
        size = read_vocabulary_size(folder)
    except (RenderError, MissingExtraError) as error:
        text = _one_line(error)
        yield _problem(text if str(folder) in text else f"{policy!r}: {text}")
        return
    tokenizer: Any = renderer.tokenizer
    ids = (*tokenizer.added_tokens.values(), *renderer.end_ids)
    most: int = max((*ids, tokenizer.vocabulary_size - 1))
    if size is not None and most >= size:
        text = f"{policy!r}: its tokenizer has the id {most}, its model only {size} (vocab_size): "
        yield _problem(f"{text}they do not belong together")


def _fit_problems(folder: Path) -> Iterator[Problem]:
    """Yield what is wrong between the config and the weights, if this process can tell."""
    try:
        load: Any = importlib.import_module("agentgym.trainers.models.load")
    except ImportError:  # it is told where a model is to be loaded
        return
    try:
        load.check_fit(folder)
    except ConfigError as error:
        yield _problem(str(error))


def _problem(text: str) -> Problem:
    return Problem(key="policy", text=text)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
