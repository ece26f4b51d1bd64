"""Environments and settings as they are written on a command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.config import InvalidInputError
from agentgym.config.command_line import (
    is_assignment,
    parse_assignments,
    parse_sources,
    split_outside_brackets,
    write_source,
)
from agentgym.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("a/b", [{"name": "a/b"}]),
        ("a/b-v0,c/d", [{"name": "a/b-v0"}, {"name": "c/d"}]),
        (
            "a/b:weight=2:levels=[1,2],c/d:split=x:mode=1e-6",
            [
                {"name": "a/b", "weight": 2, "kwargs": {"levels": [1, 2]}},
                {"name": "c/d", "split": "x", "kwargs": {"mode": 1e-6}},
            ],
        ),
        ("a/b:map={k: 1, l: 2}", [{"name": "a/b", "kwargs": {"map": {"k": 1, "l": 2}}}]),
        ("gym:a/b:x=1", [{"name": "gym:a/b", "kwargs": {"x": 1}}]),  # a name with a colon
        ("a/b:flag=false", [{"name": "a/b", "kwargs": {"flag": False}}]),
    ],
)
def test_environments_are_read(text: str, sources: list[dict[str, Any]]) -> None:
    assert parse_sources(text) == sources


@pytest.mark.parametrize("text", ["", ",a/b", "a/b,", ":x=1"])
def test_environment_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="needs a name"):
        parse_sources(text)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("optim.epochs=2", True),
        ("policy=a/b=c", True),
        ("math/arithmetic:level=3", False),
        ("foo:level=3", False),
        ("math/arithmetic", False),
        ("=3", False),
    ],
)
def test_settings_are_told_from_environments(word: str, expected: bool) -> None:
    assert is_assignment(word) is expected


def test_value_keeps_what_follows_the_first_equals_sign() -> None:
    assert parse_assignments(["policy=vllm:http://h/?a=b"]).tree == {"policy": "vllm:http://h/?a=b"}


def test_every_word_that_is_no_setting_is_named() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_assignments(["steps", "seed=1", "3=4"])
    assert [problem.text for problem in caught.value.problems] == [
        "a setting is written key=value (got 'steps')",
        "a setting is written key=value (got '3=4')",
    ]


def test_brackets_hold_separators() -> None:
    assert split_outside_brackets("a[1,2],b{c,(d,e)},f", ",") == ["a[1,2]", "b{c,(d,e)}", "f"]


names = st.from_regex(r"[a-z]{1,5}/[a-z]{1,5}(-v[0-9])?", fullmatch=True)
values = st.one_of(
    st.booleans(), st.integers(-5, 5), st.sampled_from(["x", "1e-6", "no", "a, b", "a:b"])
)
kwargs = st.dictionaries(st.from_regex(r"[a-z]{3,5}", fullmatch=True), values, min_size=1)


@given(st.lists(st.tuples(names, st.integers(1, 9), kwargs), min_size=1, max_size=3))
def test_written_environments_are_read_back(parts: list[tuple[str, int, dict[str, Any]]]) -> None:
    sources = [
        {"name": name, "weight": weight, "kwargs": arguments} for name, weight, arguments in parts
    ]
    if any({"weight", "split"} & set(source["kwargs"]) for source in sources):
        return
    text = ",".join(write_source(source) for source in sources)
    if any(":" in str(v) or "," in str(v) for s in sources for v in s["kwargs"].values()):
        return  # text with separators goes into a file
    assert parse_sources(text) == sources


# ------------------------------------------------------------------- text that looks like YAML
# Class: *text taken for structure*: a value is a mapping or a list where it is written out as one.


@pytest.mark.parametrize(
    "text",
    ["{answer}", "Answer: {answer}", "{question} {answer}", "- {answer}", "Q: A", "{a: 1, b}"],
)
def test_f52_a_template_is_text_wherever_a_value_is_given(text: str) -> None:
    key = "probes.gold_answer.template"
    assert parse_assignments([f"{key}={text}"]).tree == {key: text}
    source = parse_sources(f"a/b:template={text}")[0] if ": " not in text else None
    assert source is None or source["kwargs"] == {"template": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{looked_up: 0.5}", {"looked_up": 0.5}),
        ("[group, turn]", ["group", "turn"]),
        ("{}", {}),
        ('"{a: 1}"', "{a: 1}"),
        ("{a: null}", {"a": None}),
    ],
)
def test_f52_what_is_written_out_is_structure(text: str, value: object) -> None:
    key = "rewards.turn.weights"
    assert parse_assignments([f"{key}={text}"]).tree == {key: value}


def test_f52_a_template_reaches_the_preset_and_a_list_is_told_how_to_quote() -> None:
    preset = pytest.importorskip("agentgym.trainers.objective.preset")
    key = "probes.gold_answer.template"
    loaded = preset.load_preset("igpo", parse_assignments([f"{key}={{answer}}"]).tree)
    assert loaded.probes[0].parameters["template"] == "{answer}"
    with pytest.raises(ConfigError) as caught:
        preset.load_preset("igpo", parse_assignments([f"{key}=[{{answer}}]"]).tree)
    assert "(got [{'answer': None}]); in two pairs of quotes it is text: '\"…\"'" in str(
        caught.value
    )
    again = preset.load_preset("igpo", parse_assignments([f'{key}="[{{answer}}]"']).tree)
    assert again.probes[0].parameters["template"] == "[{answer}]"
