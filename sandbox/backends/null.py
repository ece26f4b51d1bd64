"""`NullSandbox`: a box that runs nothing and answers what it was told to, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from agentgym.errors import SandboxError
from agentgym.sandbox.base import (
    MIB,
    ExecResult,
    Process,
    Sandbox,
    SandboxFileError,
    SandboxLimits,
)


class NullSandbox(Sandbox):
    """Keeps files in a dictionary; programs are a function of their arguments."""

    name: ClassVar[str] = "null"

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        run: Callable[[Sequence[str]], ExecResult] | None = None,
        start_error: Exception | None = None,
        reset_error: Exception | None = None,
        close_error: Exception | None = None,
    ) -> None:
        """Say what the box does.

        Args:
            limits: Kept, not held.
            run: argv -> result; by default every program ends at once, without output.
            start_error: Raised by `start`.
            reset_error: Raised by `reset`.
            close_error: Raised by `aclose`, after closing.
        """
        super().__init__(limits)
        self.work_dir = "/box"
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, ...]] = []
        self.is_started = False
        self.is_closed = False
        self.close_calls = 0
        self._run = run or (lambda argv: ExecResult(exit_code=0, stdout="", stderr=""))
        self._errors = {"start": start_error, "reset": reset_error, "close": close_error}

    def _raise(self, moment: str) -> None:
        error = self._errors[moment]
        if error is not None:
            raise error

    @override
    async def start(self) -> None:
        self._raise("start")
        self.is_started = True

    @override
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
        if self.is_closed:
            raise SandboxError("the null box is closed; make a new one")
        self.calls.append(tuple(argv))
        return self._run(argv)

    @override
    async def read_file(self, path: str, *, max_bytes: int = 16 * MIB) -> bytes:
        if path not in self.files:
            raise SandboxFileError(f"cannot use the file {path!r}: there is none")
        return self.files[path]

    @override
    async def write_file(
        self, path: str, data: bytes | str, *, is_executable: bool = False
    ) -> None:
        self.files[path] = data.encode() if isinstance(data, str) else bytes(data)

    @override
    async def start_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "."
    ) -> Process:
        raise SandboxError("the null box runs no programs that stay alive")

    @override
    async def reset(self) -> None:
        self._raise("reset")
        self.files.clear()

    @override
    async def ping(self) -> None:
        if self.is_closed:
            raise SandboxError("the null box is closed; make a new one")

    @override
    async def aclose(self) -> None:
        self.close_calls += 1
        self.is_closed = True
        self._raise("close")
