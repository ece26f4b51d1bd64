"""The host's end of a supervisor: bytes out, bytes in, and how it is ended.

`ProcessChannel` speaks to a child process, `InnerProcessChannel` to one inside the process
namespace of a child. The channel to a container is in `agentgym.sandbox.backends.docker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Protocol

from agentgym.errors import InfrastructureError
from agentgym.sandbox.supervised.wire import whole_characters

KILL_WAIT_S = 5.0
DIAGNOSIS_BYTES = 4096


class BoxLostError(InfrastructureError):
    """The supervisor is gone, or does not answer."""


class Channel(Protocol):
    """The host's end of a supervisor: requests go out, answers come in."""

    async def send(self, data: bytes) -> None:
        """Write all bytes; BoxLostError if the other end is gone."""
        ...

    async def receive(self, count: int) -> bytes:
        """Return exactly `count` bytes; BoxLostError if the other end is gone."""
        ...

    async def kill(self) -> None:
        """End the supervisor, and with it everything in the box, and wait until it is gone."""
        ...

    def diagnosis(self) -> str:
        """Return what the supervisor wrote to standard error, if anything."""
        ...


class ProcessChannel:
    """A supervisor that is a child process of the host."""

    def __init__(self, process: asyncio.subprocess.Process, diagnosis: int) -> None:
        self._process = process
        self._diagnosis = diagnosis
        self._text = ""

    async def send(self, data: bytes) -> None:
        """Write all bytes."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(data)
            await stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise BoxLostError("the supervisor is gone") from error

    async def receive(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        stdout = self._process.stdout
        assert stdout is not None
        try:
            return await stdout.readexactly(count)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BoxLostError("the supervisor has ended") from error

    async def kill(self) -> None:
        """Close the supervisor's input, upon which it clears up and ends; else kill it."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            self._press()
            try:
                async with asyncio.timeout(KILL_WAIT_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._text = self.diagnosis()
        if self._diagnosis >= 0:
            os.close(self._diagnosis)
            self._diagnosis = -1

    def _press(self) -> None:
        """Make the supervisor end at once, where there is a way that leaves nothing behind."""

    def diagnosis(self) -> str:
        """Return what was written to standard error."""
        if self._diagnosis < 0:
            return self._text
        text = os.pread(self._diagnosis, DIAGNOSIS_BYTES, 0)
        return whole_characters(text, is_head=True).decode("utf-8", "replace").strip()


class InnerProcessChannel(ProcessChannel):
    """A supervisor that is process 1 of a namespace, below the child process that made it."""

    def _press(self) -> None:
        # With process 1 the kernel kills all of its namespace; the child then reaps it and ends.
        pid = self._process.pid
        for inner in _children(pid) or [pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(inner, signal.SIGKILL)


def memory_file(data: bytes) -> int:
    """Return a descriptor of an anonymous file that holds `data`, to be read from its start."""
    descriptor = os.memfd_create("agentgym-box")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]
