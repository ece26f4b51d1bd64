"""What a run says of itself while it runs, and what it leaves behind when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.cli.main import main
from agentgym.config import RunConfig
from agentgym.errors import RecordError
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import Task
from agentgym.rollouts.episode_state import Episode, EpisodeSpec
from agentgym.runs.folder import RunFolder
from agentgym.runs.status import (
    LIVE,
    LiveEpisode,
    LiveRun,
    LiveWriter,
    dump_on_signal,
    live_episodes,
    live_lines,
    process_state,
    read_live,
)

EPISODE = LiveEpisode(
    id="g3-e0",
    env_id="math/arithmetic-v0",
    turn=2,
    state="env",
    seconds=41.5,
    last_tool="calculator",
)
RUN = LiveRun(
    pid=os.getpid(),
    host=socket.gethostname(),
    written_at=1_000.0,
    phase="wait for episodes",
    phase_s=7.25,
    loop_late_s=0.0,
    step=4,
    steps=60,
    policy_version=8,
    queues={"groups under way": 12, "live episodes": 1},
    policy={"running": 5, "waiting": 2},
    episodes=(EPISODE,),
)


def test_the_longest_wait_is_over_episodes_and_the_loop() -> None:
    assert RUN.longest == ("g3-e0", "env", 41.5)
    assert replace(RUN, phase_s=50.0).longest == ("the loop", "wait for episodes", 50.0)
    assert replace(RUN, episodes=()).longest == ("the loop", "wait for episodes", 7.25)


def test_lines_name_every_episode_with_turn_state_seconds_and_tool() -> None:
    lines = live_lines(RUN)
    assert lines[0].startswith(f"process {os.getpid()} on")
    assert "step 4 of 60, policy version 8" in lines[0]
    assert lines[1] == "the loop: wait for episodes for 7.2 s, late by 0.0 s"
    assert lines[2] == "queues: groups under way 12, live episodes 1"
    assert lines[3] == "policy: running 5, waiting 2"
    assert lines[4] == "longest wait: g3-e0 in env for 41.5 s"
    assert lines[-1].split() == ["g3-e0", "2", "env", "41.5", "calculator", "math/arithmetic-v0"]


def test_what_an_agent_wrote_cannot_act_on_the_terminal() -> None:
    wicked = replace(EPISODE, last_tool="\x1b[2J\x07ls\nrm")
    shown = "\n".join(live_lines(replace(RUN, episodes=(wicked,))))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b[2J\\x07ls rm" in shown


def test_live_episodes_come_with_the_longest_wait_first() -> None:
    now = time.monotonic()
    policy = ScriptedPolicy(["x"])
    live: dict[str, Episode] = {}
    for name, waited in (("a", 3.0), ("b", 9.0)):
        task = Task(id="t", env_id="test/env-v0")
        live[name] = Episode(EpisodeSpec(id=name, group_id="g", task=task), policy)
        live[name].enter("generate")
        live[name].state_since = now - waited
    found = live_episodes(live)
    assert [(one.id, one.state, one.turn) for one in found] == [
        ("b", "generate", 0),
        ("a", "generate", 0),
    ]
    assert found[0].seconds >= 9.0


async def test_writer_keeps_the_file_and_removes_it_at_the_end(tmp_path: Path) -> None:
    async with LiveWriter(tmp_path, lambda late: replace(RUN, loop_late_s=late), interval_s=0.01):
        while (found := read_live(tmp_path)) is None:  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(0.005)
        assert replace(found, loop_late_s=0.0) == RUN
    assert read_live(tmp_path) is None
    assert os.listdir(tmp_path) == []


async def test_writer_says_that_the_event_loop_is_stuck(tmp_path: Path) -> None:
    late: list[float] = []

    def snapshot(seconds: float) -> LiveRun:
        late.append(seconds)
        return RUN

    async with LiveWriter(tmp_path, snapshot, interval_s=0.01):
        # Blocks the loop until the writer's own thread has seen it.
        while not late or late[-1] < 0.05:
            time.sleep(0.005)  # noqa: ASYNC251
    assert max(late) >= 0.05


def test_process_state_by_hand() -> None:
    assert process_state(RUN, now=1_005.0) == "running"
    assert process_state(RUN, now=1_011.0) == "stuck"  # 11 s without a word
    assert process_state(replace(RUN, host="another.example")) == "elsewhere"
    assert process_state(replace(RUN, pid=2**22 + 5), now=1_005.0) == "dead"


def test_signal_writes_the_state_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with dump_on_signal(lambda: RUN):
        signal.raise_signal(signal.SIGUSR1)
    assert "longest wait: g3-e0 in env for 41.5 s" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGUSR1) == before


def test_doctor_shows_the_last_word_of_a_killed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    RunFolder.create(path, RunConfig()).close()
    writer = LiveWriter(path, lambda late: replace(RUN, pid=2**22 + 5))
    writer._write()
    assert (path / LIVE).is_file()
    assert main(["doctor", str(path)]) == 0
    out = capsys.readouterr().out
    assert "longest wait: g3-e0 in env for 41.5 s" in out
    assert "killed; what is shown is its last word" in out
    assert f"agentgym train --resume {path}" in out


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1, "episodes": [{"id": "e"}]}'])
def test_a_damaged_live_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / LIVE).write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"live\.json"):
        read_live(tmp_path)
