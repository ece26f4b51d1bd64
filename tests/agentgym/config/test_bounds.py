"""Files that people hand over are bounded in size, depth, aliases and digits.

Class: *unbounded input*. Every file of settings goes through `agentgym.files`, and so do presets,
rows of tasks and what lies in a run's folder; each case here is one line with the file's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.config import InvalidInputError, load_config
from agentgym.config.validation import MOST_LINES
from agentgym.config.yaml_files import parse_value, read_file
from agentgym.env.suites import read_rows
from agentgym.errors import AgentGymError, ConfigError, RecordError, TaskError
from agentgym.files import plain_yaml
from agentgym.files.bounded import MAX_CONFIG_BYTES, MAX_DEPTH, DataError
from agentgym.runs.folder import read_config
from agentgym.runs.json_files import read_json

# Ten levels, each nine times the one below: 9 ** 10 values in 400 bytes.
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
# The same through merges: the keys of `b` double with each level.
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 25)
)
# Each level stands inside the next one: deep without a bracket inside another.
LADDER = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))

HOSTILE = {
    "alias bomb.yaml": (BOMB, "more than 20,000 values"),
    "merge bomb.yaml": (MERGES, "more than 20,000 values"),
    "alias ladder.yaml": (LADDER, "nested deeper than 32"),
    "cycle.yaml": ("envs: &a [*a]\n", "an alias (*) names what it is itself part of"),
    "deep.yaml": ("envs: " + "[" * 5_000, "nested deeper than 32"),
    "deep mapping.yaml": ("envs: " + "{a: " * 5_000, "nested deeper than 32"),
    "deep.toml": ("envs = " + "[" * 5_000, "nested deeper than 32"),
    "dotted.toml": (".".join("a" * 5_000) + " = 1", "nested deeper than 32"),
    "digits.yaml": ("seed: " + "9" * 5_000, "a whole number has at most 64 digits (got 5,000)"),
    "hexadecimal.yaml": ("seed: 0x" + "f" * 5_000, "at most 64 digits"),
    "digits.toml": ("seed = " + "9" * 5_000, "malformed TOML: Exceeds the limit"),
    "number key.yaml": ("1: 2\n", "a key must be text (got 1): write it in quotes"),
    "null key.yaml": ("optim: {~: 2}\n", "a key must be text (got ~)"),
    "list key.yaml": ("? [a]\n: 2\n", "a key must be text (got a list or a mapping)"),
    "long key.yaml": ("a" * 500 + ": 1\n", "a key has at most 200 characters (got 500"),
    "tagged.yaml": ("seed: !!int x\n", "malformed YAML: 'x' is no int"),
    "tagged float.yaml": ("seed: !!float x\n", "malformed YAML: 'x' is no float"),
    "tagged bool.yaml": ("seed: !!bool x\n", "malformed YAML: 'x' is no bool"),
    "timestamp.yaml": ("seed: !!timestamp x\n", "could not determine a value for the tag"),
    "binary.yaml": ("seed: !!binary =\n", "could not determine a value for the tag"),
    "no character.yaml": ('policy: "\\UFFFFFFFF"\n', "malformed YAML"),
    "surrogate.yaml": ('policy: "\\ud800"\n', "half a surrogate pair (\\ud800) is not text"),
    "surrogate key.yaml": ('"\\ud800": 1\n', "half a surrogate pair"),
    "large.yaml": ("# " + "x" * MAX_CONFIG_BYTES, "at most 131,072 are read"),
    "unclosed.yaml": ('policy: "', "malformed YAML"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_f46_a_hostile_file_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    content, what = HOSTILE[name]
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_config(file=file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert what in message
    assert "\n" not in message
    assert len(message) < 1_200


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("make", [_pipe, _device, _folder])
@pytest.mark.parametrize(
    ("name", "read", "kind"),
    [
        ("run.yaml", read_file, ConfigError),
        ("run.toml", read_file, ConfigError),
        ("step-1.json", read_json, RecordError),
        ("rows.jsonl", lambda path: read_rows(path, name="rows"), TaskError),
        ("config.yaml", lambda path: read_config(path.parent), ConfigError),
    ],
)
def test_f46_only_regular_files_are_read(
    tmp_path: Path,
    make: Callable[[Path], Path],
    name: str,
    read: Callable[[Path], Any],
    kind: type[AgentGymError],
) -> None:
    with pytest.raises(kind) as caught:
        read(make(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_f46_a_preset_file_has_the_same_bounds(tmp_path: Path) -> None:
    preset = pytest.importorskip("agentgym.trainers.objective.preset")
    file = tmp_path / "mine.yaml"
    for content, what in HOSTILE.values():
        file.write_text(content, encoding="utf-8")
        if what.startswith("malformed TOML") or " = " in content[:20_000]:
            continue
        with pytest.raises(ConfigError) as caught:
            preset.load_preset(str(file))
        assert what in str(caught.value)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="not a regular file"):
        preset.load_preset(str(file))


def test_f46_many_unknown_keys_are_a_few_lines(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("".join(f"key{n}: 1\n" for n in range(5_000)), encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_config(file=file)
    lines = str(caught.value).splitlines()
    assert len(lines) == MOST_LINES + 1
    assert (
        lines[0] == f"{file}:1: unknown setting 'key0' (did you mean 'keep'?)" or "key0" in lines[0]
    )
    assert lines[-1] == "and 4,980 more"


def test_f46_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_config(assignments=["steps=" + "x" * 100_000])
    assert len(str(caught.value)) < 1_100
    assert "'steps' must be a whole number" in str(caught.value)


def test_f46_json_that_python_cannot_hold_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "step-1.json"
    for content in ("[" * 100_000, '{"a": ' + "9" * 5_000 + "}"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(RecordError, match="not JSON"):
            read_json(file)


@given(st.text(alphabet="{}[]&*!<>:,-|?'\"\\ \nUxu0123456789abc~#%@`", max_size=40))
def test_f46_any_text_is_a_value_or_a_data_error(text: str) -> None:
    with suppress(DataError):
        value, _ = plain_yaml.parse(text)
        json.dumps(value)  # plain data: no set, no date, no bytes
    parse_value(text)


def _depth(value: object) -> int:
    inner: list[object] = []
    if isinstance(value, dict):
        inner = [*value.values()]
    elif isinstance(value, list):
        inner = value
    return 1 + max(map(_depth, inner), default=0)


@given(
    st.recursive(st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner))
)
def test_f46_what_is_within_the_bounds_is_read(tree: object) -> None:
    assert _depth(tree) <= MAX_DEPTH
    value, _ = plain_yaml.parse(json.dumps(tree))
    assert value == tree
