"""The tokenizer of a model folder, through the `tokenizers` package alone."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from agentgym.errors import RenderError
from agentgym.files.bounded import MAX_RECORD_BYTES, DataError, parse_json, read_text
from agentgym.renderer.tokenizer import Encoding

_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_WINDOW = 8
"""Ids before the present one that are decoded with it where a token's text depends on context."""


def _byte_alphabet() -> dict[str, int]:
    """Return character to byte of the byte-level alphabet.

    Printable bytes stand for themselves, the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(0x100) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


_BYTES = _byte_alphabet()


class FastTokenizer:
    """A `tokenizers.Tokenizer` as a `ChatTokenizer`.

    Args:
        backend: The tokenizer; it is copied, and truncation and padding are switched off.
        template_names: Text of `bos_token`, `eos_token`, `pad_token`, ... where the model has them.
        end_ids: Ids that end a completion; those of `eos_token` are added.

    Raises:
        RenderError: If there is neither an end id nor an `eos_token`.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        template_names: Mapping[str, str],
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        source = backend.to_str()
        self._backend = Tokenizer.from_str(source)
        self._plain = Tokenizer.from_str(source)
        # A flag of the whole object, so untrusted text has an object of its own.
        self._plain.encode_special_tokens = True
        for tokenizer in (self._backend, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.id = hashlib.sha256(source.encode()).hexdigest()[:8]
        self.template_names = dict(template_names)
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens = {token.content: index for index, token in added.items()}
        self.special_tokens = frozenset(t.content for t in added.values() if t.special)
        eos = self._named_id("eos_token")
        self.end_ids = end_ids if eos is None else end_ids | {eos}
        if not self.end_ids:
            raise RenderError(
                "nothing says which token ends a message: name it in tokenizer_config.json "
                "('eos_token') or in generation_config.json ('eos_token_id')"
            )
        pad = self._named_id("pad_token")
        self.pad_id = pad if pad is not None else min(self.end_ids)
        decoder: Any = json.loads(source).get("decoder")
        self._is_byte_level = decoder is not None and decoder["type"] == "ByteLevel"

    @classmethod
    def from_folder(cls, folder: Path) -> FastTokenizer:
        """Return the tokenizer of a model folder.

        Raises:
            RenderError: If `tokenizer.json` is missing or unreadable.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise RenderError(f"{str(folder)!r} has no tokenizer.json")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # boundary: tokenizers raises nothing narrower
            raise RenderError(f"cannot read {str(path)!r}: {error}") from error
        return cls(backend, template_names=read_token_names(folder), end_ids=read_end_ids(folder))

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, allow_special: bool) -> Encoding:
        """Return the ids of `text`; without `allow_special` special tokens are ordinary text."""
        tokenizer = self._backend if allow_special else self._plain
        encoded = tokenizer.encode(text, add_special_tokens=False)
        return Encoding(ids=tuple(encoded.ids), starts=tuple(start for start, _ in encoded.offsets))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return [time] character stretch of each id; ids of one character share its stretch."""
        return self._byte_offsets(ids) if self._is_byte_level else self._window_offsets(ids)

    def _byte_offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        pieces = [self._token_bytes(token) for token in ids]
        if all(map(bytes.isascii, pieces)):  # a character a byte: nearly every completion
            ends = list(accumulate(map(len, pieces)))
            return tuple(zip([0, *ends], ends, strict=False))
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        stretches: list[tuple[int, int]] = []
        done = 0
        is_inside_character = False
        for data in pieces:
            if data.isascii() and not is_inside_character:  # most ids: a character a byte
                stretches.append((done, done + len(data)))
                done += len(data)
                continue
            places: list[int] = []
            for byte in data:
                done += len(decoder.decode(bytes((byte,))))
                is_inside_character = bool(decoder.getstate()[0])
                places.append(done if is_inside_character else done - 1)
            stretches.append((places[0], places[-1] + 1) if places else (done, done))
        return tuple(stretches)

    def _token_bytes(self, token: int) -> bytes:
        known = self._bytes_of.get(token)
        if known is None:
            text = self._backend.id_to_token(token) or ""
            is_mapped = all(character in _BYTES for character in text)
            known = bytes(_BYTES[c] for c in text) if is_mapped else text.encode()
            self._bytes_of[token] = known
        return known

    @cached_property
    def _bytes_of(self) -> dict[int, bytes]:
        return {}

    def _window_offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        # Decoders such as SentencePiece's look at neighbours (leading space, byte runs), so the
        # length of each prefix is taken from a short window that ends there.
        stretches: list[tuple[int, int]] = []
        done = 0
        for index in range(len(ids)):
            begin = max(0, index - _WINDOW)
            grown = len(self.decode(ids[begin : index + 1])) - len(self.decode(ids[begin:index]))
            stretches.append((done, done + max(grown, 0)))
            done += max(grown, 0)
        return tuple(stretches)

    def _named_id(self, name: str) -> int | None:
        text = self.template_names.get(name)
        return None if text is None else self._backend.token_to_id(text)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; empty if there is no such file.

    Raises:
        RenderError: If the file holds anything else than a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = parse_json(read_text(path, max_bytes=MAX_RECORD_BYTES))
    except DataError as error:
        raise RenderError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(value, dict):
        raise RenderError(f"{str(path)!r} must hold a JSON object (got {type(value).__name__})")
    return cast("dict[str, Any]", value)


def read_token_names(folder: Path) -> dict[str, str]:
    """Return the text of `bos_token` and the like from a model folder."""
    merged = read_json(folder / "special_tokens_map.json")
    merged.update(read_json(folder / "tokenizer_config.json"))
    names: dict[str, str] = {}
    for name in _TOKEN_NAMES:
        value: Any = merged.get(name)
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("content")
        if isinstance(value, str):
            names[name] = value
    return names


def read_end_ids(folder: Path) -> frozenset[int]:
    """Return every end id that a model folder names: a generation config may list several."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value: Any = read_json(folder / name).get("eos_token_id")
        listed = cast("list[Any]", value) if isinstance(value, list) else [value]
        ids.update(entry for entry in listed if isinstance(entry, int))
    return frozenset(ids)


__all__ = ["FastTokenizer", "read_end_ids", "read_json", "read_token_names"]
