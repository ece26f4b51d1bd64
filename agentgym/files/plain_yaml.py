"""YAML 1.2's plain values, within bounds: nodes with their lines, values, and text of values.

PyYAML follows YAML 1.1, where `1e-6` is text, `010` is eight, `no` is a boolean and `2024-01-02`
a date. The loader here reads numbers and booleans as YAML 1.2 does. Nothing is executed: only plain
data is read. What aliases stand for is counted before it is made, since a few lines of them can
stand for more values than memory holds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import yaml

from agentgym.files.bounded import MAX_DEPTH, DataError, check_key, check_text

MAX_VALUES = 20_000
"""Keys and values of one document, aliases written out."""
MAX_DIGITS = 64
"""Characters of a whole number."""

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
_TAG = "tag:yaml.org,2002:"
_PATTERNS = {f"{_TAG}{name}": re.compile(pattern) for name, pattern, _ in _RESOLVERS}
_KEY_TAGS = (f"{_TAG}str", f"{_TAG}merge")
_PLAIN_TAGS = {*_PATTERNS, *(f"{_TAG}{name}" for name in ("str", "seq", "map"))}


class _PlainLoader(yaml.SafeLoader):
    """YAML 1.2's plain values."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node: PyYAML calls itself for each level, without a bound."""
        if self._depth >= MAX_DEPTH:
            raise _too_deep(cast("Any", self).get_mark())
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _PlainDumper(yaml.SafeDumper):
    """Quotes every text that `_PlainLoader` would not read back as text."""


def _add_resolvers(target: Any) -> None:
    target.yaml_implicit_resolvers = {}
    for name, pattern, first in _RESOLVERS:
        target.add_implicit_resolver(f"{_TAG}{name}", re.compile(pattern), first)


_add_resolvers(_PlainLoader)
_add_resolvers(_PlainDumper)


def parse(text: str) -> tuple[object, yaml.Node | None]:
    """Return the value of a YAML document and its node, which has the lines.

    Raises:
        DataError: If it is malformed, or stands for more than is read.
    """
    loader: Any = None
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        _measure(node, 1, set(), {})
        return loader.construct_document(node), node
    except yaml.MarkedYAMLError as error:
        what = " ".join(part for part in (error.problem, error.context) if part)
        raise _at(error.problem_mark or error.context_mark, f"malformed YAML: {what}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow has no mark
        raise DataError(f"malformed YAML: {' '.join(str(error).split())}") from None
    except DataError:
        raise
    except (ValueError, OverflowError) as error:  # \UFFFFFFFF is no character
        raise _at(loader.get_mark() if loader else None, f"malformed YAML: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return YAML text which `parse` reads back to an equal tree, in the given order."""
    return yaml.dump(
        dict(tree), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )


def is_mere_text(node: yaml.Node | None) -> bool:
    """Return whether a mapping or a list is not written out as `{a: 1}` or `[1, 2]` are.

    `{answer}` is a mapping of `answer` to nothing; a person who writes that means a template.
    """
    if not isinstance(node, yaml.CollectionNode) or not node.flow_style:
        return isinstance(node, yaml.CollectionNode)
    values = _children(node)[1::2] if isinstance(node, yaml.MappingNode) else []
    return any(value.start_mark.index == value.end_mark.index for value in values)


def _measure(
    node: yaml.Node, level: int, above: set[int], known: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Return how many values a node stands for, and how deep they are.

    Args:
        node: A node; one that aliases name is measured once.
        level: Its own depth.
        above: Nodes that it stands in, by identity.
        known: What is measured.

    Raises:
        DataError: If that is too much, or a value is not plain.
    """
    if id(node) in above:
        raise _at(node.start_mark, "an alias (*) names what it is itself part of", column=False)
    if level + known.get(id(node), (0, 1))[1] - 1 > MAX_DEPTH:
        raise _too_deep(node.start_mark)
    if id(node) in known:
        return known[id(node)]
    _check_node(node)
    size = height = 1
    if isinstance(node, yaml.CollectionNode):
        above.add(id(node))
        for child in _children(node):
            inner, depth = _measure(child, level + 1, above, known)
            size, height = size + inner, max(height, depth + 1)
        above.discard(id(node))
    if size > MAX_VALUES:
        raise _at(
            node.start_mark,
            f"aliases written out, there are more than {MAX_VALUES:,} values",
            column=False,
        )
    known[id(node)] = (size, height)
    return size, height


def _children(node: yaml.CollectionNode) -> list[yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else [(one,) for one in node.value]
    return list(itertools.chain.from_iterable(cast("list[tuple[yaml.Node, ...]]", pairs)))


def _check_node(node: yaml.Node) -> None:
    """Raise where a node is not what its tag says, or a key is not text."""
    tag = str(node.tag)
    if tag not in _PLAIN_TAGS:
        short = tag.replace(_TAG, "!!")
        raise _at(
            node.start_mark, f"malformed YAML: could not determine a value for the tag {short!r}"
        )
    if isinstance(node, yaml.ScalarNode):
        text, pattern = str(node.value), _PATTERNS.get(tag)
        if pattern is not None and not pattern.match(text):
            kind = tag.removeprefix(_TAG)
            raise _at(node.start_mark, f"malformed YAML: {text[:60]!r} is no {kind}")
        if tag == f"{_TAG}int" and len(text) > MAX_DIGITS:
            raise _at(
                node.start_mark,
                f"a whole number has at most {MAX_DIGITS} digits (got {len(text):,})",
            )
        _at_node(node, check_text, text)
    elif isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if key.tag not in _KEY_TAGS:
                got = key.value if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                text = f"a key must be text (got {got:.60}): write it in quotes"
                raise _at(key.start_mark, text)
            _at_node(key, check_key, str(key.value))


def _at_node(node: yaml.Node, check: Callable[[str], None], value: str) -> None:
    try:
        check(value)
    except DataError as error:
        raise _at(node.start_mark, str(error)) from None


def _at(mark: Any, text: str, *, column: bool = True) -> DataError:
    if mark is None:
        return DataError(text)
    return DataError(text, line=mark.line + 1, column=mark.column + 1 if column else None)


def _too_deep(mark: Any) -> DataError:
    return _at(mark, f"values are nested deeper than {MAX_DEPTH}")
