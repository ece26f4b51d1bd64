from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from agentgym.errors import RenderError
from agentgym.renderer.fast_tokenizer import FastTokenizer, read_end_ids, read_token_names
from agentgym.renderer.tokenizer import ChatTokenizer


def byte_level() -> FastTokenizer:
    """Return a byte-level BPE with two merges and the special token <end>."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**alphabet, "he": 256, "ll": 257}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("l", "l")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    backend.add_tokens([AddedToken("<tag>", special=False)])
    return FastTokenizer(backend, template_names={"eos_token": "<end>"})


def pieces() -> FastTokenizer:
    """Return a SentencePiece-like tokenizer: words begin with a mark for the space before them."""
    vocabulary = [("<unk>", 0.0), ("\u2581he", -1.0), ("llo", -1.0), ("\u2581", -2.0), ("x", -2.0)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    backend.add_special_tokens(["</s>"])
    return FastTokenizer(backend, template_names={"eos_token": "</s>"})


def test_fast_tokenizer_satisfies_its_protocol() -> None:
    assert isinstance(byte_level(), ChatTokenizer)


def test_special_tokens_come_only_where_they_are_allowed() -> None:
    tokenizer = byte_level()
    end = tokenizer.added_tokens["<end>"]
    assert tokenizer.encode("he<end>", allow_special=True).ids == (256, end)
    spelled = tokenizer.encode("he<end>", allow_special=False)
    assert end not in spelled.ids
    assert tokenizer.decode(spelled.ids) == "he<end>"
    assert tokenizer.special_tokens == {"<end>"}
    tag = tokenizer.added_tokens["<tag>"]
    assert tag in tokenizer.encode("<tag>", allow_special=False).ids


def test_starts_are_characters_of_the_text() -> None:
    # he | ll | o, then the two bytes of é (characters 5 to 6), then <end>.
    encoding = byte_level().encode("hellé<end>", allow_special=True)
    assert encoding.starts == (0, 2, 4, 4, 5)


def test_offsets_of_bytes_share_their_character_b2() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("hé🙂<end>ll", allow_special=True).ids
    assert tokenizer.decode(ids) == "hé🙂<end>ll"
    # h | two bytes | four bytes | <end> | ll
    assert tokenizer.offsets(ids) == (
        (0, 1),
        *[(1, 2)] * 2,
        *[(2, 3)] * 4,
        (3, 8),
        (8, 10),
    )


def test_offsets_of_a_broken_character_match_the_text() -> None:
    # The first two of the four bytes of a smiley, as after a cut by length, then "he".
    tokenizer = byte_level()
    broken = tokenizer.encode("🙂", allow_special=True).ids[:2]
    text = tokenizer.decode((*broken, 256))
    stretches = tokenizer.offsets((*broken, 256))
    assert text[stretches[-1][0] : stretches[-1][1]] == "he"
    assert tokenizer.offsets(broken)[-1][1] == len(tokenizer.decode(broken))


@given(ids=st.lists(st.integers(0, 259), max_size=20))
def test_offsets_reach_the_end_of_the_text(ids: list[int]) -> None:
    tokenizer = byte_level()
    stretches = tokenizer.offsets(ids)
    assert len(stretches) == len(ids)
    assert (stretches[-1][1] if ids else 0) == len(tokenizer.decode(ids))
    assert all(a <= b for a, b in stretches)
    assert all(a[0] <= b[0] for a, b in pairwise(stretches))


def test_offsets_of_pieces_follow_the_decoder() -> None:
    tokenizer = pieces()
    ids = tokenizer.encode(" hello hello", allow_special=True).ids
    text = tokenizer.decode(ids)
    stretches = tokenizer.offsets(ids)
    assert [text[a:b] for a, b in stretches] == [" he", "llo", " he", "llo"]


def test_padding_is_the_end_where_no_other_is_named() -> None:
    tokenizer = byte_level()
    assert tokenizer.pad_id == tokenizer.added_tokens["<end>"]
    assert tokenizer.end_ids == {tokenizer.pad_id}


def test_every_end_id_of_the_folder_is_read_b4(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert read_end_ids(tmp_path) == {7, 9}


def test_token_names_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    config = {"eos_token": {"content": "</s>", "special": True}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_token_names(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"has no tokenizer\.json"):
        FastTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RenderError, match="cannot read"):
        FastTokenizer.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(RenderError, match="must hold a JSON object"):
        read_end_ids(tmp_path)


def test_tokenizer_without_an_end_is_refused() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(RenderError, match="nothing says which token ends a message"):
        FastTokenizer(backend, template_names={})
