"""`tiny`: a Llama of 0.4 to 20 million parameters with a tokenizer of its own, built in seconds.

It is an ordinary transformers folder, so everything downstream (transformers, vLLM, checkpoints)
takes the path of a real model. It knows nothing until it is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.errors import ConfigError
from agentgym.renderer.formats import ChatFormat
from agentgym.trainers.models.progress_bars import no_progress_bars

END, PAD = "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
DEFAULT_TAGS = ("<calculator>", "</calculator>", "<answer>", "</answer>")
"""Tags of the arithmetic environment; as whole tokens they are learnt 3 to 5 times sooner."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Two tokens a message, its role and its end: at this size every token of context counts."""

TINY_FORMAT = ChatFormat(
    template=CHAT_TEMPLATE, special=(END, *(f"<|{role}|>" for role in ROLES)), end=END
)


class TinySize(StrEnum):
    """How large a tiny model is."""

    SMALL = "small"
    BASE = "base"
    LARGE = "large"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Dimensions of a tiny model."""

    hidden: int
    """Width of the residual stream."""
    layers: int
    """Number of blocks."""
    heads: int
    """Attention heads; keys and values have as many."""
    feed_forward: int
    """Width of the gated feed-forward layer."""
    vocabulary: int
    """Largest number of token ids; the tokenizer may need fewer."""


SHAPES = {
    TinySize.SMALL: TinyShape(hidden=128, layers=2, heads=4, feed_forward=320, vocabulary=384),
    TinySize.BASE: TinyShape(hidden=256, layers=4, heads=8, feed_forward=704, vocabulary=1024),
    TinySize.LARGE: TinyShape(hidden=448, layers=8, heads=8, feed_forward=1216, vocabulary=4096),
}
"""Parameters with a full vocabulary: about 0.4, 3.5 and 21 million."""

ROPE_THETA = 10_000.0
CONTEXT_TOKENS = 2_048


def build_tiny(
    folder: Path | str,
    *,
    size: TinySize | str = TinySize.SMALL,
    corpus: Iterable[str] = (),
    tags: Sequence[str] = DEFAULT_TAGS,
    chat: ChatFormat = TINY_FORMAT,
    vocabulary: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a new tiny model to `folder` and return the folder.

    The same arguments give the same files, byte for byte.

    Args:
        folder: Where to write; made if missing.
        size: `small`, `base` or `large`.
        corpus: Texts from which the tokenizer learns its merges; without any it has bytes alone.
        tags: Texts that become one token each, such as `<answer>`.
        chat: Chat template with the tokens that it writes.
        vocabulary: Largest number of ids; default by size.
        hidden: Width in place of the size's own; the feed-forward layer grows with it.
        layers: Number of blocks in place of the size's own.
        heads: Attention heads in place of the size's own.
        seed: Seed of the weights.

    Raises:
        ConfigError: If the size is unknown, the width is not an even multiple of the heads, or the
            vocabulary is too small for bytes and tokens.
    """
    if size not in tuple(TinySize):
        raise ConfigError(f"'size' must be one of {[*map(str, TinySize)]!r} (got {size!r})")
    shape = _changed(SHAPES[TinySize(size)], hidden=hidden, layers=layers, heads=heads)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    wanted = shape.vocabulary if vocabulary is None else vocabulary
    tokenizer = train_tokenizer(corpus, tags=tags, special=chat.special, vocabulary=wanted)
    _write_tokenizer(path, tokenizer, chat)
    with no_progress_bars():
        _new_model(shape, tokenizer, end=chat.end, seed=seed).save_pretrained(path)
    return path


def _changed(
    shape: TinyShape, *, hidden: int | None, layers: int | None, heads: int | None
) -> TinyShape:
    width = hidden or shape.hidden
    count = heads or shape.heads
    if width % (2 * count):
        raise ConfigError(
            f"'hidden' must be an even multiple of 'heads', which rotary positions need "
            f"(got {width!r} and {count!r})"
        )
    return replace(
        shape,
        hidden=width,
        layers=layers or shape.layers,
        heads=count,
        feed_forward=shape.feed_forward * width // shape.hidden,
    )


def train_tokenizer(
    corpus: Iterable[str], *, tags: Sequence[str], special: Sequence[str], vocabulary: int
) -> Tokenizer:
    """Return a byte-level BPE tokenizer with single digits and whole chat tokens and tags.

    Raises:
        ConfigError: If `vocabulary` has no room for 256 bytes, the chat tokens and the tags.
    """
    steering = [PAD, *special]
    least = len(steering) + len(tags) + len(pre_tokenizers.ByteLevel.alphabet())
    if vocabulary < least:
        raise ConfigError(f"'vocabulary' must be >= {least} (got {vocabulary!r})")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Digits one by one: a number's token count then says its size, and copying is local.
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(tags),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in steering],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    # Tags are whole but not special: they are text that a person reads and that the world may say.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return tokenizer


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, chat: ChatFormat) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": chat.end,
        "pad_token": PAD,
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
    }
    if chat.bos is not None:
        config["bos_token"] = chat.bos
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat.template, encoding="utf-8")


def _new_model(shape: TinyShape, tokenizer: Tokenizer, *, end: str, seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(end),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    with torch.random.fork_rng(devices=[]):
        # The layers draw from the global generator; its state is put back afterwards.
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


__all__ = [
    "CHAT_TEMPLATE",
    "DEFAULT_TAGS",
    "SHAPES",
    "TINY_FORMAT",
    "TinyShape",
    "TinySize",
    "build_tiny",
    "train_tokenizer",
]
