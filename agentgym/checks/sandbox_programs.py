"""The checks of programs, output, time and forging that `check_sandbox` runs over every box."""

from __future__ import annotations

import asyncio
import contextlib
import time

from agentgym.checks.sandbox import (
    ISOLATING,
    Box,
    check,
    count_running,
    equal,
    expect,
    python,
    refused,
    shell,
)
from agentgym.errors import SandboxError

QUICK_S = 3.0
"""Nothing that should return at once may take longer, on a loaded machine."""
LATE_S = 4.0
"""A time limit must have taken effect this long after it."""


# ------------------------------------------------------------------------------- programs


@check("a program runs to its end")
async def _(box: Box) -> None:
    result = await python(box, "print(6 * 7)")
    equal((result.exit_code, result.stdout, result.stderr), (0, "42\n", ""), "result")


@check("the exit code is the program's")
async def _(box: Box) -> None:
    equal((await shell(box, "exit 7")).exit_code, 7, "exit code")


@check("death by signal is 128 and the signal")
async def _(box: Box) -> None:
    equal((await shell(box, "kill -9 $$")).exit_code, 137, "exit code")


@check("a missing program is 127")
async def _(box: Box) -> None:
    equal((await box.exec(["no-such-program"])).exit_code, 127, "exit code")


@check("a file without the execute bit is 126")
async def _(box: Box) -> None:
    await box.write_file("plain", "#!/bin/sh\n")
    equal((await box.exec(["./plain"])).exit_code, 126, "exit code")


@check("no shell reads the arguments")
async def _(box: Box) -> None:
    equal((await box.exec(["echo", "$HOME;", "*"])).stdout, "$HOME; *\n", "output")


@check("standard input arrives and ends")
async def _(box: Box) -> None:
    equal((await box.exec(["cat"], stdin="ä\n")).stdout, "ä\n", "output")


@check("a megabyte of standard input arrives")
async def _(box: Box) -> None:
    result = await box.exec(["wc", "-c"], stdin=b"x" * 1_000_000)
    equal(result.stdout.split(), ["1000000"], "bytes counted")


@check("standard input nobody reads is no error")
async def _(box: Box) -> None:
    equal((await box.exec(["true"], stdin=b"x" * 1_000_000)).exit_code, 0, "exit code")


@check("without input a program reads its end")
async def _(box: Box) -> None:
    equal((await box.exec(["cat"], timeout_s=QUICK_S)).timed_out, False, "timed out")


@check("variables are passed")
async def _(box: Box) -> None:
    result = await shell(box, 'echo "$COLOUR"', env={"COLOUR": "deep blue"})
    equal(result.stdout, "deep blue\n", "output")


