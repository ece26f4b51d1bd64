"""The contract of a sandbox: `Sandbox`, what it is bounded by, and what it returns.

In order: the bounds (`SandboxLimits`), the results (`ExecResult`, `Reply`), the errors, and the two
abstract classes `Process` and `Sandbox`. How boxes are built is in the modules of the backends.

Three outcomes are kept apart everywhere:

* the program failed (bad exit code, time-out, out of memory): that is an `ExecResult`, data;
* the caller asked for something that no box can do: `SandboxError`;
* the box itself was lost through no doing of the program: `InfrastructureError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from agentgym.errors import SandboxError

MIB = 1024 * 1024
EXIT_CANNOT_START = 126
"""Exit code of a program that could not be started (not executable, no process left)."""
EXIT_NOT_FOUND = 127
"""Exit code of a program that does not exist, as in a shell."""
EXIT_SIGNAL_BASE = 128
"""A program ended by signal n has exit code 128 + n, as in a shell."""


class SandboxFileError(SandboxError, OSError):
    """A file in the box cannot be read or written as asked: missing, a link, a folder, too long."""


class SandboxUnavailableError(SandboxError):
    """This machine has no usable sandbox of the kind that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds of one box and of the programs in it.

    Which of them a backend can hold on this machine is said by `agentgym doctor`.

    Example:
        SandboxLimits(memory_bytes=256 * MIB, max_processes=32, timeout_s=5.0)
    """

    memory_bytes: int = 512 * MIB
    """Memory of all programs of the box together; of each program where only rlimits exist."""
    disk_bytes: int = 64 * MIB
    """All that the work folder may hold; a quarter more in each scratch folder."""
    max_processes: int = 64
    """Processes and threads alive at one time."""
    cpu_cores: float = 1.0
    """Share of the machine's cores; held only where control groups exist."""
    timeout_s: float = 10.0
    """Wall time of one program where the call names none."""
    output_limit_bytes: int = 64 * 1024
    """Bytes kept of each of standard output and standard error where the call names no limit."""
    max_open_files: int = 256
    """File descriptors of one process."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise SandboxError(f"'{name}' must be > 0 (got {value!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    r"""What became of one program.

    Example:
        `python3 -c "print(1)"` gives
        ExecResult(exit_code=0, stdout="1\n", stderr="", wall_s=0.02, cpu_s=0.02)
    """

    exit_code: int
    """0 to 255 as the program said; 128 + n if signal n ended it; 127 if it does not exist."""
    stdout: str
    """Standard output as UTF-8, bad bytes replaced; head and tail if beyond the limit."""
    stderr: str
    """Standard error, likewise."""
    stdout_truncated: bool = False
    """True if `stdout` lacks bytes; a line in its middle says how many."""
    stderr_truncated: bool = False
    """True if `stderr` lacks bytes."""
    timed_out: bool = False
    """True if the program was killed at the time limit; the output up to then is kept."""
    out_of_memory: bool = False
    """True if the kernel killed a program of the box for memory. Where only rlimits exist programs
    see failing allocations instead, and this stays False."""
    box_restarted: bool = False
    """True if the program made the box unusable, so that it was replaced by an empty one: files and
    processes of before are gone."""
    wall_s: float = 0.0
    """Seconds from start to end."""
    cpu_s: float = 0.0
    """Seconds of processor time, of the program and of all its descendants."""

    @property
    def is_ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def observation(self) -> str:
        """Return the result as text for an agent: output, then what went wrong, if anything."""
        parts = [part.rstrip("\n") for part in (self.stdout, self.stderr) if part.strip()]
        if self.timed_out:
            parts.append(f"[time limit reached after {self.wall_s:.1f} s; the program was stopped]")
        elif self.out_of_memory:
            parts.append("[out of memory; the program was stopped]")
        elif self.exit_code != 0:
            parts.append(f"[exit code {self.exit_code}]")
        if self.box_restarted:
            parts.append("[the sandbox was restarted; earlier files and state are gone]")
        return "\n".join(parts) if parts else "[no output]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a long-running program of a box answered to one message."""

    output: str
    """What it wrote before its answer, both streams together; cut like `ExecResult.stdout`."""
    output_truncated: bool = False
    """True if `output` lacks bytes."""
    message: str | None = None
    """Its answer between the markers; None if it ended, was stopped, or the answer was too long."""
    timed_out: bool = False
    """True if no answer came in time; the program was killed."""
    out_of_memory: bool = False
    """True if the kernel killed a program of the box for memory."""
    exit_code: int | None = None
    """How the program ended; None while it lives."""
    wall_s: float = 0.0
    """Seconds from message to answer."""
    cpu_s: float = 0.0
    """Processor seconds of the programs of the box that ended meanwhile."""


