from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.errors import ConfigError
from agentgym.records.messages import Message
from agentgym.renderer.folder import load_renderer
from agentgym.trainers.models.tiny import SHAPES, TinySize, build_tiny

CORPUS = ("The product of 37 and 48 is 1776, and 1776 is the answer. ",) * 30


def test_same_seed_gives_the_same_files_and_another_does_not(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    folders = [
        build_tiny(tmp_path / str(index), corpus=CORPUS, seed=seed)
        for index, seed in enumerate((3, 3, 4))
    ]
    names = sorted(path.name for path in folders[0].iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    first, again, other = (
        {name: (folder / name).read_bytes() for name in names} for folder in folders
    )
    assert first == again
    assert [name for name in names if first[name] != other[name]] == ["model.safetensors"]
    assert torch.equal(before, torch.get_rng_state())


# Tied embeddings v*d; a block has 4*d*d (attention), 3*d*f (feed-forward), 2*d (norms); one norm
# at the end. small: 2*(4*128*128 + 3*128*320 + 256) + 128 + v*128 = 377,472 + 128 v.
def test_small_has_the_parameters_of_its_shape(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path, corpus=CORPUS, vocabulary=300)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    vocabulary = model.config.vocab_size
    assert vocabulary <= 300
    assert sum(p.numel() for p in model.parameters()) == 377_472 + 128 * vocabulary


def test_sizes_grow(tmp_path: Path) -> None:
    # large, by hand: 8*(4*448*448 + 3*448*1216 + 896) + 448 + 4096*448 = 21.3 million at most.
    weights = [
        shape.layers * (4 * shape.hidden**2 + 3 * shape.hidden * shape.feed_forward)
        for shape in (SHAPES[size] for size in TinySize)
    ]
    assert weights[0] < weights[1] / 7 < weights[2] / 35
    folder = build_tiny(tmp_path, hidden=64, layers=3, heads=2)
    config: Any = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 2)
    assert config.intermediate_size == 160  # 320 * 64 / 128


def test_digits_and_tags_are_one_token_each(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path, corpus=CORPUS, tags=("<answer>", "</answer>"))
    tokenizer = load_renderer(folder).tokenizer
    ids = tokenizer.encode("<answer>1776</answer>", allow_special=False).ids
    assert len(ids) == 6
    assert [tokenizer.decode([i]) for i in ids] == ["<answer>", *"1776", "</answer>"]
    assert len(tokenizer.encode("product", allow_special=False).ids) < len("product")


def test_a_message_costs_two_tokens(tmp_path: Path) -> None:
    renderer = load_renderer(build_tiny(tmp_path, corpus=CORPUS))
    prompt = renderer.first_prompt([Message(role="user", content="7")])
    # <|user|> 7 <|end|> <|assistant|>
    assert len(prompt.ids) == 4
    assert renderer.tokenizer.decode(prompt.ids) == "<|user|>7<|end|><|assistant|>"


def test_transformers_reads_the_folder_as_any_other(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path, corpus=CORPUS)
    reference: Any = AutoTokenizer.from_pretrained(folder)
    renderer = load_renderer(folder)
    for text in ("37*48 = 1776", " é中🙂\n", "<answer>x</answer>", ""):
        ids = reference.encode(text, add_special_tokens=False)
        assert tuple(ids) == renderer.tokenizer.encode(text, allow_special=True).ids
        assert reference.decode(ids) == text
    assert {reference.eos_token_id} == set(renderer.end_ids)
    assert reference.pad_token_id == renderer.pad_id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "huge"}, r"'size' must be one of \['small', 'base', 'large'\] \(got 'huge'\)"),
        ({"vocabulary": 100}, r"'vocabulary' must be >= 266 \(got 100\)"),
        ({"hidden": 100, "heads": 3}, r"even multiple of 'heads'.*got 100 and 3"),
    ],
)
def test_impossible_shapes_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    # 266: 256 bytes, <|pad|>, <|end|>, four roles, four tags.
    with pytest.raises(ConfigError, match=message):
        build_tiny(tmp_path, **options)
