"""The checks of files, long-running programs, resets and closing that `check_sandbox` runs."""

from __future__ import annotations

import time
from typing import Any

from agentgym.checks.sandbox import (
    CLOSED,
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

PING_S = 3.0
"""A ping must be answered in this time, on a loaded machine."""


# ---------------------------------------------------------------------------------- files


@check("a file comes back as it was")
async def _(box: Box) -> None:
    data = bytes(range(256)) * 1000
    await box.write_file("data.bin", data)
    expect(await box.read_file("data.bin") == data, "other bytes came back")


@check("programs and host see the same files")
async def _(box: Box) -> None:
    await box.write_file("to/box.txt", "from host")
    await shell(box, "cat to/box.txt > to/host.txt; echo ' and box' >> to/host.txt")
    equal(await box.read_file("to/host.txt"), b"from host and box\n", "content")


@check("a file is replaced")
async def _(box: Box) -> None:
    await box.write_file("f", "long content")
    await box.write_file("f", "short")
    equal(await box.read_file("f"), b"short", "content")


@check("the execute bit is set")
async def _(box: Box) -> None:
    await box.write_file("run", "#!/bin/sh\necho ran\n", is_executable=True)
    equal((await box.exec(["./run"])).stdout, "ran\n", "output")


@check("unusable paths are refused")
async def _(box: Box) -> None:
    await shell(box, "mkdir folder; mkfifo pipe")
    for path in ("missing", "folder", "pipe", "../x", "/etc/passwd", "a/../../x", ""):
        async with refused(OSError, f"read {path!r}"):
            await box.read_file(path)
    for path in ("folder", "../x", "/tmp/x", ""):
        async with refused(OSError, f"write {path!r}"):
            await box.write_file(path, "x")


@check("a file beyond the bound is refused")
async def _(box: Box) -> None:
    await box.write_file("f", b"12345")
    equal(await box.read_file("f", max_bytes=5), b"12345", "content")
    async with refused(OSError, "read 5 bytes with a bound of 4"):
        await box.read_file("f", max_bytes=4)


@check("reading follows no link")
async def _(box: Box) -> None:
    await shell(box, "ln -s /etc/passwd file; ln -s /etc folder; echo x > real; ln -s real near")
    for path in ("file", "folder/passwd", "near"):
        async with refused(OSError, f"read through the link {path!r}"):
            await box.read_file(path)


@check("writing follows no link")
async def _(box: Box) -> None:
    await shell(box, "echo keep > target; ln -s target link; mkdir d; ln -s d folder")
    await box.write_file("link", "new")
    equal(await box.read_file("target"), b"keep\n", "target of the link")
    async with refused(OSError, "write through a linked folder"):
        await box.write_file("folder/x", "x")


@check("an endless file is refused")
async def _(box: Box) -> None:
    await shell(box, "truncate -s 1T huge || truncate -s 50M huge")
    async with refused(OSError, "read a huge sparse file"):
        await box.read_file("huge", max_bytes=1_000_000)


# ------------------------------------------------------- long-running programs and resets

ECHO = (
    "import sys\n"
    "for n, line in enumerate(sys.stdin):\n"
    "    marker, word = line.split()\n"
    "    print(f'turn {n}', flush=True)\n"
    "    print(f'{marker}<{word}{marker}>', end='', flush=True)\n"
    "    if word == 'hang': import time; time.sleep(300)\n"
)
MARKER = "m" * 16


async def talk(process: Any, word: str, *, marker: str = MARKER, timeout_s: float = 10) -> Any:
    """Send a word to the echo program; return its reply."""
    message = f"{marker} {word}\n".encode()
    return await process.interact(message, marker=marker, timeout_s=timeout_s)


@check("a process lives from message to message")
async def _(box: Box) -> None:
    process = await box.start_process(["python3", "-c", ECHO])
    first, second = await talk(process, "a"), await talk(process, "b")
    equal([(r.output, r.message) for r in (first, second)], [("turn 0\n", "a"), ("turn 1\n", "b")],
          "answers")  # fmt: skip
    await process.stop()
    expect(not process.is_alive, "alive after stop")


@check("a process lives beside other programs")
async def _(box: Box) -> None:
    process = await box.start_process(["python3", "-c", ECHO])
    await talk(process, "a")
    await shell(box, "sleep 4714 & echo x")
    equal((await talk(process, "b")).message, "b", "answer after another program")
    equal(await count_running(box, "4714"), 0, "sleepers left")


@check("a process without an answer is killed")
async def _(box: Box) -> None:
    process = await box.start_process(["python3", "-c", ECHO])
    await talk(process, "hang")
    reply = await talk(process, "b", marker="n" * 16, timeout_s=0.5)
    expect(reply.timed_out and reply.message is None and not process.is_alive, f"got {reply!r}")
    async with refused(SandboxError, "a message to a dead process"):
        await talk(process, "c")


@check("a process that ends says how")
async def _(box: Box) -> None:
    process = await box.start_process(["sh", "-c", "read x; echo bye; exit 3"])
    reply = await talk(process, "a")
    equal((reply.output, reply.message, reply.exit_code), ("bye\n", None, 3), "reply")


@check("a reset removes every file")
async def _(box: Box) -> None:
    await shell(
        box,
        "echo x > file; echo x > .hidden; mkdir -p a/b/c; echo x > a/b/c/f; ln -s / link; "
        "mkfifo pipe; mkdir locked; echo x > locked/f; chmod 000 locked a/b; chmod 500 a; "
        "echo x > $TMPDIR/t; chmod 000 .",
    )
    await box.reset()
    listed = await shell(box, f"ls -A {box.work_dir}; ls -A $TMPDIR")
    equal((listed.exit_code, listed.stdout), (0, ""), "listing")


@check("a reset removes deep folders")
async def _(box: Box) -> None:
    code = "import os\nfor n in range(1200):\n    os.mkdir('d' * 50); os.chdir('d' * 50)"
    await python(box, code)
    await box.reset()
    equal((await box.exec(["ls", "-A"])).stdout, "", "listing")


@check("a reset ends every process")
async def _(box: Box) -> None:
    process = await box.start_process(["python3", "-c", ECHO])
    await talk(process, "a")
    await box.reset()
    expect(not process.is_alive, "the process is said to live")
    async with refused(SandboxError, "a message across a reset"):
        await talk(process, "b")


@check("it answers a ping")
async def _(box: Box) -> None:
    began = time.monotonic()
    await box.ping()
    expect(time.monotonic() - began < PING_S, "slow")


@check("starting twice is no error")
async def _(box: Box) -> None:
    await box.start()
    equal((await box.exec(["echo", "x"])).stdout, "x\n", "output")


@check("closing twice is no error", on=CLOSED)
async def _(box: Box) -> None:
    await box.aclose()
    await box.aclose()


@check("a closed box refuses programs", on=CLOSED)
async def _(box: Box) -> None:
    async with refused(SandboxError, "exec in a closed box"):
        await box.exec(["true"])