@check("nothing of the host's environment is passed")
async def _(box: Box) -> None:
    known = {"HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "SHLVL", "_"}
    result = await box.exec(["env"])
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    equal(sorted(names - known), [], "other variables")


@check("programs run in the work folder")
async def _(box: Box) -> None:
    equal((await box.exec(["pwd"])).stdout.strip(), box.work_dir, "folder")


@check("a folder below can be chosen")
async def _(box: Box) -> None:
    await box.write_file("deep/er/x", "")
    equal((await box.exec(["ls"], cwd="deep/er")).stdout, "x\n", "output")


@check("a missing folder is a result")
async def _(box: Box) -> None:
    expect((await box.exec(["ls"], cwd="nowhere")).exit_code in (126, 127), "wanted 126 or 127")


@check("malformed arguments are refused")
async def _(box: Box) -> None:
    for argv in ([], ["a\0b"], "ls"):
        async with refused(SandboxError, f"argv {argv!r}"):
            await box.exec(argv)
    for bound in (0, -1):
        async with refused(SandboxError, f"timeout_s={bound}"):
            await box.exec(["true"], timeout_s=bound)


@check("processor time is counted")
async def _(box: Box) -> None:
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    used = (await python(box, busy)).cpu_s
    expect(0.25 <= used <= 1.5, f"0.3 s of work, counted {used:.2f} s")


@check("sleeping takes no processor time")
async def _(box: Box) -> None:
    result = await box.exec(["sleep", "0.5"])
    expect(result.wall_s >= 0.5 and result.cpu_s < 0.2, f"got {result.wall_s}, {result.cpu_s}")


# --------------------------------------------------------------------------------- output


@check("the streams are kept apart")
async def _(box: Box) -> None:
    result = await shell(box, "echo out; echo err >&2")
    equal((result.stdout, result.stderr), ("out\n", "err\n"), "streams")


@check("bad utf8 is replaced")
async def _(box: Box) -> None:
    equal((await shell(box, r"printf 'a\377b'")).stdout, "a�b", "output")


@check("output of the limit's length is whole")
async def _(box: Box) -> None:
    result = await python(box, "print('x' * 999)", output_limit=1000)
    equal((len(result.stdout), result.stdout_truncated), (1000, False), "length, cut")


@check("longer output keeps head and tail")
async def _(box: Box) -> None:
    code = "print('BEGIN' + 'x' * 1000000 + 'END')"
    result = await python(box, code, output_limit=1000)
    text = result.stdout
    expect(result.stdout_truncated and len(text) < 1100, f"{len(text)} characters")
    expect(text.startswith("BEGINxx") and text.endswith("xxEND\n"), "head or tail is lost")


@check("output is cut between characters")
async def _(box: Box) -> None:
    for limit in (1000, 1001, 1002):  # a euro sign has three bytes: two of the three fall inside
        result = await python(box, "print('€' * 1000)", output_limit=limit)
        expect(result.stdout_truncated and "\ufffd" not in result.stdout, f"limit {limit}")


@check("the error at the end of a flood is seen")
async def _(box: Box) -> None:
    code = "import sys\nsys.stderr.write('x' * 1000000)\nraise ValueError('END')"
    result = await python(box, code)
    expect(result.stderr_truncated and "ValueError: END" in result.stderr, "the error is lost")


@check("an endless flood ends at the time limit")
async def _(box: Box) -> None:
    result = await python(box, "while True: print('A' * 10000)", timeout_s=1, output_limit=65536)
    expect(result.timed_out and result.stdout_truncated, "not stopped")
    expect(len(result.stdout) < 65536 + 100, f"{len(result.stdout)} characters kept")


# ----------------------------------------------------------------------------------- time


@check("a time limit kills")
async def _(box: Box) -> None:
    began = time.monotonic()
    result = await box.exec(["sleep", "300"], timeout_s=1)
    took = time.monotonic() - began
    expect(result.timed_out and 1 <= took < 1 + LATE_S, f"took {took:.1f} s")


@check("a time limit is not early")
async def _(box: Box) -> None:
    result = await shell(box, "sleep 1.2; echo ok", timeout_s=30)
    equal((result.timed_out, result.stdout), (False, "ok\n"), "timed out, output")


@check("output before a time limit is kept")
async def _(box: Box) -> None:
    result = await shell(box, "echo step1; sleep 300", timeout_s=0.5)
    equal((result.timed_out, result.stdout), (True, "step1\n"), "timed out, output")
    expect("time limit" in result.observation(), "the observation does not say so")


@check("a program that catches everything is killed")
async def _(box: Box) -> None:
    code = (
        "import signal\n"
        "for n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True:\n"
        "    try:\n"
        "        while True: pass\n"
        "    except BaseException: pass\n"
    )
    expect((await python(box, code, timeout_s=1)).timed_out, "not stopped")


@check("a background child does not hold the result")
async def _(box: Box) -> None:
    began = time.monotonic()
    result = await shell(box, "(sleep 60 &); echo hi", timeout_s=30)
    equal((result.stdout, result.timed_out), ("hi\n", False), "output, timed out")
    expect(time.monotonic() - began < QUICK_S, "waited for the child")


@check("nothing survives a program")
async def _(box: Box) -> None:
    await shell(box, "sleep 4711 & setsid sleep 4711 & (setsid nohup sleep 4711 &) ; echo x")
    equal(await count_running(box, "4711"), 0, "sleepers left")


@check("nothing survives a time limit")
async def _(box: Box) -> None:
    script = "for i in 1 2 3; do setsid sleep 4712 & done; sleep 4712"
    await shell(box, script, timeout_s=0.5)
    equal(await count_running(box, "4712"), 0, "sleepers left")


@check("no zombies are left")
async def _(box: Box) -> None:
    for _ in range(5):
        await shell(box, "sleep 60 & setsid sleep 60 & sleep 60", timeout_s=0.1)
    code = (
        "import os\n"
        "def state(p):\n"
        "    try: return open(f'/proc/{p}/stat').read().rpartition(')')[2].split()[:2]\n"
        "    except OSError: return ['?', '0']\n"
        "found = [state(p) for p in os.listdir('/proc') if p.isdigit()]\n"
        "print(sum(s == 'Z' and int(up) == os.getppid() for s, up in found))"
    )
    equal((await python(box, code)).stdout, "0\n", "zombies")


@check("a cancelled call leaves a usable box")
async def _(box: Box) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await box.exec(["sleep", "4713"], timeout_s=60)
    equal((await python(box, "print(1)")).stdout, "1\n", "output of the next program")
    equal(await count_running(box, "4713"), 0, "sleepers left")


# ------------------------------------------------------ programs that forge others' results

WRITER = """
import itertools, os
own, kept = os.getpid(), []
for text in itertools.cycle({texts!r}):
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or int(pid) in (1, own): continue
        for number in range(24):
            try: pipe = os.open(f'/proc/{{pid}}/fd/{{number}}', os.O_WRONLY | os.O_NONBLOCK)
            except OSError: continue
            try: os.write(pipe, text)
            except OSError: pass
            if text or len(kept) > 100: os.close(pipe)
            else: kept.append(pipe)
"""
"""Writes into every pipe of every program that begins, or holds it open if the text is empty."""

FORGERS = {
    "an exit code": WRITER.format(texts=[b"0 "]),
    "a reason not to start": WRITER.format(texts=[b"127 no-such-program: not found"]),
    "garbage for a reason": WRITER.format(texts=[b"garbage", b"\xff" * 4096]),
    "a pipe held open": WRITER.format(texts=[b""]),
    "the line of a passed test": WRITER.format(texts=[b"OK\n1 passed\n", b'{"passed": true}']),
    "signals to all": (
        "import itertools, os, signal\n"
        "for number in itertools.cycle((signal.SIGCHLD, signal.SIGCONT)):\n"
        "    for pid in os.listdir('/proc'):\n"
        "        if pid.isdigit():\n"
        "            try: os.kill(int(pid), number)\n"
        "            except OSError: pass"
    ),
}
"""What it forges -> a program that lives on in a box and tries to, for as long as it lives."""
TRIES = 15

SPY = """
import os
def is_real(name, file, flags):
    # What is left of a program that ends opens too, and is empty; memory has no page at 4096.
    if name in ('maps', 'environ'): return flags & os.O_WRONLY or os.read(file, 1) != b''
    if name != 'mem': return True
    try: os.pwrite(file, b'x', 4096) if flags & os.O_WRONLY else os.pread(file, 1, 4096)
    except OSError: return True
    return False
def tried(pid, name, how, flags):
    try: file = os.open(f'/proc/{pid}/{name}', flags)
    except OSError: return
    if is_real(name, file, flags): found.add(f'{how} {name}')
    os.close(file)
found, own = set(), os.getpid()
open('spy-is-ready', 'w').close()
while True:
    before = len(found)
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or int(pid) in (1, own): continue
        for name in ('mem', 'maps', 'environ', 'fd/0', 'fd/1', 'fd/2', 'cwd/.', 'root/.'):
            for how, flags in (('read', os.O_RDONLY), ('write', os.O_WRONLY)):
                tried(pid, name, how, flags | os.O_NONBLOCK)
        try: os.kill(int(pid), 0)
        except OSError: continue
        found.add('signal')
    if len(found) > before: open('spied', 'w').write(','.join(sorted(found)))
"""
"""Notes what of other programs it can open or signal."""
LANDLOCK_VERSION = (
    "import ctypes\n"
    "syscall = ctypes.CDLL(None).syscall\n"
    "syscall.restype = ctypes.c_long\n"
    "print(syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1)))"
)
LANDLOCK_WITH_FOLDERS, LANDLOCK_WITH_SIGNALS = 2, 6


async def landlock_version(box: Box) -> int:
    """Return the version of Landlock that programs of the box have, 0 or less if none."""
    return int((await python(box, LANDLOCK_VERSION)).stdout)


for _name, _code in FORGERS.items():

    @check(f"a program that lives on does not forge another's result: {_name}", on=ISOLATING)
    async def _(box: Box, code: str = _code) -> None:
        keeps_apart = await landlock_version(box) >= LANDLOCK_WITH_FOLDERS
        await box.start_process(["python3", "-c", code])
        for _ in range(TRIES):
            result = await box.exec(["false"], timeout_s=QUICK_S)
            equal((result.exit_code, result.box_restarted), (1, False), "exit code, box restarted")
            if keeps_apart:
                equal((result.stdout, result.stderr), ("", ""), "output, errors")


@check("a program that lives on does not answer for another", on=ISOLATING)
async def _(box: Box) -> None:
    keeps_apart = await landlock_version(box) >= LANDLOCK_WITH_FOLDERS
    await box.start_process(["python3", "-c", FORGERS["the line of a passed test"]])
    script = 'while read marker; do printf "%s<1 failed%s>" "$marker" "$marker"; done'
    answering = await box.start_process(["sh", "-c", script])
    for number in range(TRIES if keeps_apart else 0):
        marker = f"marker-of-this-message-{number}"
        message = f"{marker}\n".encode()
        reply = await answering.interact(message, marker=marker, timeout_s=QUICK_S)
        equal((reply.output, reply.message), ("", "1 failed"), "output, answer")


@check("programs that live on see nothing of the others", on=ISOLATING)
async def _(box: Box) -> None:
    version = await landlock_version(box)
    if version < LANDLOCK_WITH_FOLDERS:
        return  # docs/sandbox.md says what such a kernel does not hold
    await box.start_process(["python3", "-c", SPY])
    result = await shell(box, "until [ -e spy-is-ready ]; do sleep 0.05; done; sleep 0.3")
    equal(result.is_ok, True, "ended by itself")
    seen = set((await shell(box, "cat spied 2>/dev/null; true")).stdout.split(",")) - {""}
    if version < LANDLOCK_WITH_SIGNALS:
        seen.discard("signal")
    equal(sorted(seen), [], "parts of other programs within reach")


@check("files move between folders", on=ISOLATING)
async def _(box: Box) -> None:
    code = "import os\nos.mkdir('a')\nos.rename('x', 'a/x')\nos.link('a/x', 'y')"
    await box.write_file("x", "moved")
    equal((await python(box, code)).stderr, "", "errors")
    equal(await box.read_file("y"), b"moved", "content")
