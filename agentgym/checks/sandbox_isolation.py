"""The checks of isolation that `check_sandbox` runs over backends which claim to isolate.

In order: resources, the file system, processes and kernel, network, traces across a reset. Each
attack is followed by proof that the box, or its replacement, still works.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Generator

from agentgym.checks.sandbox import ISOLATING, Box, check, equal, expect, python, shell

PRELUDE = "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
REPORT = "print(r, errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()))\n"
ROOM_FACTOR = 2
"""A bound on disk may be met by the work folder and two scratch folders of a quarter each."""


async def still_works(box: Box) -> None:
    """Fail the check unless the box runs a program now."""
    equal((await python(box, "print('alive')")).stdout, "alive\n", "output of the next program")


async def system_call(box: Box, code: str) -> tuple[int, str]:
    """Run code that sets `r` to a system call's result; return it with the error's name."""
    result = await python(box, PRELUDE + code + "\n" + REPORT)
    expect(result.exit_code == 0, f"the attack itself failed: {result.stderr[-300:]}")
    number, name = result.stdout.split()
    return int(number), name


async def denied(box: Box, code: str, what: str) -> None:
    """Fail the check unless a system call fails."""
    number, name = await system_call(box, code)
    expect(number == -1 and name != "0", f"{what}: returned {number} ({name})")


# ------------------------------------------------------------------------------ resources


@check("a fork bomb is contained", on=ISOLATING)
async def _(box: Box) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await python(box, code, timeout_s=2)
    expect(not result.is_ok, "the bomb was no bomb")
    await still_works(box)


@check("processes are bounded", on=ISOLATING)
async def _(box: Box) -> None:
    code = (
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 5000:\n"
        "        if os.fork() == 0: time.sleep(30)\n"
        "        n += 1\n"
        "except OSError: pass\n"
        "print(n)"
    )
    result = await python(box, code, timeout_s=20)
    most = box.limits.max_processes + 16
    expect(result.stdout.strip().isdigit(), f"no count: {result.observation()[-200:]}")
    expect(int(result.stdout) <= most, f"{result.stdout.strip()} processes, bound {most}")


@check("memory is bounded", on=ISOLATING)
async def _(box: Box) -> None:
    code = "b = bytearray(2 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('got it')"
    result = await python(box, code, timeout_s=30)
    expect("got it" not in result.stdout and not result.is_ok, "2 GiB were to be had")
    await still_works(box)


@check("one big file is bounded", on=ISOLATING)
async def _(box: Box) -> None:
    most = ROOM_FACTOR * box.limits.disk_bytes
    await shell(box, f"head -c {most * 2} /dev/zero > big; true", timeout_s=30)
    result = await shell(box, "du -sb . | cut -f1")
    expect(int(result.stdout) <= most, f"{result.stdout.strip()} bytes written, bound {most}")
    await still_works(box)


@check("many files are bounded in all", on=ISOLATING)
async def _(box: Box) -> None:
    most = ROOM_FACTOR * box.limits.disk_bytes
    code = (
        "import os\n"
        "block, total, n = b'x' * (1 << 20), 0, 0\n"
        f"folders, most = ['.', '/tmp', '/dev/shm', '/var/tmp', '/run'], {most * 3}\n"
        "for folder in folders:\n"
        "    while total < most:\n"
        "        n += 1\n"
        "        try: total += os.write(os.open(f'{folder}/f{n}', 65), block)\n"
        "        except OSError: break\n"
        "        finally: os.closerange(3, 64)\n"
        "print(total)"
    )
    result = await python(box, code, timeout_s=60)
    expect(result.stdout.strip().isdigit(), f"no count: {result.observation()[-200:]}")
    expect(int(result.stdout) <= most, f"{result.stdout.strip()} bytes written, bound {most}")
    await still_works(box)


# ------------------------------------------------------------------------ the file system


@check("nothing outside can be written", on=ISOLATING)
async def _(box: Box) -> None:
    places = "/ /dev /etc /usr /usr/bin /bin /proc /var /root /home /sys /opt /run /lib"
    script = f"for d in {places}; do ( : > $d/planted ) 2>/dev/null && echo $d; done; true"
    equal((await shell(box, script)).stdout, "", "folders that could be written")


@check("the host's files are absent", on=ISOLATING)
async def _(box: Box) -> None:
    with tempfile.NamedTemporaryFile(prefix="agentgym-secret-", dir="/tmp") as secret:
        secret.write(b"secret")
        secret.flush()
        paths = f"{secret.name} /proc/1/root{secret.name} /proc/self/root{secret.name}"
        result = await shell(box, f"cat {paths} 2>/dev/null; true")
    equal(result.stdout, "", "content")


@check("passwords cannot be read", on=ISOLATING)
async def _(box: Box) -> None:
    equal((await shell(box, "cat /etc/shadow /etc/gshadow 2>/dev/null; true")).stdout, "", "text")


@check("devices of the host are absent", on=ISOLATING)
async def _(box: Box) -> None:
    paths = "/dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/kmsg /dev/kvm /proc/kcore /proc/kmsg"
    script = f"for f in {paths}; do head -c 1 $f >/dev/null 2>&1 && echo $f; done; true"
    equal((await shell(box, script)).stdout, "", "readable devices")


@check("kernel settings cannot be written", on=ISOLATING)
async def _(box: Box) -> None:
    paths = "/proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/drop_caches"
    script = f"for f in {paths}; do ( echo 1 > $f ) 2>/dev/null && echo $f; done; true"
    equal((await shell(box, script)).stdout, "", "settings that could be written")


# ------------------------------------------------------------------- processes and kernel


@check("the caller's environment is not to be seen", on=ISOLATING)
async def _(box: Box) -> None:
    script = "cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | cut -d= -f1"
    names = set((await shell(box, script)).stdout.split())
    foreign = names - {"PATH", "HOSTNAME", "HOME", "TERM", "container"}
    images = {name for name in foreign if name.startswith(("PYTHON", "LANG", "GPG_KEY"))}
    equal(sorted(foreign - images), [], "variables of process 1")


@check("process 1 cannot be looked into", on=ISOLATING)
async def _(box: Box) -> None:
    code = (
        "import os\n"
        "for what in ('mem', 'maps', 'environ', 'fd', 'fd/0', 'fd/3', 'cwd', 'root'):\n"
        "    path = f'/proc/1/{what}'\n"
        "    try:\n"
        "        os.listdir(path) if what in ('fd', 'cwd', 'root') else open(path, 'rb').read(1)\n"
        "    except OSError: continue\n"
        "    print(what)\n"
    )
    equal((await python(box, code)).stdout, "", "readable parts of process 1")


@check("process 1 cannot be changed", on=ISOLATING)
async def _(box: Box) -> None:
    await denied(box, "r = libc.ptrace(16, 1, 0, 0)", "ptrace attach")
    limit = "new = (ctypes.c_ulong * 2)(0, 0)\nr = libc.prlimit64(1, 7, new, None)"
    await denied(box, limit, "prlimit")
    await denied(box, "r = libc.setpriority(0, 1, 19)", "setpriority")


@check("signals do not reach the supervisor", on=ISOLATING)
async def _(box: Box) -> None:
    code = (
        "import os, signal\n"
        "for n in range(1, 65):\n"
        "    if n in (17, 19, 32, 33): continue\n"
        "    try: os.kill(1, n)\n"
        "    except OSError: pass\n"
        "try: os.kill(os.getppid(), 9)\n"
        "except OSError: pass\n"
        "os.kill(-1, 9)\n"
    )
    result = await python(box, code, timeout_s=10)
    expect(not result.box_restarted, "the box was lost")
    await box.ping()
    await still_works(box)


@check("the kernel kills programs for memory before the supervisor", on=ISOLATING)
async def _(box: Box) -> None:
    result = await shell(box, "cat /proc/self/oom_score_adj /proc/1/oom_score_adj")
    own, supervisor = map(int, result.stdout.split())
    expect(own == 1000 and supervisor < own, f"scores {own} and {supervisor}")


@check("programs are nobody without capabilities", on=ISOLATING)
async def _(box: Box) -> None:
    script = "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status"
    lines = (await shell(box, script)).stdout.splitlines()
    fields = dict(line.split() for line in lines)
    held = {name: value for name, value in fields.items() if name.startswith("Cap")}
    expect(len(held) >= 4, f"capabilities not shown: {fields}")
    equal({int(held[name], 16) for name in held if name != "CapBnd:"}, {0}, "capabilities")
    equal((fields.get("NoNewPrivs:"), fields.get("Seccomp:")), ("1", "2"), "no_new_privs, seccomp")
    equal((await shell(box, "id -u")).stdout == "0\n", False, "is root")


@check("no namespace can be made", on=ISOLATING)
async def _(box: Box) -> None:
    for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x02000000):
        await denied(box, f"r = libc.unshare({flag})", f"unshare({flag:#x})")
    clone = "r = libc.syscall(56, 0x10000011, 0, 0, 0, 0)\nif r == 0: os._exit(0)"
    machine = (await shell(box, "uname -m")).stdout.strip()
    if machine == "x86_64":
        await denied(box, clone, "clone(CLONE_NEWUSER)")


@check("nothing can be mounted", on=ISOLATING)
async def _(box: Box) -> None:
    await denied(box, "r = libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)", "mount")
    await denied(box, "r = libc.umount2(b'/proc', 2)", "umount")
    await denied(box, "r = libc.chroot(b'/tmp')", "chroot")


@check("other wide calls are denied", on=ISOLATING)
async def _(box: Box) -> None:
    machine = (await shell(box, "uname -m")).stdout.strip()
    if machine != "x86_64":
        return
    calls = {"keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298,
             "userfaultfd": 323, "io_uring_setup": 425, "memfd_create": 319}  # fmt: skip
    for name, number in calls.items():
        await denied(box, f"r = libc.syscall({number}, 0, 0, 0, 0, 0)", name)


@check("other boxes and host processes are not to be seen", on=ISOLATING)
async def _(box: Box) -> None:
    code = "import os\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    pids = (await python(box, code)).stdout
    expect(len(pids.split(",")) <= 3, f"processes seen: {pids[:200]}")


# -------------------------------------------------------------------------------- network


@contextlib.contextmanager
def listening(family: int, address: str | tuple[str, int]) -> Generator[socket.socket]:
    """Listen on the host."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()
        yield server


