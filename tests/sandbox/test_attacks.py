"""Attacks on boxes that isolate: contained, the host as before, the next program works.

The attacks that are single checks are in `agentgym.checks.sandbox_isolation`; here are those that
need the host's side, and all of them at once.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agentgym.sandbox.base import MIB, SandboxFileError, SandboxLimits

pytestmark = pytest.mark.usefixtures("host_is_as_before")

SMALL = SandboxLimits(memory_bytes=128 * MIB, disk_bytes=16 * MIB, max_processes=32, timeout_s=5)


def available_memory() -> int:
    """Bytes that the host could give away."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024


def kernel_uids(pid: int) -> set[str]:
    """User ids of a process as the host sees them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return set(next(line for line in lines if line.startswith("Uid:")).split()[1:])


ATTACKS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "shell fork bomb": "import os\nos.system('f() { f | f & }; f; sleep 30')",
    "thread bomb": (
        "import threading, time\n"
        "while True:\n"
        "    try: threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    except RuntimeError: pass"
    ),
    "2 GB memory": "b = bytearray(2 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1",
    "memory in many processes": (
        "import os\n"
        "for _ in range(30):\n"
        "    if os.fork() == 0: break\n"
        "b = bytearray(64 << 20)\n"
        "for i in range(0, len(b), 4096): b[i] = 1\n"
        "import time; time.sleep(60)"
    ),
    "setsid children and a loop": (
        "import subprocess\n"
        "for _ in range(3): subprocess.Popen(['sleep', '4999'], start_new_session=True)\n"
        "while True: pass"
    ),
    "daemon": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(4999)\n"
        "    os._exit(0)\n"
        "os.wait()"
    ),
    "1 GB of output": "import os\nfor _ in range(1000): os.write(1, b'x' * 1000000)",
    "endless output": "while True: print('y' * 1000)",
    "disk fill in one file": "f = open('f', 'wb')\nwhile True: f.write(b'x' * 1000000)",
    "disk fill in many files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'wb').write(b'x' * 100000)"
    ),
    "inode fill": "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()",
    "all signals to all": (
        "import os\nfor n in range(1, 65):\n    try: os.kill(-1, n)\n    except OSError: pass"
    ),
    "signal flood to process 1": (
        "import os, signal, time\n"
        "end = time.time() + 2\n"
        "while time.time() < end: os.kill(1, signal.SIGCHLD)"
    ),
    "limits of process 1 lowered": (
        "import resource\n"
        "for n in range(16):\n"
        "    try: resource.prlimit(1, n, (0, 0))\n"
        "    except (OSError, ValueError): pass"
    ),
    "work folder locked": "import os\nos.chmod('.', 0)",
    "pipes made huge": (
        "import fcntl, os\n"
        "for d in (1, 2): fcntl.fcntl(d, 1031, 1 << 20)\n"
        "os.write(1, b'z' * (1 << 20))"
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_attack_is_contained_e1_e4_e6(make_isolating_box, attack: str) -> None:
    memory = available_memory()
    async with make_isolating_box(SMALL) as box:
        result = await box.exec(["python3", "-c", attack], timeout_s=3)
        assert len(result.stdout) < 2 * SMALL.output_limit_bytes
        await box.reset()
        assert (await box.exec(["python3", "-c", "print('alive')"])).stdout == "alive\n"
        await box.ping()
    # Other programs of the machine move this too: half of what an attack asked for is allowed.
    assert memory - available_memory() < 1 << 30


async def test_memory_kill_is_said_to_be_one(make_isolating_box) -> None:
    async with make_isolating_box(SMALL) as box:
        if "memory" not in getattr(box, "holds", {"memory"}):
            pytest.skip("no control group bounds memory on this machine")
        result = await box.exec(["python3", "-c", ATTACKS["2 GB memory"]], timeout_s=20)
        assert result.out_of_memory or "MemoryError" in result.stderr


async def test_symlinks_do_not_lead_the_host_astray_e_symlink(make_isolating_box) -> None:
    """Neither through a file, nor a folder, nor one that is swapped while it is read."""
    async with make_isolating_box(SMALL) as box:
        swap = (
            "import os, itertools\n"
            "os.mkdir('d'); open('d/shadow', 'w').write('mine')\n"
            "os.symlink('/etc', 'l')\n"
            "for n in itertools.count():\n"
            "    os.rename('d', 'x'); os.rename('l', 'd'); os.rename('d', 'l'); os.rename('x', 'd')"
        )
        await box.start_process(["python3", "-c", swap])
        seen = set()
        for _ in range(200):
            try:
                seen.add(await box.read_file("d/shadow"))
            except SandboxFileError:
                seen.add(b"refused")
        assert seen <= {b"mine", b"", b"refused"}


async def test_boxes_do_not_see_each_other(make_isolating_box) -> None:
    async with make_isolating_box(SMALL) as one, make_isolating_box(SMALL) as two:
        await one.write_file("mark", "one")
        await one.exec(["sh", "-c", "echo one > /tmp/mark; echo one > /dev/shm/mark"])
        await one.start_process(["sleep", "4998"])
        listed = await two.exec(["sh", "-c", "ls -A /box /tmp /dev/shm; ps ax"])
        assert "mark" not in listed.stdout
        assert "4998" not in listed.stdout


async def test_many_attacks_at_once_leave_the_next_box_working(make_isolating_box) -> None:
    async def attack(code: str) -> None:
        async with make_isolating_box(SMALL) as box:
            await box.exec(["python3", "-c", code], timeout_s=2)

    async with asyncio.TaskGroup() as group:
        for name in ("fork bomb", "2 GB memory", "endless output", "disk fill in many files"):
            group.create_task(attack(ATTACKS[name]))
    async with make_isolating_box(SMALL) as box:
        assert (await box.exec(["echo", "alive"])).stdout == "alive\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives boxes a user id of their own")
async def test_each_box_has_a_user_id_of_its_own(make_isolating_box) -> None:
    async with make_isolating_box(SMALL) as one, make_isolating_box(SMALL) as two:
        if getattr(one, "_uid", None) is None:
            pytest.skip("this kind of box is given its user id by the engine")
        assert one._uid.uid != two._uid.uid
        assert kernel_uids(one._channel._process.pid) == {str(one._uid.uid)}
