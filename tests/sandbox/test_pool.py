"""The pool: leases, resets between them, back-pressure, replacement, and what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym.errors import InfrastructureError, SandboxError
from agentgym.sandbox.backends import bubblewrap
from agentgym.sandbox.backends.null import NullSandbox
from agentgym.sandbox.pool import SandboxPool
from agentgym.sandbox.supervised.transport import memory_file


async def settle(pool: SandboxPool) -> None:
    """Wait until what goes on behind the scenes is done."""
    while pool._work:
        await asyncio.wait(tuple(pool._work))


async def test_a_lease_is_clean_of_the_one_before(make_box, host_is_as_before) -> None:
    """Files, processes, environment, session: nothing of the first episode is there."""
    async with SandboxPool(make_box, size=1) as pool:
        async with pool.lease() as lease:
            first = lease.box
            await lease.python.run("import os; secret = 1; os.environ['SECRET'] = '1'")
            await lease.box.exec(["sh", "-c", "echo s > secret; echo s > $TMPDIR/.secret; cd /"])
            await lease.box.start_process(["sleep", "4997"])
        async with pool.lease() as lease:
            assert lease.box is first
            names = (await lease.python.run("'secret' in globals(), 'SECRET' in os.environ")).raised
            assert names == "NameError"
            listed = await lease.box.exec(["sh", "-c", "ls -A . $TMPDIR; env | grep SECRET; true"])
            assert "secret" not in listed.stdout.lower()
            counted = await lease.box.exec(["sh", "-c", "ps ax | grep -c '[4]997'; true"])
            assert counted.stdout.strip() in ("0", "")


async def test_two_leases_have_two_boxes(make_box) -> None:
    async with SandboxPool(make_box, size=2) as pool, pool.lease() as one, pool.lease() as two:
        await one.box.write_file("x", "1")
        assert (await two.box.exec(["ls"])).stdout == ""
        assert one.box is not two.box


async def test_a_python_session_lasts_for_the_lease(make_box) -> None:
    async with SandboxPool(make_box, size=1) as pool, pool.lease() as lease:
        assert (await lease.python.run("x = 20")).is_ok
        await lease.box.exec(["true"])
        assert (await lease.python.run("x + 1")).output == "21\n"


async def test_a_session_that_waits_is_started_and_clean(make_box) -> None:
    """Started ahead, anew for each lease: its names are not those of the one before."""
    async with SandboxPool(make_box, size=1, python=True) as pool:
        await settle(pool)
        for _ in range(2):
            async with pool.lease() as lease:
                assert lease.python.is_alive
                assert (await lease.python.run("'x' in globals()\n")).output == "False\n"
                await lease.python.run("x = 1")
            await settle(pool)


async def test_a_box_killed_while_it_waits_is_replaced(
    make_box, kill_box, host_is_as_before
) -> None:
    async with SandboxPool(make_box, size=1, warm=1) as pool:
        await settle(pool)
        (waiting,) = pool._idle
        box = waiting.box
        await kill_box(box)
        async with pool.lease() as lease:
            assert lease.box is not box
            assert (await lease.box.exec(["echo", "x"])).stdout == "x\n"
        assert pool.live_boxes == 1


async def test_a_box_killed_in_its_lease_serves_again_afterwards(make_box, kill_box) -> None:
    async with SandboxPool(make_box, size=1) as pool:
        async with pool.lease() as lease:
            await kill_box(lease.box)
            with pytest.raises(InfrastructureError):
                await lease.box.exec(["true"])
        async with pool.lease() as lease:
            assert (await lease.box.exec(["echo", "x"])).stdout == "x\n"


async def test_more_episodes_than_boxes_wait_their_turn() -> None:
    """Back-pressure: 20 leases of 3 boxes, never more than 3 at once."""
    live = most = 0

    async def episode(pool: SandboxPool) -> None:
        nonlocal live, most
        async with pool.lease():
            live += 1
            most = max(most, live)
            await asyncio.sleep(0)
            live -= 1

    async with SandboxPool(NullSandbox, size=3) as pool, asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(episode(pool))
    assert most == 3


async def test_waiting_for_a_box_has_a_limit_h6() -> None:
    async with SandboxPool(NullSandbox, size=1) as pool, pool.lease():
        with pytest.raises(InfrastructureError, match=r"no box became free within 0\.05 s"):
            async with pool.lease(timeout_s=0.05):
                pass


async def test_boxes_are_warmed_in_the_background() -> None:
    made: list[NullSandbox] = []

    def make() -> NullSandbox:
        made.append(NullSandbox())
        return made[-1]

    async with SandboxPool(make, size=4, warm=2) as pool:
        await settle(pool)
        assert [box.is_started for box in made] == [True, True]
        async with pool.lease() as lease:
            assert lease.box in made
    assert all(box.is_closed for box in made)


async def test_an_error_in_the_episode_is_the_one_that_is_reported_e10_e12() -> None:
    """Set-up fails after the lease: the box is given back, the first error stays."""
    boxes: list[NullSandbox] = []

    def make() -> NullSandbox:
        boxes.append(NullSandbox(close_error=InfrastructureError("close failed")))
        return boxes[-1]

    with pytest.raises(ExceptionGroup) as caught:
        async with SandboxPool(make, size=1) as pool, pool.lease():
            raise RuntimeError("set-up failed")
    assert caught.group_contains(RuntimeError, match="set-up failed")
    assert not caught.group_contains(InfrastructureError)
    assert [box.close_calls for box in boxes] == [1]


async def test_a_box_that_cannot_be_reset_is_dropped_and_frees_its_place() -> None:
    boxes: list[NullSandbox] = []

    def make() -> NullSandbox:
        boxes.append(NullSandbox(reset_error=InfrastructureError("not clean")))
        return boxes[-1]

    async with SandboxPool(make, size=1, warm=0) as pool:
        for _ in range(3):
            async with pool.lease():
                pass
            await settle(pool)
        assert pool.live_boxes == 0
    assert len(boxes) == 3
    assert all(box.is_closed for box in boxes)


async def test_an_oserror_in_the_background_costs_one_box_and_not_the_pool() -> None:
    """Out of descriptors while a box is reset, or while one is warmed: the next lease works."""
    lack = OSError(errno.EMFILE, "too many open files")
    boxes: list[NullSandbox] = []

    def make() -> NullSandbox:
        boxes.append(
            NullSandbox(
                start_error=lack if len(boxes) == 0 else None,
                reset_error=lack if len(boxes) == 1 else None,
            )
        )
        return boxes[-1]

    async with SandboxPool(make, size=1, warm=1) as pool:
        await settle(pool)
        for number in (1, 2):
            async with pool.lease() as lease:
                assert lease.box is boxes[number]
            await settle(pool)
    assert [box.is_closed for box in boxes] == [True, True, True]


async def test_an_oserror_at_the_start_of_a_lease_is_the_machines() -> None:
    def make() -> NullSandbox:
        return NullSandbox(start_error=OSError(errno.EMFILE, "too many open files"))

    async with SandboxPool(make, size=1, warm=0) as pool:
        with pytest.raises(InfrastructureError, match=r"cannot start a box.*too many open files"):
            await pool.acquire(timeout_s=5)
        assert pool.live_boxes == 0


@pytest.mark.parametrize("working", range(4))
async def test_a_launch_that_lacks_descriptors_leaves_none_open(
    working: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files for bubblewrap and one for its diagnosis: the one after `working` fails."""
    pytest.importorskip("pyseccomp")
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    made: list[int] = []

    def failing(data: bytes) -> int:
        if len(made) == working:
            raise OSError(errno.EMFILE, "too many open files")
        made.append(memory_file(data))
        return made[-1]

    monkeypatch.setattr(bubblewrap, "memory_file", failing)
    box = bubblewrap.BubblewrapSandbox()
    with pytest.raises(InfrastructureError, match="cannot start bubblewrap"):
        await box.start()
    await box.aclose()
    assert len(made) == working
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