@check("only the loopback interface exists", on=ISOLATING)
async def _(box: Box) -> None:
    code = "import socket\nprint([name for _, name in socket.if_nameindex()])"
    expect((await python(box, code)).stdout.strip() in ("['lo']", "[]"), "other interfaces")


@check("the host's loopback is out of reach", on=ISOLATING)
async def _(box: Box) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        code = (
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        )
        expect((await python(box, code)).exit_code != 0, "connected")


@check("abstract sockets of the host are out of reach", on=ISOLATING)
async def _(box: Box) -> None:
    name = f"\0agentgym-check-{os.getpid()}"
    with listening(socket.AF_UNIX, name):
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})"
        expect((await python(box, code)).exit_code != 0, "connected")


@check("unusual socket families are denied", on=ISOLATING)
async def _(box: Box) -> None:
    for family in (17, 38, 40):  # packets, kernel crypto, host sockets of virtual machines
        await denied(box, f"r = libc.socket({family}, 3, 0)", f"socket family {family}")


# ----------------------------------------------------------------- traces across a reset


@check("a reset leaves no system v object", on=ISOLATING)
async def _(box: Box) -> None:
    await python(box, PRELUDE + "libc.shmget(4711, 4096, 0o1666)\nlibc.msgget(4711, 0o1666)")
    await box.reset()
    result = await shell(box, "cat /proc/sysvipc/shm /proc/sysvipc/msg | grep -c 4711; true")
    equal(result.stdout.strip(), "0", "objects left")


@check("a reset empties shared memory", on=ISOLATING)
async def _(box: Box) -> None:
    await shell(box, "echo x > /dev/shm/left; echo x > /tmp/left; true")
    await box.reset()
    equal((await shell(box, "ls -A /dev/shm /tmp | grep left; true")).stdout, "", "files left")
