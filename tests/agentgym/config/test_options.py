"""Every setting of the schema can be set from a file and on the command line (pitfall N10)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from agentgym.config import load_config
from agentgym.config.options import SLOTS, advice, is_preset_key, options
from agentgym.config.schema import SECTIONS, RunConfig
from agentgym.files.plain_yaml import dump_yaml

# A value that differs from the default, where none follows from the type.
VALUES: dict[str, Any] = {
    "envs": [{"name": "a/b-v0", "weight": 2.0, "kwargs": {"level": 3}, "split": "x"}],
    "preset_overrides": {"gate.clip_high": 0.3},
    "eval.suites": ["a/b", "c/d"],
    "policy": "some/folder",
    "rollout.top_p": 1,
    "rollout.top_k": 0,
    "rollout.min_p": 0,
    "rollout.max_staleness": 2,
    "optim.minibatches": 2,
    "eval.top_p": 0.5,
    "eval.min_p": 0.25,
}
# Nothing but the default can be trained with: see the test of contradictions.
FIXED = {"rollout.top_p", "rollout.top_k", "rollout.min_p"}
# What a setting needs beside it, to be of any effect.
NEEDS: dict[str, dict[str, Any]] = {
    "model.lora_alpha": {"model.lora_rank": 4},
    "rollout.min_group_size": {"rollout.stragglers": "close"},
    "rollout.weight_sync": {"policy": "vllm:http://127.0.0.1:1"},
    "rollout.partial": {"rollout.max_staleness": 1},
    "warmstart.path": {"warmstart.steps": 0},
}


def value_for(key: str) -> Any:
    if key in VALUES:
        return VALUES[key]
    option = options()[key]
    kinds = [kind for kind in option.members if kind is not type(None)]
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(word.value for word in kind if word != option.default)
    if kind is bool:
        return not option.default
    if kind is int:
        return (option.default or 0) + 1
    if kind is float:
        return round((option.default or 0.0) / 2 + 0.125, 6)
    assert kind is str, f"{key} has a type that no test value is known for: {kind!r}"
    return "text"


def read(config: RunConfig, key: str) -> Any:
    tree: Any = config.to_dict()
    for part in key.split("."):
        tree = tree[part]
    return tree


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("key", list(options()))
def test_every_setting_can_be_set_from_a_file_n10(key: str, tmp_path: Path) -> None:
    value = value_for(key)
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml({**NEEDS.get(key, {}), key: value}), encoding="utf-8")
    assert read(load_config(file=file), key) == value


@pytest.mark.parametrize("key", [key for key in options() if key != "preset_overrides"])
def test_every_setting_can_be_set_on_the_command_line_n10(key: str) -> None:
    value = value_for(key)
    text = "a/b-v0:weight=2.0:split=x:level=3" if key == "envs" else as_text(value)
    needed = [f"{other}={needs}" for other, needs in NEEDS.get(key, {}).items()]
    assert read(load_config(assignments=[*needed, f"{key}={text}"]), key) == value


@pytest.mark.parametrize("key", sorted(set(options()) - FIXED))
def test_value_of_the_walk_differs_from_the_default_n10(key: str) -> None:
    assert value_for(key) != read(RunConfig(), key)


def test_every_setting_is_documented() -> None:
    bare = [option.key for option in options().values() if not option.description]
    assert bare == []


def test_settings_are_at_most_two_levels_deep() -> None:
    assert max(key.count(".") for key in options()) == 1
    assert {key.partition(".")[0] for key in options() if "." in key} == set(SECTIONS)


def test_first_words_of_preset_keys_are_the_slots_of_a_preset() -> None:
    preset = pytest.importorskip("agentgym.trainers.objective.preset")
    about = {"name", "source", "status", "formula", "bias", "notes"}
    assert set(preset.Preset.model_fields) - about - {"rollout"} == SLOTS
    assert SLOTS.isdisjoint(SECTIONS)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("gate.clip_high", True), ("terms.outcome.weight", True), ("gate", False), ("optim.x", False)],
)
def test_preset_keys_are_told_by_their_first_word(key: str, expected: bool) -> None:
    assert is_preset_key(key) is expected


def test_nothing_is_suggested_for_a_word_that_resembles_nothing() -> None:
    assert advice("zzzzqqqq") == ""
