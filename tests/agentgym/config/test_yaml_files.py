"""Reading YAML and TOML: values, lines, malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.config.validation import InvalidInputError
from agentgym.config.yaml_files import parse_value, read_file
from agentgym.files.plain_yaml import dump_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E-6", 1e-6),
        ("0.000001", 1e-6),
        ("1.e3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        ("10_000", 10000),
        ("010", 10),  # YAML 1.1 reads 8
        ("true", True),
        ("no", "no"),  # YAML 1.1 reads False
        ("2024-01-02", "2024-01-02"),  # YAML 1.1 reads a date
        ("~", None),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("a: b: c", "a: b: c"),  # no YAML: the text itself
    ],
)
def test_values_are_read_as_they_look_n5(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) in {type(value), float}


@pytest.mark.parametrize("text", ["lr: 1e-6", "lr: 1E-6", "lr: 0.000001", "lr: 1.0e-6"])
def test_small_floats_are_one_number_however_written_n5(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    value = read_file(file).tree["lr"]
    assert value == 1e-6
    assert isinstance(value, float)


def test_yaml_says_the_line_of_each_key(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 3\noptim:\n  epochs: 2\n", encoding="utf-8")
    parsed = read_file(file)
    assert parsed.tree == {"seed": 3, "optim": {"epochs": 2}}
    assert parsed.places == {
        "seed": f"{file}:1",
        "optim": f"{file}:2",
        "optim.epochs": f"{file}:3",
    }


@pytest.mark.parametrize(
    ("name", "content", "place", "what"),
    [
        # Line 3 is indented by one where line 2 is by two.
        ("run.yaml", "a:\n  b: 1\n c: 2\n", "3:2", "malformed YAML"),
        ("run.yaml", "a:\n\tb: 1\n", "2:1", "cannot start any token"),
        ("run.yaml", "a: [1,\n", "2:1", "malformed YAML"),
        ("run.yaml", "a: !!python/object:os.system x\n", "1:4", "could not determine"),
        ("run.toml", "a = 1\nb = = 2\n", "2:5", "malformed TOML"),
    ],
)
def test_malformed_file_names_file_line_and_column_n6(
    tmp_path: Path, name: str, content: str, place: str, what: str
) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        read_file(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:{place}: ")
    assert what in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("run.yaml", "- 1\n", "must hold `key: value` lines"),
        ("run.yaml", "\x01", "malformed YAML"),
        ("run.json5", "{}", "ends in .yaml, .yml or .toml"),
    ],
)
def test_unusable_file_is_one_line(tmp_path: Path, name: str, content: str, what: str) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=what.replace(".", r"\.")) as caught:
        read_file(file)
    assert "\n" not in str(caught.value)


def test_binary_and_missing_files_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_file(file)
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        read_file(file)


def test_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optim:\n  epochs: 1\n  epochs: 2\nseed: 1\nseed: 2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        read_file(file)
    assert str(caught.value).splitlines() == [
        f"{file}:3: 'optim.epochs' is given twice (first in line 2)",
        f"{file}:5: 'seed' is given twice (first in line 4)",
    ]


def test_empty_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("# nothing\n", encoding="utf-8")
    assert read_file(file).tree == {}


def test_dumped_text_is_read_back_equal(tmp_path: Path) -> None:
    tree = {
        "text": ["1e-6", "no", "010", "true", "~", "", "2024-01-02", "a: b", "é"],
        "number": [1e-6, 1.0, 3, -2],
        "none": None,
        "nested": {"flag": True},
    }
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(tree), encoding="utf-8")
    assert read_file(file).tree == tree
