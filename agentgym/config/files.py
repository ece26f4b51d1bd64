"""Reading and writing configuration files: YAML 1.2's plain values with lines, and TOML.

PyYAML follows YAML 1.1, where `1e-6` is text, `010` is eight, `no` is a boolean and `2024-01-02`
a date. The loader here reads numbers and booleans as YAML 1.2 does, and refuses a key that is
given twice. Nothing is executed: only plain data is read.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from agentgym.config.problems import InvalidInputError, Problem

_FLOAT = (
    r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
# Tag, pattern, first characters ("" stands for the empty scalar). In order: the first match wins.
_RESOLVERS: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("null", r"^(?:~|null|Null|NULL|)$", [*"~nN", ""]),
    ("int", r"^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789.")),
    ("merge", r"^(?:<<)$", ["<"]),
)


class _PlainLoader(yaml.SafeLoader):
    """YAML 1.2's plain values."""


class _PlainDumper(yaml.SafeDumper):
    """Quotes every text that `_PlainLoader` would not read back as text."""


def _add_resolvers(target: Any) -> None:
    target.yaml_implicit_resolvers = {}
    for name, pattern, first in _RESOLVERS:
        target.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(pattern), first)


_add_resolvers(_PlainLoader)
_add_resolvers(_PlainDumper)


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
    """Return the value that `text` has in a YAML file, or the text itself where it is none."""
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError:
        return text


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return YAML text which `read_file` reads back to an equal tree, in the given order."""
    return yaml.dump(
        dict(tree), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )


def read_file(path: Path) -> ParsedFile:
    """Return what a YAML or TOML file holds.

    Raises:
        InvalidInputError: If it cannot be read, is malformed, or holds no mapping. The message
            has file, line and column.
    """
    text = _read_text(path)
    if path.suffix == ".toml":
        return _parse_toml(path, text)
    return _parse_yaml(path, text)


def _fail(where: str, text: str) -> InvalidInputError:
    return InvalidInputError([Problem(where=where, text=text)])


def _read_text(path: Path) -> str:
    if path.suffix not in {".yaml", ".yml", ".toml"}:
        raise _fail(str(path), f"a config file ends in .yaml, .yml or .toml (got {path.name!r})")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _fail(str(path), f"the file is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise _fail(str(path), f"the file cannot be read ({error.strerror})") from None


def _parse_toml(path: Path, text: str) -> ParsedFile:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", str(error))
        where = f"{path}:{found[2]}:{found[3]}" if found else str(path)
        raise _fail(where, f"malformed TOML: {found[1] if found else error}") from None
    return ParsedFile(tree=tree, places=_without_lines(tree, str(path)))


def _without_lines(tree: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    places: dict[str, str] = {}
    for key, value in tree.items():
        places[prefix + key] = where
        if isinstance(value, Mapping):
            places |= _without_lines(cast("Mapping[str, Any]", value), where, f"{prefix}{key}.")
    return places


def _parse_yaml(path: Path, text: str) -> ParsedFile:
    try:
        tree, places, problems = _compose(path, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        what = " ".join(part for part in (error.problem, error.context) if part)
        raise _fail(where, f"malformed YAML: {what}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow has no mark
        raise _fail(str(path), f"malformed YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise _fail(str(path), f"the file must hold `key: value` lines (got {tree!r:.40})")
    if problems:
        raise InvalidInputError(problems)
    return ParsedFile(tree=cast("dict[str, Any]", tree), places=places)


def _compose(path: Path, text: str) -> tuple[object, dict[str, str], list[Problem]]:
    """Return the content, the line of each key, and the keys that stand twice."""
    loader: Any = _PlainLoader(text)
    problems: list[Problem] = []
    places: dict[str, str] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, places, problems
        _refuse_cycle(node, path, ())
        _walk(node, path, "", places, problems)
        return loader.construct_document(node), places, problems
    finally:
        loader.dispose()


def _refuse_cycle(node: yaml.Node, path: Path, above: tuple[int, ...]) -> None:
    """Raise where an alias names something that it is itself part of.

    Raises:
        InvalidInputError: With its line.
    """
    if not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return
    if id(node) in above:
        raise _fail(
            f"{path}:{node.start_mark.line + 1}", "an alias (*) names what it is itself part of"
        )
    pairs = node.value if isinstance(node, yaml.MappingNode) else [(one,) for one in node.value]
    for child in itertools.chain.from_iterable(cast("list[tuple[yaml.Node, ...]]", pairs)):
        _refuse_cycle(child, path, (*above, id(node)))


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
