"""A pool of processes that compare formulas, each killed and replaced when it takes too long.

No signals: the wait is a poll on a pipe, so that it works from any thread and under asyncio's
executors. A process serves one request at a time; callers wait for a free one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from enum import StrEnum

from agentgym.errors import InfrastructureError, MissingExtraError

_MODULE = "agentgym.envs.math.symbolic_worker"
_START_TIMEOUT_S = 120.0
"""Importing sympy takes a second alone, and much longer on a crowded machine."""
_ATTEMPTS = 2
"""A process that was gone before it was asked (the system's doing) is replaced this often."""


class Verdict(StrEnum):
    """What the symbolic judge found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    READABLE = "readable"
    BAD_GOLD = "bad_gold"
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """What a pool has done so far, for tests and reports."""

    started: int
    """Processes started."""
    killed: int
    """Of these, killed for taking too long or dying."""


class SymbolicJudge:
    """Compares formulas in other processes.

    Args:
        size: Processes at most; each is started when it is first needed.
        timeout_s: Time of one comparison, in seconds.
    """

    def __init__(self, *, size: int = 2, timeout_s: float = 5.0) -> None:
        if size < 1:
            raise ValueError(f"'size' must be >= 1 (got {size!r})")
        if timeout_s <= 0:
            raise ValueError(f"'timeout_s' must be > 0 (got {timeout_s!r})")
        self._size = size
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy = 0
        self._started = 0
        self._killed = 0
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def status(self) -> PoolStatus:
        """How many processes were started and killed."""
        return PoolStatus(started=self._started, killed=self._killed)

    def judge(self, *, gold: str, answer: str | None) -> Verdict:
        """Return whether two formulas are equal; for no answer, whether the gold can be read.

        Raises:
            InfrastructureError: If no process can be started.
            MissingExtraError: If math-verify is not installed.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("comparing formulas", extra="math")
        request = json.dumps({"gold": gold, "answer": answer, "limit_s": self._timeout_s}) + "\n"
        for _ in range(_ATTEMPTS):
            verdict = self._ask(request)
            if verdict is not None:
                return verdict
        raise InfrastructureError(f"{_MODULE} ended {_ATTEMPTS} times before it could be asked")

    def close(self) -> None:
        """End every process. May be called more than once; a later call of `judge` starts anew."""
        with self._condition:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.kill()

    def _ask(self, request: str) -> Verdict | None:
        worker = self._take()
        verdict: Verdict | None = None
        is_fit = False
        try:
            verdict = worker.ask(request, self._timeout_s)
            is_fit = verdict not in {None, Verdict.TIMEOUT, Verdict.TOO_LARGE}
        finally:
            # Whatever happened, a KeyboardInterrupt included, a process in doubt is not used again.
            self._give_back(worker, is_fit=is_fit)
        return verdict

    def _take(self) -> _Worker:
        with self._condition:
            self._forget_after_fork()
            self._condition.wait_for(lambda: self._idle or self._busy < self._size)
            self._busy += 1
            if self._idle:
                return self._idle.pop()
            self._started += 1
        try:
            return _Worker()
        except BaseException:
            self._give_back(None, is_fit=False)
            raise

    def _give_back(self, worker: _Worker | None, *, is_fit: bool) -> None:
        if worker is not None and not is_fit:
            worker.kill()
        with self._condition:
            self._busy -= 1
            self._killed += not is_fit
            if worker is not None and is_fit:
                self._idle.append(worker)
            self._condition.notify()

    def _forget_after_fork(self) -> None:
        """A forked child must not talk to its parent's processes."""
        if self._pid != os.getpid():
            self._pid, self._idle, self._busy = os.getpid(), [], 0


class _Worker:
    """One process and the pipes to it. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C ends the run, which closes the pool; the processes do not print tracebacks.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._rest = b""
        try:
            line = self._read_line(_START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        if not line:
            self.kill()
            raise InfrastructureError(f"{_MODULE} did not start within {_START_TIMEOUT_S:g} s")

    def ask(self, request: str, timeout_s: float) -> Verdict | None:
        """Return the verdict; None if the process was gone before it could be asked."""
        try:
            self._stdin.write(request.encode())
            self._stdin.flush()
        except OSError:
            return None
        line = self._read_line(timeout_s)
        if line is None:
            return Verdict.TIMEOUT
        # An empty line: it died at work, of its bound on memory or processor time.
        return Verdict(json.loads(line)["verdict"]) if line else Verdict.TOO_LARGE

    def kill(self) -> None:
        """End the process and reap it."""
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.kill()
        self._process.wait()

    def _read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, empty at the end of the stream; None if the time is up."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = os.read(self._stdout.fileno(), 65536)
                if not chunk:
                    return b""
                self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line


_default_lock = threading.Lock()
_default: list[SymbolicJudge] = []


def default_judge() -> SymbolicJudge:
    """Return the judge that all environments of this process share."""
    with _default_lock:
        if not _default:
            _default.append(SymbolicJudge())
            atexit.register(_default[0].close)
        return _default[0]
