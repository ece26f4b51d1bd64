"""Boxes that die under the episodes, and hostile programs by the hundred: `make soak`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym import seeding
from agentgym.policies.expert import ExpertPolicy
from agentgym.records import ErrorKind
from agentgym.sandbox import shared_pools
from agentgym.sandbox.backends.bubblewrap import BubblewrapSandbox, find_hierarchy
from agentgym.sandbox.base import MIB, SandboxLimits
from agentgym.sandbox.host.cgroups import GROUP_PREFIX
from agentgym.sandbox.host.process_tags import owned_name
from agentgym.sandbox.pool import Lease, SandboxPool

pytestmark = [pytest.mark.service, pytest.mark.soak]
EPISODES = 1000
KILLED_SHARE = 0.05


def kill(box: Any) -> None:
    """Kill a bubblewrap box from outside, as a failing machine would."""
    channel = box._channel
    if channel is None or channel._process.returncode is not None:
        return
    pid = channel._process.pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]) if children else pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return


class ChaosPool(SandboxPool):
    """Kills one leased box in twenty, within the time that a lease takes."""

    rng = random.Random(5)
    kills = 0

    async def acquire(self, *, timeout_s: float | None = None) -> Lease:
        lease = await super().acquire(timeout_s=timeout_s)
        if self.rng.random() < KILLED_SHARE:
            ChaosPool.kills += 1
            asyncio.get_running_loop().call_later(self.rng.random() * 0.03, kill, lease.box)
        return lease


def boxes_running() -> int:
    """Supervisors of boxes on this machine whose host is this process."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                status = (entry / "status").read_text()
            except OSError:
                continue
            count += b"bwrap" in words.split(b"\0")[0] and f"PPid:\t{os.getpid()}\n" in status
    return count


def own_groups() -> list[Path]:
    """Control groups of boxes that this process made."""
    hierarchy = find_hierarchy()
    parents = set(hierarchy.parents.values()) if hierarchy is not None else set()
    name = owned_name(GROUP_PREFIX)
    return [path for parent in parents for path in parent.glob(f"{name}-*")]


@pytest.mark.timeout(3000)
def test_a_thousand_episodes_with_boxes_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 records; each is right or an infrastructure failure, none a 0; nothing is left."""
    shared_pools.close_portal()
    monkeypatch.setattr(shared_pools, "SandboxPool", ChaosPool)
    records = agentgym.rollout(
        "code/functions", ExpertPolicy(), tasks=EPISODES, max_concurrent=16, seed=3
    )
    shared_pools.close_portal()
    # An attempt that failed is a record of its own, beside the attempt after it.
    assert len(records) == len({record.id for record in records})
    assert len({record.task_id for record in records}) == EPISODES
    failed = [record for record in records if record.failure is not None]
    scored = [record for record in records if record.failure is None]
    assert len(scored) == len({record.task_id for record in scored})
    print(
        f"{EPISODES} episodes, {ChaosPool.kills} boxes killed, "
        f"{len(failed)} attempts failed for infrastructure, {len(scored)} episodes scored"
    )
    assert ChaosPool.kills > EPISODES * KILLED_SHARE
    assert {r.failure.kind for r in failed if r.failure} <= {ErrorKind.INFRASTRUCTURE}
    assert [record.outcome for record in scored] == [1.0] * len(scored)
    assert len(scored) >= 0.99 * EPISODES
    assert boxes_running() == 0
    assert own_groups() == []


# ----------------------------------------------------------------------- hostile programs

LINES = (
    "os.fork()",
    "[os.fork() for _ in range(8)]",
    "threads.append(threading.Thread(target=time.sleep, args=(9,))); threads[-1].start()",
    "hold.append(bytearray(random.randrange(1 << 26)))",
    "hold.append(b'x' * (1 << 24))",
    "open(f'f{random.random()}', 'wb').write(b'x' * random.randrange(1 << 22))",
    "os.makedirs('/'.join('d' * random.randrange(1, 9) for _ in range(30)), exist_ok=True)",
    "os.symlink('/', f'l{random.random()}')",
    "os.mkfifo(f'p{random.random()}')",
    "os.kill(random.choice((1, -1, os.getppid())), random.randrange(1, 65))",
    "signal.signal(random.randrange(1, 32), signal.SIG_IGN)",
    "os.write(random.randrange(64), b'<{\"value\": 1}>' * random.randrange(1, 9999))",
    "sys.stdout.write('y' * random.randrange(1 << 20))",
    "sys.stderr.write('z' * random.randrange(1 << 16))",
    "subprocess.Popen(['sleep', '999'], start_new_session=True)",
    "os.setsid()",
    "os.close(random.randrange(8))",
    "os.chmod('.', random.randrange(0o777))",
    "socket.socket(random.randrange(45), random.randrange(1, 6)).bind(('', 0))",
    "socket.create_connection(('127.0.0.1', random.randrange(1, 65535)), 0.05)",
    "libc.unshare(1 << random.randrange(31))",
    "libc.syscall(random.randrange(450), 0, 0, 0, 0, 0, 0)",
    "libc.ptrace(random.randrange(20), random.choice((0, 1, 2)), 0, 0)",
    "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "resource.setrlimit(random.randrange(16), (0, 0))",
    "resource.prlimit(1, random.randrange(16), (0, 0))",
    'open(f\'/proc/1/{random.choice(("mem", "environ", "fd/0"))}\', \'rb\').read(9)',
    "open('/proc/self/oom_score_adj', 'w').write('-1000')",
    "time.sleep(random.random() / 10)",
    "random.seed()",
    "os.execvp('sh', ['sh', '-c', 'f() { f | f & }; f; sleep 9'])",
    "os._exit(random.randrange(256))",
    "sys.setrecursionlimit(10**9); f = lambda: f(); f()",
    "while_true = [1 for _ in iter(int, 1)]",
)
HEAD = (
    "import ctypes, os, random, resource, signal, socket, subprocess, sys, threading, time\n"
    "libc = ctypes.CDLL(None)\nhold, threads = [], []\nrandom.seed({seed})\n"
)


def hostile(seed: int) -> str:
    """A program of random harmful lines, each tried whatever the others did."""
    rng = seeding.rng("hostile", seed)
    lines = rng.choices(LINES, k=rng.randrange(1, 25))
    body = "".join(f"try: {line}\nexcept BaseException: pass\n" for line in lines)
    return HEAD.format(seed=seed) + body


@pytest.mark.timeout(3000)
async def test_five_hundred_hostile_programs_neither_escape_nor_hang() -> None:
    limits = SandboxLimits(
        memory_bytes=96 * MIB, disk_bytes=8 * MIB, max_processes=24, timeout_s=2.0
    )
    async with SandboxPool(lambda: BubblewrapSandbox(limits), size=2, python=True) as pool:
        for seed in range(500):
            async with pool.lease() as lease:
                result = await lease.box.exec(["python3", "-c", hostile(seed)])
                assert result.wall_s < 60, f"seed {seed} took {result.wall_s}"
            async with pool.lease() as lease:
                script = "ls -A /box /tmp /dev/shm; echo alive"
                alive = await lease.box.exec(["sh", "-c", script], timeout_s=60)
                assert alive.stdout.endswith("alive\n"), f"after seed {seed}: {alive}"
                assert len(alive.stdout.split()) == 4, f"left by seed {seed}: {alive.stdout}"
    assert boxes_running() == 0
    assert own_groups() == []
