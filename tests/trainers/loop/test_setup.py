"""What a training run refuses before anything slow begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agentgym.config import load_config
from agentgym.errors import ConfigError
from agentgym.trainers.loop.setup import check_inputs
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Slot


@pytest.mark.parametrize(
    ("slot", "shipped"),
    [("sampler", "uniform"), ("rollout", "group"), ("mixer", "none"), ("schedule", "joint")],
)
def test_a_part_that_the_loop_would_not_call_is_refused(
    slot: str, shipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dataclasses.replace(registry.find(Slot(slot), shipped), name="mine")
    monkeypatch.setitem(registry._PARTS, (Slot(slot), "mine"), own)
    preset = tmp_path / "my.yaml"
    preset.write_text(f"extends: grpo\nname: my\n{slot}: mine\n")
    settings = {"envs": ["math/arithmetic"], "preset": str(preset)}
    with pytest.raises(ConfigError, match=f"asks for {slot} 'mine', which the training loop"):
        check_inputs(load_config(settings=settings))