async def test_a_box_that_does_not_start_frees_its_place() -> None:
    def make() -> NullSandbox:
        return NullSandbox(start_error=InfrastructureError("no room"))

    async with SandboxPool(make, size=1) as pool:
        for _ in range(3):
            with pytest.raises(InfrastructureError, match="no room"):
                async with pool.lease(timeout_s=5):
                    pass
        assert pool.live_boxes == 0


async def test_registry_is_empty_after_100_episodes_e14() -> None:
    async with SandboxPool(NullSandbox, size=4) as pool:
        for _ in range(100):
            async with pool.lease():
                pass
        await settle(pool)
        assert pool.live_boxes <= 4
    assert pool.live_boxes == 0


async def test_cancelling_closes_every_box(make_box, host_is_as_before) -> None:
    ready = asyncio.Event()

    async def run() -> None:
        async with SandboxPool(make_box, size=2, warm=1) as pool, pool.lease() as lease:
            ready.set()
            await lease.box.exec(["sleep", "300"], timeout_s=600)

    task = asyncio.get_running_loop().create_task(run())
    await ready.wait()
    await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_closed_pool_lends_nothing() -> None:
    pool = SandboxPool(NullSandbox, size=1)
    with pytest.raises(SandboxError, match="not open"):
        await pool.acquire()
    async with pool:
        pass
    with pytest.raises(SandboxError, match="not open"):
        await pool.acquire()


@pytest.mark.parametrize(("size", "warm"), [(0, 0), (1, 2), (1, -1)])
def test_pool_sizes_are_checked(size: int, warm: int) -> None:
    with pytest.raises(SandboxError, match="1 <= size"):
        SandboxPool(NullSandbox, size=size, warm=warm)


HOLD = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from agentgym.sandbox.pool import SandboxPool
from agentgym.sandbox.registry import sandbox_class

async def main():
    async with SandboxPool(sandbox_class(sys.argv[1]), size=2) as pool, pool.lease() as lease:
        await lease.box.start_process(["sleep", sys.argv[2]])
        print("ready", flush=True)
        await lease.box.exec(["sleep", sys.argv[2]], timeout_s=900)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize(
    "kind", [pytest.param("bubblewrap", marks=pytest.mark.service), "subprocess"]
)
def test_nothing_runs_on_when_the_host_process_is_killed(kind: str, number: int) -> None:
    """SIGTERM without a handler and a crash alike: no box and no program outlives the process."""
    mark = str(70000 + os.getpid() % 1000 * 10 + number)
    host = subprocess.Popen(
        [sys.executable, "-c", HOLD, kind, mark],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # As in a terminal: a script's background job, as these tests may be, ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert host.stdout is not None
    with host, host.stdout:
        assert host.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        host.send_signal(number)
        host.wait(timeout=20)
    deadline = time.monotonic() + 10
    while running(mark):
        assert time.monotonic() < deadline, "a program outlived its host"
        time.sleep(0.05)


def running(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[:2] == [b"sleep", mark.encode()]:
                    found.append(entry.name)
    return found
