"""Which way weights take to vLLM, and where a served policy's folder is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.config import load_config
from agentgym.config.validation import InvalidInputError
from agentgym.errors import ConfigError, PolicyError
from agentgym.testing.fake_vllm import FakeVllm
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.weight_sync import served_policy
from agentgym.trainers.weight_sync.nccl import NcclTransfer
from agentgym.trainers.weight_sync.staging import save_weights, untied_copy
from agentgym.trainers.weight_sync.transports import AdapterTransfer, FolderTransfer

CORPUS = ("The product of 37 and 48 is 1776. hello again ",) * 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), corpus=CORPUS, seed=7)


def config(*settings: str) -> Any:
    return load_config(assignments=["envs=math/arithmetic", "policy=vllm:http://h:1", *settings])


@pytest.mark.parametrize(
    ("device", "settings", "kind"),
    [
        ("cpu", (), FolderTransfer),
        ("cpu", ("rollout.weight_sync=adapter", "model.lora_rank=4"), AdapterTransfer),
        ("cuda", ("rollout.weight_sync=nccl",), NcclTransfer),
        ("cuda", ("rollout.weight_sync=folder",), FolderTransfer),
    ],
)
def test_way_of_weights_is_the_one_asked_for_or_suits_the_device(
    tiny: Path, tmp_path: Path, device: str, settings: tuple[str, ...], kind: type
) -> None:
    found = served_policy.transfer_of(config(*settings), torch.device(device), tiny, tmp_path)
    assert type(found) is kind


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("rollout.weight_sync=adapter", r"needs 'model\.lora_rank' > 0"),
        ("rollout.weight_sync=ipc", "needs a GPU; take folder"),
    ],
)
def test_way_that_cannot_be_taken_is_refused(
    tiny: Path, tmp_path: Path, settings: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        served_policy.transfer_of(config(settings), torch.device("cpu"), tiny, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["policy=vllm:http://h:1", "deterministic=true"], "cannot be had from vLLM"),
        (["policy=vllm:http://h:1", "rollout.engine=vllm"], "samples on servers"),
        (["policy=tiny", "rollout.weight_sync=ipc"], "samples without servers"),
        (["policy=vllm:http://h:1", "rollout.top_p=0.9"], r"training needs top_p=1"),
    ],
)
def test_settings_that_contradict_vllm_are_refused_g2(settings: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_config(assignments=["envs=math/arithmetic", *settings])


async def test_learner_begins_with_what_an_untied_copy_was_made_of(
    tiny: Path, tmp_path: Path
) -> None:
    # A server on a CPU serves the copy; the learner's head stays tied.
    copy = untied_copy(tiny, tmp_path / "copy")
    async with FakeVllm(copy) as fake:
        assert await served_policy.served_base(f"vllm:{fake.url}") == tiny
        assert await served_policy.served_folder(f"vllm:{fake.url}") == copy
        named = tmp_path / "named"
        shutil.copytree(tiny, named)
        assert await served_policy.served_base(f"vllm:{fake.url}#{named}") == named
        with pytest.raises(PolicyError, match="#FOLDER"):
            await served_policy.served_base(f"vllm:{fake.url}#{tmp_path / 'gone'}")


def test_saved_weights_are_whole_or_not_there(tmp_path: Path) -> None:
    target = save_weights({"a": torch.ones(2)}, tmp_path / "w")
    assert [path.name for path in target.iterdir()] == ["model.safetensors"]
    header = (target / "model.safetensors").read_bytes()[8:].partition(b"}}")[0] + b"}}"
    assert json.loads(header)["a"]["shape"] == [2]
