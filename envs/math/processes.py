"""A pool of processes that answer JSON lines, each killed and replaced when it takes too long.

For work in libraries that can hang or eat the memory. No signals: the wait is a poll on a pipe, so
that it works from any thread and under asyncio's executors. A process serves one request at a time;
callers wait for a free one. A module that runs in a pool calls `serve`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

from agentgym.errors import InfrastructureError

_START_TIMEOUT_S = 120.0
"""Importing sympy takes a second alone, and much longer on a crowded machine."""
_ATTEMPTS = 3
"""Processes asked where one was gone before it could be (the system's doing)."""
_SPARE_CPU_S = 2
_CROWDED = 10.0
"""Time by the clock at most, in limits: what waits for a processor is not cut off before."""
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_MEMORY_BYTES = 2 * 1024**3


class Ending(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    TIMEOUT = "timeout"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request.

    Example:
        Outcome(ending=Ending.ANSWERED, reply={"verdict": "equal"})
    """

    ending: Ending
    """Whether there is a reply."""
    reply: Mapping[str, Any]
    """The JSON object that came back; empty if none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """What a pool has done so far, for tests and reports."""

    started: int
    """Processes started."""
    killed: int
    """Of these, killed for taking too long or dying."""


class ProcessPool:
    """Processes of one module, started when they are first needed.

    Args:
        module: Run as `python -m module`; it calls `serve`.
        size: Processes at most.
        timeout_s: Processor time of one request, in seconds, so that a crowded machine changes no
            result; ten times that by the clock. Where processor time cannot be read, by the clock.
    """

    def __init__(self, module: str, *, size: int, timeout_s: float) -> None:
        if size < 1:
            raise ValueError(f"'size' must be >= 1 (got {size!r})")
        if timeout_s <= 0:
            raise ValueError(f"'timeout_s' must be > 0 (got {timeout_s!r})")
        self._module = module
        self._size = size
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._idle: list[_Process] = []
        self._busy = 0
        self._started = 0
        self._killed = 0
        self._pid = os.getpid()

    @property
    def status(self) -> PoolStatus:
        """How many processes were started and killed."""
        return PoolStatus(started=self._started, killed=self._killed)

    def ask(self, request: Mapping[str, Any], *, timeout_s: float | None = None) -> Outcome:
        """Return what became of a request, within its time once a process is free.

        Args:
            request: A JSON object.
            timeout_s: Limit of this request, in seconds; the pool's unless given.

        Raises:
            InfrastructureError: If no process can be started.
        """
        limit_s = timeout_s or self._timeout_s
        line = json.dumps({**request, "limit_s": limit_s}) + "\n"
        for _ in range(_ATTEMPTS):
            outcome = self._ask(line, limit_s)
            if outcome is not None:
                return outcome
        raise InfrastructureError(f"{self._module} ended {_ATTEMPTS} times before it was asked")

    def close(self) -> None:
        """End every idle process. May be called more than once; a later request starts anew."""
        with self._condition:
            processes, self._idle = self._idle, []
        for process in processes:
            process.kill()

    def _ask(self, line: str, limit_s: float) -> Outcome | None:
        process = self._take()
        outcome: Outcome | None = None
        try:
            outcome = process.ask(line, limit_s)
        finally:
            # Whatever happened, a KeyboardInterrupt included, a process in doubt is not used again.
            is_fit = outcome is not None and outcome.ending is Ending.ANSWERED
            self._give_back(process, is_fit=is_fit)
        return outcome

    def _take(self) -> _Process:
        with self._condition:
            self._forget_after_fork()
            self._condition.wait_for(lambda: self._idle or self._busy < self._size)
            self._busy += 1
            if self._idle:
                return self._idle.pop()
            self._started += 1
        try:
            return _Process(self._module)
        except BaseException:
            self._give_back(None, is_fit=False)
            raise

    def _give_back(self, process: _Process | None, *, is_fit: bool) -> None:
        if process is not None and not is_fit:
            process.kill()
        with self._condition:
            self._busy -= 1
            self._killed += not is_fit
            if process is not None and is_fit:
                self._idle.append(process)
            self._condition.notify()

    def _forget_after_fork(self) -> None:
        """A forked child must not talk to its parent's processes."""
        if self._pid != os.getpid():
            for process in self._idle:
                process.forget()
            self._pid, self._idle, self._busy = os.getpid(), [], 0


class _Process:
    """One process and the pipes to it. Used by one thread at a time.

    It works in an empty folder of its own, which goes with it: libraries whose data are programs
    (reasoning-gym's `codeio`) write files where they stand.
    """

    def __init__(self, module: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="agentgym-")
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                cwd=self._folder,
                # Ctrl-C ends the run, which closes the pool; nothing of it is shown.
                start_new_session=True,
            )
            self._wait_until_ready(module, errors)

    def _wait_until_ready(self, module: str, errors: IO[bytes]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._rest = b""
        self._cpu_before: float | None = None
        try:
            line = self._read_line(_START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        if not line:
            self.kill()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
            late = f"did not start within {_START_TIMEOUT_S:g} s"
            what = late if line is None else "ended before it was ready"
            raise InfrastructureError(": ".join([f"{module} {what}", *said[-1:]]))

    def ask(self, line: str, timeout_s: float) -> Outcome | None:
        """Return the outcome; None if the process was gone before it could be asked."""
        self._cpu_before = self._cpu_s()
        try:
            self._stdin.write(line.encode())
            self._stdin.flush()
        except OSError:
            return None
        reply = self._wait(timeout_s)
        if reply is None:
            return Outcome(ending=Ending.TIMEOUT, reply={})
        # The end of the stream: it died at work, of its bound on memory or processor time.
        return (
            Outcome(ending=Ending.ANSWERED, reply=json.loads(reply))
            if reply
            else Outcome(ending=Ending.DIED, reply={})
        )

    def kill(self) -> None:
        """End the process and reap it."""
        self._close_pipes()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Close this side of the pipes, in a child of the process that owns the other."""
        self._close_pipes()

    def _close_pipes(self) -> None:
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                stream.close()

    def _wait(self, limit_s: float) -> bytes | None:
        """Return the reply line; None once the limit on processor time or the clock is reached."""
        deadline = time.monotonic() + limit_s * _CROWDED
        left = limit_s
        while True:
            reply = self._read_line(left)
            now = self._cpu_s()
            if reply is not None or now is None or self._cpu_before is None:
                return reply
            left = min(limit_s - (now - self._cpu_before), deadline - time.monotonic())
            if left <= 0:
                return None

    def _cpu_s(self) -> float | None:
        """Return the processor time used so far, in seconds; None where it cannot be read."""
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        user, system = fields[11:13]
        return (int(user) + int(system)) / _CLOCK_TICKS

    def _read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, empty at the end of the stream; None if the time is up."""
        deadline = time.monotonic() + timeout_s
        chunks, self._rest = [self._rest], b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in chunks[-1]:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self._rest = b"".join(chunks)
                    return None
                chunks.append(os.read(self._stdout.fileno(), 65536))
                if not chunks[-1]:
                    return b""
        line, self._rest = b"".join(chunks).split(b"\n", 1)
        return line


def _environment() -> dict[str, str]:
    """Return what a process needs and no secret; sets have the same order in each."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    # Modules are found where this process finds them, and never in the working folder by chance.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {**found, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def serve(
    answer: Callable[[dict[str, Any]], Mapping[str, Any]], *, prepare: Callable[[], Any]
) -> None:
    """Answer requests from standard input until it ends. For the modules that run in a pool.

    Args:
        answer: request -> reply, both JSON objects.
        prepare: Does what is slow, such as imports, before the first request.
    """
    # Replies go to the original standard output only; libraries that print cannot disturb it.
    channel, sys.stdout = sys.stdout, sys.stderr
    prepare()
    # Until here its errors say why it did not start; from here on nobody reads them.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    _say(channel, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _bound_processor_time(float(request["limit_s"]))
        _say(channel, answer(request))


def _bound_processor_time(limit_s: float) -> None:
    """Let the kernel end this process if whoever started it is gone and nobody else does."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + limit_s) + _SPARE_CPU_S
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _say(channel: Any, message: Mapping[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()
