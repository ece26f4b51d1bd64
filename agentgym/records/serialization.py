"""Records as JSON lines: `dumps` writes one line, `loads` reads it back, equal in every field.

A line is an object with `schema`, `type` and the fields that differ from their defaults. The codec
follows the type hints of the dataclasses, so a new field needs no code here; a field whose meaning
changes needs a new `SCHEMA` and an entry in `_UPGRADES`. Secrets among a run's settings are written
as `<redacted>` wherever a text holds them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, Union, cast

from agentgym import records
from agentgym.errors import RecordError
from agentgym.records import arrays
from agentgym.redaction import masked

SCHEMA = 1
"""Version of what is written."""

Record: TypeAlias = (
    records.Task | records.Trajectory | records.Score | records.Group | records.Sample
)
"""What a line may hold."""

_TYPES: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (records.Task, records.Trajectory, records.Score, records.Group, records.Sample)
}
_UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Schema -> function that turns a line of it into one of the next."""

# Free JSON keeps tuples apart from lists; an object that uses these keys itself is wrapped.
_TUPLE, _OBJECT = "$tuple", "$object"
# Inside JSON strings these are legal, but `str.splitlines` takes them for the end of a line.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def dumps(record: Record) -> str:
    """Return a record as one line of JSON, without the line feed.

    Raises:
        RecordError: If a free field holds what JSON cannot.
    """
    name = type(record).__name__
    if _TYPES.get(name) is not type(record):
        raise RecordError(f"a line holds one of {sorted(_TYPES)} (got {name})")
    line = {"schema": SCHEMA, "type": name, **_codec(type(record)).encode(record)}
    try:
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{name} cannot be written as JSON: {error}") from error
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot hold
        return json.dumps(line, separators=(",", ":"), allow_nan=False)
    for character, escape in _LINE_ENDS.items():
        text = text.replace(character, escape)
    return text


def loads(line: str | bytes) -> Record:
    """Return the record of one line.

    Raises:
        RecordError: If the line is not one, or its schema is not read by this version.
    """
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"a line is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise RecordError(f"a line must be an object (got {type(fields).__name__})")
    fields = _upgraded(cast("dict[str, Any]", fields))
    name = fields.pop("type", None)
    if name not in _TYPES:
        raise RecordError(f"'type' must be one of {sorted(_TYPES)} (got {name!r})")
    return _codec(_TYPES[name]).decode(fields)


def _upgraded(fields: dict[str, Any]) -> dict[str, Any]:
    schema = fields.pop("schema", None)
    if not isinstance(schema, int) or schema < 1 or schema > SCHEMA:
        raise RecordError(
            f"this version reads records of schema 1 to {SCHEMA} (got {schema!r}): "
            "read them with the version of agentgym-rl-kit that wrote them, or a later one"
        )
    for version in range(schema, SCHEMA):
        fields = _UPGRADES[version](fields)
    return fields


