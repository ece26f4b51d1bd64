"""Processes killed at random under the episodes, for as long as one likes: `make soak`.

Every 20 seconds a server, the worker of an environment or a running tool is killed. However long
that goes on: every started episode ends as exactly one record, and the typed failures are as many
as the kills that hit one, each named in its record by the process that was killed.

AGENTGYM_SOAK_MINUTES (30) and AGENTGYM_SOAK_KILL_S (20) say how long and how often.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.registry import register_env, unregister_env
from agentgym.errors import InfrastructureError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm import Retries, VllmOptions, VllmPolicy, connect
from agentgym.records import Completion, FinishReason, Sampling, StopReason, Task, Trajectory
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.rollouts.scoring import Rubric
from agentgym.serving.launch import ServerDevice, ServerSpec, free_port
from agentgym.serving.supervisor import Supervisor, WatchOptions

pytest.importorskip("torch")

from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.rollout.buffer import Pace, Rollouts

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("AGENTGYM_SOAK_MINUTES", "30"))
KILL_S = float(os.environ.get("AGENTGYM_SOAK_KILL_S", "20"))
ENV_ID = "chaos/worker-v0"
TURNS = 3
GROUPS = 8
SIZE = 4
WORKER = "import sys\nfor line in sys.stdin:\n    print(len(line), flush=True)"
TOOL = "import random, time\ntime.sleep(random.uniform(0.05, 0.4))\nprint('done')"
CORPUS = ("The product of 37 and 48 is 1776. hello again ",) * 30


class Worker(TextEnv):
    """Each instance has a process that answers; each turn calls a tool, which is one more."""

    lock = threading.Lock()
    workers: ClassVar[set[int]] = set()
    retired: ClassVar[set[int]] = set()
    running_tools: ClassVar[set[int]] = set()
    tool_codes: ClassVar[dict[int, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.process: subprocess.Popen[str] | None = None
        self.turns = 0

    def start(self, task: Task, rng: random.Random) -> str:
        if self.process is None or self.process.poll() is not None:
            self.end_worker()
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            with self.lock:
                self.workers.add(self.process.pid)
        self.turns = 0
        return "go"

    def respond(self, action: Action) -> Reply:
        self.turns += 1
        self.use_tool()
        observation = self.ask_worker(str(action))
        outcome = 1.0 if self.turns == TURNS else None
        return Reply(observation=observation, outcome=outcome)

    def ask_worker(self, text: str) -> str:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            process.stdin.write(text.replace("\n", " ") + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise InfrastructureError(f"worker {process.pid} died")
        return line.strip()

    def use_tool(self) -> None:
        tool = subprocess.Popen([sys.executable, "-S", "-c", TOOL], stdout=subprocess.DEVNULL)
        with self.lock:
            self.running_tools.add(tool.pid)
        code = tool.wait()
        with self.lock:
            self.running_tools.discard(tool.pid)
            self.tool_codes[tool.pid] = code
        if code != 0:
            raise InfrastructureError(f"tool {tool.pid} ended with code {code}")

    def end_worker(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with self.lock:
            self.workers.discard(process.pid)
            self.retired.add(process.pid)
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()

    def close(self) -> None:
        self.end_worker()
        super().close()


class Killer:
    """Kills a process of one kind after the other, chosen by chance."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.killed: list[tuple[str, int]] = []
        self._supervisor = supervisor
        self._rng = random.Random()

    async def run(self) -> None:
        kinds = ["server", "worker", "tool"]
        while True:
            await asyncio.sleep(KILL_S)
            kind = self._rng.choice(kinds)
            pid = self._victim(kind)
            if pid is None:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed.append((kind, pid))

    def _victim(self, kind: str) -> int | None:
        if kind == "server":
            processes = [server.process for server in self._supervisor.servers]
            pids = [process.pid for process in processes if process is not None]
        else:
            with Worker.lock:
                pids = sorted(Worker.workers if kind == "worker" else Worker.running_tools)
        return self._rng.choice(pids) if pids else None


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_env(ENV_ID)(Worker)
    yield
    unregister_env(ENV_ID)


def spec_of(draw: int) -> GroupSpec:
    return GroupSpec(
        id=f"g{draw}",
        task=Task(id=f"t{draw}", env_id=ENV_ID),
        size=SIZE,
        seed=draw,
        sampling=Sampling(max_new_tokens=12, seed=draw),
    )


