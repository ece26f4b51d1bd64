"""Configuration files: what a YAML or TOML file says, with the line of each key.

A key that is given twice is refused. How values are read, and within which bounds, stands in
`agentgym.files`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from agentgym.config.validation import InvalidInputError, Problem
from agentgym.files import plain_yaml
from agentgym.files.bounded import MAX_CONFIG_BYTES, DataError, parse_toml, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFile:
    """A file's content with the line of each key.

    Example:
        ParsedFile(tree={"optim": {"learning_rate": 1e-06}},
                   places={"optim": "run.yaml:1", "optim.learning_rate": "run.yaml:2"})
    """

    tree: Mapping[str, Any]
    """What the file says."""
    places: Mapping[str, str]
    """Dotted name of each key and where it stands."""


def parse_value(text: str) -> Any:
    """Return the value that `text` has on a command line, or the text itself where it is none.

    Mappings and lists are written out there, `{a: 1}` and `[1, 2]`: `{answer}` and `Answer: 3` are
    text.
    """
    try:
        value, node = plain_yaml.parse(text)
    except DataError:
        return text
    return text if plain_yaml.is_mere_text(node) else value


def read_file(path: Path) -> ParsedFile:
    """Return what a YAML or TOML file holds.

    Raises:
        InvalidInputError: If it cannot be read, is malformed, is larger than settings are, or holds
            no mapping. The message has file, line and column.
    """
    try:
        if path.suffix not in {".yaml", ".yml", ".toml"}:
            raise DataError(f"a config file ends in .yaml, .yml or .toml (got {path.name!r})")
        text = read_text(path, max_bytes=MAX_CONFIG_BYTES)
        if path.suffix == ".toml":
            tree = parse_toml(text)
            return ParsedFile(tree=tree, places=_without_lines(tree, str(path)))
        return _parse_yaml(path, text)
    except DataError as error:
        raise InvalidInputError([Problem(where=error.place(path), text=str(error))]) from None


def _without_lines(tree: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    places: dict[str, str] = {}
    for key, value in tree.items():
        places[prefix + key] = where
        if isinstance(value, Mapping):
            places |= _without_lines(cast("Mapping[str, Any]", value), where, f"{prefix}{key}.")
    return places


def _parse_yaml(path: Path, text: str) -> ParsedFile:
    tree, node = plain_yaml.parse(text)
    if node is None:
        return ParsedFile(tree={}, places={})
    if not isinstance(tree, dict):
        raise DataError(f"the file must hold `key: value` lines (got {tree!r:.40})")
    places: dict[str, str] = {}
    problems: list[Problem] = []
    _walk(node, path, "", places, problems)
    if problems:
        raise InvalidInputError(problems)
    return ParsedFile(tree=cast("dict[str, Any]", tree), places=places)


def _walk(
    node: yaml.Node, path: Path, prefix: str, places: dict[str, str], problems: list[Problem]
) -> None:
    """Note the line of each key below `node`, and each key that stands twice."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, path, f"{prefix}{index}.", places, problems)
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key: Hashable = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        name, where = f"{prefix}{key}", f"{path}:{key_node.start_mark.line + 1}"
        if name in places and key != "<<":
            first = places[name].rpartition(":")[2]
            text = f"{name!r} is given twice (first in line {first})"
            problems.append(Problem(key=name, where=where, text=text))
        places.setdefault(name, where)
        _walk(value_node, path, f"{name}.", places, problems)
