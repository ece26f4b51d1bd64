"""The broadcast of weights with stand-ins: who meets when, and what ends one that is stuck.

What NCCL itself does, and what a server's workers do in a broadcast that its peer left, needs GPUs
and is not tested here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from agentgym.errors import InfrastructureError
from agentgym.http import ServerLostError
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.weight_sync import nccl
from agentgym.trainers.weight_sync.nccl import NcclTransfer


class Engine:
    """Notes what it is told; answers `update` once the broadcast has ended, as a server does."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        self.calls: list[str] = []
        self.offsets: list[int] = []
        self.is_lost = False

    async def world_size(self) -> int:
        return self.ranks

    async def init_transfer(self, info: Any) -> None:
        self.calls.append("meet")
        self.offsets.append(info["rank_offset"])

    async def start_update(self) -> None:
        self.calls.append("start")

    async def update(self, info: Any) -> None:
        self.calls.append("update")
        if self.is_lost:
            raise ServerLostError(f"{self.name} cannot be reached")

    async def finish_update(self) -> None:
        self.calls.append("finish")


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 2, bias=False)


@pytest.fixture
async def transfer(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> NcclTransfer:
    save_file({"weight": torch.zeros(2, 3)}, str(tmp_path / "model.safetensors"))
    monkeypatch.setattr(nccl, "_join", lambda meeting: meeting["world_size"])
    monkeypatch.setattr(nccl, "_broadcast", lambda group, views: None)
    made = NcclTransfer(tmp_path, tmp_path / "scratch", deadline_s=30.0)
    await made.prepare(model, 1)
    return made


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """A broadcast that ends when the test does; its threads are listed."""
    is_over, threads = threading.Event(), list[threading.Thread]()

    def block(group: Any, views: Any) -> None:
        threads.append(threading.current_thread())
        is_over.wait(60)

    monkeypatch.setattr(nccl, "_broadcast", block)
    yield threads
    is_over.set()


async def test_engines_meet_once_and_again_after_one_was_started_anew(
    transfer: NcclTransfer,
) -> None:
    # Ranks: the learner has 0, the first engine 1 and 2, the second 3, 4 and 5.
    engines: list[Any] = [Engine("a", 2), Engine("b", 3)]
    for _ in range(2):
        await transfer.send(engines, Stopwatch())
    assert engines[1].calls == ["meet", *["start", "update", "finish"] * 2]
    assert [engine.offsets for engine in engines] == [[1], [3]]
    transfer.forget()
    await transfer.send(engines, Stopwatch())
    assert [engine.offsets for engine in engines] == [[1, 1], [3, 3]]


async def test_broadcast_that_never_ends_is_given_up_and_holds_no_process(
    transfer: NcclTransfer, stuck: list[threading.Thread]
) -> None:
    transfer.deadline_s = 0.2
    engine: Any = Engine("a", 1)
    with pytest.raises(InfrastructureError, match=r"within 0\.2 s.*--resume"):
        await transfer.send([engine], Stopwatch())
    assert engine.calls == ["meet", "start", "update"]
    assert [thread.daemon for thread in stuck] == [True]


async def test_meeting_that_never_ends_is_given_up(
    transfer: NcclTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(nccl, "_join", lambda meeting: is_over.wait(60))
    transfer.deadline_s = 0.2
    engine: Any = Engine("a", 1)
    with pytest.raises(InfrastructureError, match="--resume"):
        await transfer.send([engine], Stopwatch())
    is_over.set()


async def test_engine_that_is_lost_in_a_broadcast_ends_it_for_all(
    transfer: NcclTransfer, stuck: list[threading.Thread]
) -> None:
    lost: Any = Engine("a", 1)
    other: Any = Engine("b", 1)
    lost.is_lost = True
    async with asyncio.timeout(20):  # the deadline is later
        with pytest.raises(ServerLostError, match="a cannot be reached"):
            await transfer.send([lost, other], Stopwatch())
    # Whoever tries again meets anew: the old group waits for the lost one.
    lost.is_lost = False
    transfer.deadline_s = 0.2
    with pytest.raises(InfrastructureError):
        await transfer.send([lost, other], Stopwatch())
    assert other.offsets == [2, 2]