class Counted:
    """A policy that counts what is begun and ended, and whose turns all count as whole ones.

    A model that knows nothing hardly ever ends its turn by itself, and a turn that was cut off
    calls no tool.
    """

    def __init__(self, policy: VllmPolicy) -> None:
        self.inner = policy
        self.begun: list[str] = []
        self.ended: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await self.inner.generate(request)
        return replace(completion, finish_reason=FinishReason.STOP)

    async def begin_episode(self, episode_id: str) -> None:
        self.begun.append(episode_id)
        await self.inner.begin_episode(episode_id)

    async def end_episode(self, episode_id: str) -> None:
        self.ended[episode_id] += 1
        await self.inner.end_episode(episode_id)


async def test_every_episode_ends_as_one_record_whatever_is_killed(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path / "tiny", corpus=CORPUS, seed=7)
    servers = [
        ServerSpec(
            folder=folder,
            port=free_port(),
            log=tmp_path / "logs" / f"server-{number}.log",
            device=ServerDevice.CPU,
            module="agentgym.testing.fake_vllm",
        )
        for number in range(2)
    ]
    records: list[Trajectory] = []
    watch_options = WatchOptions(every_s=0.5, answer_s=5.0, engine_s=5.0, start_s=60, restarts=999)
    async with Supervisor(servers, options=watch_options) as supervisor:
        options = VllmOptions(retries=Retries(first_wait_s=0.05), patience_s=60, trust_s=0.5)
        address = ",".join(server.url for server in servers)
        policy = Counted(await connect(address, options=options))
        killer = Killer(supervisor)
        helpers = asyncio.gather(supervisor.watch(), killer.run())
        try:
            steps = await play(policy, records)
        finally:
            helpers.cancel()
            with suppress(asyncio.CancelledError):
                await helpers
        await policy.inner.aclose()
    check(policy, records, killer, steps)


async def play(policy: Any, records: list[Trajectory]) -> int:
    """Run groups a step ahead until the time is up, then the rest of what is under way."""
    until = time.monotonic() + MINUTES * 60
    async with Engine(policy, max_concurrent=16, retries=3) as engine:
        rollouts = Rollouts(
            engine,
            spec_of,
            rubric=Rubric(),
            record=records.append,
            pace=Pace(groups_per_step=GROUPS, steps_ahead=1, last_step=10**9, closes_at=None),
        )
        async with rollouts:
            step = 0
            while time.monotonic() < until:
                rollouts.fill(step)
                drawn = await rollouts.take(GROUPS)
                assert all(len(one.scores) == SIZE for one in drawn), "an episode was lost"
                rollouts.consume()
                step += 1
            # What is under way ends: nothing is to be explained by the end of the test.
            await rollouts.take(len(rollouts.outstanding))
    return step


def check(policy: Counted, records: list[Trajectory], killer: Killer, steps: int) -> None:
    ids = Counter(record.id for record in records)
    assert Counter(policy.begun) == ids, "an episode was lost or doubled"
    assert set(ids.values()) == {1}
    assert policy.ended == ids
    failed = [record for record in records if record.failure is not None]
    assert all(r.outcome is None for r in failed)
    ended = [record for record in records if record.failure is None]
    assert all(r.stop_reason is StopReason.TERMINATED and r.outcome == 1.0 for r in ended)
    messages = [r.failure.message for r in failed if r.failure is not None]
    pids = [int(found[1]) for m in messages if (found := re.match(r"(?:worker|tool) (\d+) ", m))]
    print(f"{steps} steps, {len(records)} records, kills {Counter(k for k, _ in killer.killed)}")
    print(f"failures {Counter(m.split()[0] for m in messages)}")
    # Each failure names a process that was killed, and there are no more failures than kills.
    # Servers come back while their episodes wait: those fail no episode.
    assert len(pids) == len(messages), messages
    assert Counter(pids) <= Counter(pid for kind, pid in killer.killed if kind != "server")
    missed = Counter(killer.killed) - Counter((m.split()[0], int(m.split()[1])) for m in messages)
    for kind, pid in missed:
        # What hit no episode: a tool that was done already, a worker that rested between two.
        assert kind == "server" or pid in Worker.retired or Worker.tool_codes[pid] == 0
