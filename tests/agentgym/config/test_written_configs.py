"""The config that a run writes can be given to the next one.

Class: *what a program writes it must read*, whatever is switched on or off in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym.config import EnvSource, InvalidInputError, RunConfig, load_config
from agentgym.config.loading import POLICY_DEFAULTS
from agentgym.config.options import options
from agentgym.files.plain_yaml import dump_yaml
from agentgym.redaction import redact

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | TEXT
KEYS = st.text("abcxyz_", min_size=1, max_size=4)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip

WARMSTART = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(0, 5),
        "demos": st.integers(1, 9),
        "learning_rate": st.sampled_from([1e-6, 2e-3, 0.5]),
        "max_seconds": st.none() | st.floats(1, 9),
        "guess_share": st.floats(0, 1),
    },
)
EVAL = st.fixed_dictionaries(
    {"every": st.integers(0, 2), "at_start": st.booleans(), "at_end": st.booleans()},
    optional={
        "tasks": st.integers(1, 9),
        "max_new_tokens": st.integers(1, 900),
        "suites": st.lists(st.sampled_from(["math/arithmetic", "1e-6", "no"]), max_size=2),
        "split": TEXT,
    },
)
CONFIGS = st.fixed_dictionaries(
    {"policy": st.sampled_from([*POLICY_DEFAULTS, "models/mine", "vllm:http://h:1"])},
    optional={
        "envs": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["math/arithmetic", "a/b-v0"])},
                optional={"kwargs": st.dictionaries(KEYS, VALUES, max_size=3)},
            ),
            max_size=1,
        ),
        "warmstart": WARMSTART,
        "eval": EVAL,
        "model": st.fixed_dictionaries({}, optional={"lora_alpha": st.floats(1, 9)}),
        "rollout": st.fixed_dictionaries(
            {}, optional={"partial": st.just("drop"), "weight_sync": st.just("nccl")}
        ),
        "preset_overrides": st.dictionaries(
            st.sampled_from(["gate.clip_high", "rewards.turn.weights", "probes.x.template"]),
            VALUES, max_size=2,
        ),
        "run_dir": TEXT,
    },
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(CONFIGS)
def test_f44_every_config_is_read_back_by_the_loader(tmp_path: Path, given: dict[str, Any]) -> None:
    config = RunConfig(**given)
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config.to_dict()), encoding="utf-8")
    assert load_config(file=file) == config


@pytest.mark.parametrize("policy", ["tiny", "tiny:large", "smollm2", "models/mine"])
@pytest.mark.parametrize(
    "switched_off",
    [["warmstart.steps=0"], ["eval.at_start=false", "eval.at_end=false"], ["steps=3"]],
)
def test_f44_a_written_config_keeps_what_is_off(
    tmp_path: Path, policy: str, switched_off: list[str]
) -> None:
    config = load_config(assignments=["envs=math/arithmetic", f"policy={policy}", *switched_off])
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config.to_dict()), encoding="utf-8")
    assert load_config(file=file) == config
    # What the command line says on top is judged as ever.
    with pytest.raises(InvalidInputError, match="would be without effect"):
        load_config(file=file, assignments=["model.lora_alpha=3"])
    # A switch on top leaves the rest of the file as it is, read or not.
    assert load_config(file=file, assignments=["warmstart.steps=0"]).warmstart.steps == 0


def test_f44_a_file_of_a_person_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("warmstart: {steps: 0, demos: 5}\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"'warmstart\.demos' would be without effect"):
        load_config(file=file)


def test_f44_a_secret_that_was_not_stored_is_asked_for(tmp_path: Path) -> None:
    config = RunConfig(envs=(EnvSource(name="lab/weather-v0", kwargs={"api_key": "sk-1234567"}),))
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(redact(config.to_dict())), encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_config(file=file)
    assert str(caught.value) == (
        f"{file}:1: 'envs' holds a secret, which is not stored: give it again"
    )
    again = load_config(file=file, assignments=["envs=lab/weather-v0:api_key=sk-1234567"])
    assert again == config


def test_f44_the_property_covers_every_setting() -> None:
    # `to_dict` gives all of them, so a new setting takes part by itself.
    flat = {
        f"{name}.{inner}" if isinstance(value, dict) and name in RunConfig().to_dict() else name
        for name, value in RunConfig().to_dict().items()
        for inner in (value if isinstance(value, dict) and value else [""])
    }
    assert {key.rstrip(".") for key in flat} >= options().keys() - {"preset_overrides"}