class Process(ABC):
    """A program that lives in a box over many messages, such as a Python session."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the program was alive when last heard of."""

    @abstractmethod
    async def interact(
        self, message: bytes, *, marker: str, timeout_s: float, output_limit: int | None = None
    ) -> Reply:
        """Send `message` to its standard input and return what it writes up to its answer.

        The answer is text which the program writes as ``marker + "<" + answer + marker + ">"`` to
        standard output. The marker should be random for each message, so that a late answer to an
        earlier message cannot pass for this one.

        Args:
            message: Bytes for standard input; it stays open.
            marker: 16 to 64 ASCII characters.
            timeout_s: Seconds to wait; then the program and all that it started is killed, and
                the reply says so. That is not an error.
            output_limit: Bytes kept of the output before the answer.

        Raises:
            SandboxError: If the program has ended already.
            InfrastructureError: If the box was lost.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Kill the program and all that it started. Stopping twice is no error."""


class Sandbox(ABC):
    """One box: a place with a work folder, in which programs are run one after another.

    A box serves one call at a time; concurrent calls wait for each other. Nothing that a program
    does inside can raise here: what it did is in the result. After each `exec` every process that
    it left behind is killed; only programs begun with `start_process` live on.

    Use as ``async with BubblewrapSandbox() as box: …``.
    """

    name: ClassVar[str]
    """Name of the backend, as in `--sandbox NAME`."""
    isolates: ClassVar[bool] = True
    """False if programs run with the rights of the host process."""
    work_dir: str
    """Absolute path of the work folder as the programs in the box see it."""
    limits: SandboxLimits

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()

    @abstractmethod
    async def start(self) -> None:
        """Bring the box up. Starting twice is no error.

        Raises:
            SandboxUnavailableError: If this machine cannot run such a box; says what to install.
            InfrastructureError: If it can, but this start failed.
        """

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float | None = None,
        output_limit: int | None = None,
    ) -> ExecResult:
        """Run a program to its end and return what became of it.

        Args:
            argv: Program and arguments; no shell is involved.
            stdin: Standard input, closed after the last byte. Text is sent as UTF-8.
            env: Variables added to the box's own few (PATH, HOME, LANG, TMPDIR). Nothing of the
                host's environment is passed on.
            cwd: Folder to run in, relative to the work folder.
            timeout_s: Wall seconds, > 0; the box's own limit by default. Then the program and all
                its descendants are killed, whatever they caught or daemonised.
            output_limit: Bytes kept of each stream, > 0: first half and last half.

        Not an error: any exit code, death by signal, a time-out, memory or disk exhausted, no such
        program, output cut, invalid UTF-8.

        Raises:
            SandboxError: If an argument is malformed, or the box is closed.
            InfrastructureError: If the box died through no doing of the program.
        """

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 16 * MIB) -> bytes:
        """Return the content of a regular file of the work folder.

        Args:
            path: Relative to the work folder. Links are not followed, in any part of the path.
            max_bytes: Longest content that is returned.

        Raises:
            SandboxFileError: If there is no such regular file below the work folder, or it is
                longer than `max_bytes`.
            InfrastructureError: If the box was lost.
        """

    @abstractmethod
    async def write_file(
        self, path: str, data: bytes | str, *, is_executable: bool = False
    ) -> None:
        """Write a regular file of the work folder, replacing what is there.

        Args:
            path: Relative to the work folder; missing folders are made. Links are not followed:
                one in the last place is replaced, one before it is refused.
            data: Content; text is written as UTF-8.
            is_executable: Whether to set the execute bits.

        Raises:
            SandboxFileError: If a part of the path is no folder, or the box's disk is full.
            InfrastructureError: If the box was lost.
        """

    @abstractmethod
    async def start_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "."
    ) -> Process:
        """Start a program that stays alive between calls.

        Raises:
            SandboxError: If it cannot be started.
            InfrastructureError: If the box was lost.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Make the box as new: no process, no file, no changed setting of before.

        Raises:
            InfrastructureError: If neither cleaning nor replacing it works.
        """

    @abstractmethod
    async def ping(self) -> None:
        """Return if the box answers.

        Raises:
            InfrastructureError: If it does not within a few seconds.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Kill everything in the box and free what it holds. Closing twice is no error."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
