"""Settings as they are written on a command line: `key=value`, and lists of environments.

An environment is written `NAME[:key=value]...`, several of them with commas between:
`math/arithmetic:weight=2:levels=[1,2],math/linear-v0`. `weight` and `split` are the source's own,
every other key is an argument of the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.config.options import is_preset_key, options
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.config.yaml_files import ParsedFile, parse_value

COMMAND_LINE = "command line"

_ASSIGNMENT = re.compile(r"(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
SOURCE_KEYS = ("weight", "split")
"""Settings of a source that are no arguments of its environment."""
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def is_assignment(argument: str) -> bool:
    """Return whether an argument is `key=value` rather than the name of an environment."""
    return _ASSIGNMENT.fullmatch(argument) is not None


def parse_assignments(arguments: Sequence[str]) -> ParsedFile:
    """Return the settings of `key=value` arguments; of a key given twice the last one counts.

    Raises:
        InvalidInputError: If an argument is not `key=value`.
    """
    tree: dict[str, Any] = {}
    problems: list[Problem] = []
    for argument in arguments:
        match = _ASSIGNMENT.fullmatch(argument)
        if match is None:
            text = f"a setting is written key=value (got {argument!r})"
            problems.append(Problem(where=COMMAND_LINE, text=text))
            continue
        tree[match["key"]] = _value(match["key"], match["value"])
    if problems:
        raise InvalidInputError(problems)
    return ParsedFile(tree=tree, places=dict.fromkeys(tree, COMMAND_LINE))


def _value(key: str, text: str) -> Any:
    """Return what `text` means for `key`: text stays as it is written where text is wanted."""
    option = options().get(key)
    if option is not None and option.is_text:
        return text
    if option is None and not is_preset_key(key):
        return text
    return parse_value(text)


def parse_sources(text: str) -> list[dict[str, Any]]:
    """Return the environments of a list such as `math/arithmetic:weight=2,math/linear-v0`.

    Raises:
        InvalidInputError: If a part is not `key=value`, or a name is empty.
    """
    return [_source(part) for part in split_outside_brackets(text, ",")]


def _source(text: str) -> dict[str, Any]:
    name, *rest = split_outside_brackets(text, ":")
    if rest and not is_assignment(rest[0]):
        # A name may hold a colon itself; what follows it is no key=value then.
        name, rest = f"{name}:{rest[0]}", rest[1:]
    if not name.strip():
        raise InvalidInputError(
            [Problem(key="envs", text=f"an environment needs a name (got {text!r})")]
        )
    settings: dict[str, Any] = dict(parse_assignments(rest).tree)
    values = {
        key: parse_value(value) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    source: dict[str, Any] = {"name": name.strip()}
    source |= {key: values.pop(key) for key in SOURCE_KEYS if key in values}
    if values:
        source["kwargs"] = values
    return source


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Return the parts of `text` between separators which stand in no bracket."""
    parts, depth, begin = list[str](), 0, 0
    for position, character in enumerate(text):
        depth += _BRACKETS.get(character, 0)
        if character == separator and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]


def write_source(source: Mapping[str, Any]) -> str:
    """Return the text that `parse_sources` reads back as `source`."""
    settings = {key: source[key] for key in SOURCE_KEYS if key in source}
    settings |= source.get("kwargs", {})
    return ":".join([source["name"], *(f"{k}={json.dumps(v)}" for k, v in settings.items())])