class _Codec(NamedTuple):
    """How values of one type are written and read."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@functools.cache
def _codec(hint: Any) -> _Codec:
    """Return the codec of a type hint."""
    if dataclasses.is_dataclass(hint):
        return _record_codec(cast("type[Any]", hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _tuple_codec(arguments[0])
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_codec(arguments[1])
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional_codec(next(a for a in arguments if a is not type(None)))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _Codec(str, functools.partial(_enum_member, hint))
    if hint is float:
        return _Codec(arrays.pack_float, arrays.unpack_float)
    if hint is _Free:
        return _Codec(_free_value, _unfree_value)
    if hint is str:
        return _Codec(masked, functools.partial(_instance_of, str))
    if hint in (int, bool):
        return _Codec(_same, functools.partial(_instance_of, hint))
    raise TypeError(f"records have no codec for the type {hint!r}")


class _Field(NamedTuple):
    """One field of a record."""

    name: str
    codec: _Codec
    has_default: bool
    default: Any


def _record_codec(cls: type[Any]) -> _Codec:
    hints = _hints(cls)
    fields = [_field(field, hints[field.name]) for field in dataclasses.fields(cls)]
    by_name = {field.name: field for field in fields}
    required = frozenset(field.name for field in fields if not field.has_default)

    def encode(record: Any) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for name, codec, has_default, default in fields:
            value = getattr(record, name)
            if not has_default or (value is not default and value != default):
                written[name] = codec.encode(value)
        return written

    def decode(value: Any) -> Any:
        given = _instance_of(dict, value)
        unknown, missing = given.keys() - by_name.keys(), required - given.keys()
        if unknown or missing:
            parts = (("unknown", sorted(unknown)), ("missing", sorted(missing)))
            wrong = ", ".join(f"{what} fields {names!r}" for what, names in parts if names)
            raise RecordError(f"{cls.__name__}: {wrong}")
        try:
            return cls(**{name: by_name[name].codec.decode(item) for name, item in given.items()})
        except (TypeError, ValueError) as error:
            raise RecordError(f"{cls.__name__}: {error}") from error

    return _Codec(encode, decode)


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    if field.default is not dataclasses.MISSING:
        return _Field(field.name, _codec(hint), True, field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _Field(field.name, _codec(hint), True, field.default_factory())
    return _Field(field.name, _codec(hint), False, None)


_Free = typing.NewType("_Free", object)
"""Stands for the alias `Json`, which names itself and so cannot be taken apart."""


def _hints(cls: type[Any]) -> dict[str, Any]:
    names = {**vars(importlib.import_module(cls.__module__)), "Json": _Free}
    return typing.get_type_hints(cls, globalns=names)


def _tuple_codec(item: Any) -> _Codec:
    if item is bool:
        return _Codec(arrays.pack_ints, arrays.unpack_bools)
    if item is int:
        return _Codec(arrays.pack_ints, arrays.unpack_ints)
    if item is float:
        return _Codec(arrays.pack_floats, arrays.unpack_floats)
    codec = _codec(item)

    def encode(values: Any) -> Any:
        return [codec.encode(value) for value in values]

    def decode(value: Any) -> Any:
        return tuple(codec.decode(part) for part in _instance_of(list, value))

    return _Codec(encode, decode)


def _mapping_codec(item: Any) -> _Codec:
    codec = _codec(item)

    def encode(values: Any) -> Any:
        return {_key(key): codec.encode(value) for key, value in values.items()}

    def decode(value: Any) -> Any:
        return {key: codec.decode(part) for key, part in _instance_of(dict, value).items()}

    return _Codec(encode, decode)


def _optional_codec(item: Any) -> _Codec:
    codec = _codec(item)

    def encode(value: Any) -> Any:
        return None if value is None else codec.encode(value)

    def decode(value: Any) -> Any:
        return None if value is None else codec.decode(value)

    return _Codec(encode, decode)


def _free_value(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, tuple):
        return {_TUPLE: [_free_value(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_free_value(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        written = {_key(key): _free_value(item) for key, item in items}
        return {_OBJECT: written} if written.keys() & {_TUPLE, _OBJECT} else written
    return value


def _unfree_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_unfree_value(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    if items.keys() == {_TUPLE}:
        return tuple(_unfree_value(item) for item in _instance_of(list, items[_TUPLE]))
    if items.keys() == {_OBJECT}:
        items = _instance_of(dict, items[_OBJECT])
    return {key: _unfree_value(item) for key, item in items.items()}


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise RecordError(f"the keys of a JSON object are strings (got {key!r})")
    return key


def _same(value: Any) -> Any:
    return value


def _enum_member(cls: type[StrEnum], value: Any) -> StrEnum:
    try:
        return cls(value)
    except ValueError:
        known = [str(member) for member in cls]
        raise RecordError(f"a {cls.__name__} is one of {known!r} (got {value!r})") from None


def _instance_of(cls: type[Any], value: Any) -> Any:
    if not isinstance(value, cls) or (cls is int and isinstance(value, bool)):
        raise RecordError(f"a value of type {cls.__name__} is expected (got {value!r})")
    return value
