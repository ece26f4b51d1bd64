"""`SupervisedSandbox`: the contract of `agentgym.sandbox.base`, kept by the supervisor in the box.

A backend says how a supervisor is started (`_launch`) and what the host must free afterwards; all
else is here, once: requests, time limits, what a lost box means, and restarting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from agentgym.errors import InfrastructureError, SandboxError
from agentgym.sandbox.base import (
    MIB,
    ExecResult,
    Process,
    Reply,
    Sandbox,
    SandboxLimits,
)
from agentgym.sandbox.supervised.bootstrap import supervisor_source
from agentgym.sandbox.supervised.transport import BoxLostError, Channel
from agentgym.sandbox.supervised.wire import (
    KILLED,
    Answer,
    check_file,
    exec_result,
    frame,
    joined,
    lost_answer,
    path_parts,
    positive,
)

START_TIMEOUT_S = 30.0
"""A supervisor says hello within milliseconds; a loaded engine may take seconds to start it."""
GRACE_S = 10.0
"""Time beyond a program's limit in which the supervisor must have killed it and answered."""
PING_TIMEOUT_S = 5.0
RESET_TIMEOUT_S = 3.0
"""Emptying the folders may take this long; after that replacing the box is quicker."""
BOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SupervisedSandbox(Sandbox):
    """A box whose first program is our supervisor."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        super().__init__(limits)
        self.work_dir = "/box"
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._is_started = False
        self._is_out_of_step = False
        self._generation = 0

    # -- what a backend says -----------------------------------------------------------------

    @abstractmethod
    async def _launch(self) -> Channel:
        """Start a supervisor and return the host's end of it."""

    async def _release(self) -> None:
        """Free what the host holds for the present supervisor; called after it has ended."""

    def _memory_kills(self) -> int:
        """Return the kernel's count of kills for memory in this box, where the host sees it."""
        return 0

    def _rlimits(self) -> dict[str, int]:
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.limits.disk_bytes,
            "RLIMIT_NOFILE": self.limits.max_open_files,
        }

    def _scratch_dirs(self) -> tuple[str, ...]:
        """Return the folders beside the work folder that programs can write to."""
        return ("/tmp", "/dev/shm")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": BOX_PATH,
            "HOME": self.work_dir,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    # -- life --------------------------------------------------------------------------------

    @override
    async def start(self) -> None:
        async with self._lock:
            self._check_open()
            if self._channel is None:
                await self._bring_up()
            self._is_started = True

    @override
    async def aclose(self) -> None:
        self._is_closed = True
        await asyncio.shield(self._take_down())

    @override
    async def reset(self) -> None:
        async with self._lock:
            self._check_open()
            await self._ensure_up()
            try:
                answer = await self._request(
                    {"op": "reset", "timeout_s": RESET_TIMEOUT_S}, b"", RESET_TIMEOUT_S + GRACE_S
                )
                is_clean = answer.header.get("why") == "" and "refused" not in answer.header
            except BoxLostError:
                is_clean = False
            self._generation += 1
            if not is_clean:
                await self._restart()

    @override
    async def ping(self) -> None:
        async with self._lock:
            self._check_open()
            if self._channel is None:
                raise BoxLostError(f"the {self.name} box is down")
            await self._request({"op": "ping"}, b"", PING_TIMEOUT_S)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"the {self.name} box is closed; make a new one")

    async def _bring_up(self) -> None:
        self._is_out_of_step = False
        self._channel = await self._launch()
        try:
            await self._send_supervisor(self._channel)
            await self._receive(START_TIMEOUT_S)
        except BoxLostError as error:
            diagnosis = self._channel.diagnosis()
            await self._take_down()
            raise InfrastructureError(
                f"a {self.name} box did not start: {diagnosis or error}"
            ) from error
        except BaseException:
            await asyncio.shield(self._take_down())
            raise

    async def _send_supervisor(self, channel: Channel) -> None:
        source = supervisor_source()
        config = {
            "work": self.work_dir,
            "scratch": self._scratch_dirs(),
            "rlimits": self._rlimits(),
        }
        await channel.send(struct.pack(">I", len(source)) + source + frame(config, b""))

    async def _take_down(self) -> None:
        channel, self._channel = self._channel, None
        self._generation += 1
        if channel is not None:
            try:
                await channel.kill()
            finally:
                await self._release()

    async def _restart(self) -> None:
        await self._take_down()
        if not self._is_closed:
            await self._bring_up()

    async def _ensure_up(self) -> None:
        """A call that was cancelled half way leaves the box out of step: replace it."""
        if self._channel is None and not self._is_started:
            raise SandboxError(f"the {self.name} box is not started; use 'async with' or start()")
        if self._channel is None or self._is_out_of_step:
            await self._restart()

    # -- requests ----------------------------------------------------------------------------

    async def _request(self, header: Mapping[str, Any], payload: bytes, wait_s: float) -> Answer:
        channel = self._channel
        if channel is None:
            raise BoxLostError(f"the {self.name} box is down")
        self._is_out_of_step = True
        try:
            async with asyncio.timeout(wait_s):
                await channel.send(frame(header, payload))
        except TimeoutError:
            raise BoxLostError(f"the {self.name} box takes no request") from None
        answer = await self._receive(wait_s)
        self._is_out_of_step = False
        return answer

    async def _receive(self, wait_s: float) -> Answer:
        channel = self._channel
        if channel is None:
            raise BoxLostError(f"the {self.name} box was closed")
        try:
            async with asyncio.timeout(wait_s):
                header_size, payload_size = struct.unpack(">II", await channel.receive(8))
                header = json.loads(await channel.receive(header_size))
                return Answer(header=header, payload=await channel.receive(payload_size))
        except TimeoutError:
            raise BoxLostError(f"the {self.name} box did not answer in {wait_s:g} s") from None

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the box for one call; a lost box becomes an InfrastructureError and is cleared."""
        async with self._lock:
            self._check_open()
            await self._ensure_up()
            try:
                yield
            except BoxLostError as error:
                diagnosis = self._channel.diagnosis() if self._channel is not None else ""
                await self._take_down()
                raise InfrastructureError(
                    f"the {self.name} box was lost: {diagnosis or error}"
                ) from error
            except asyncio.CancelledError:
                # The program still runs and its answer would be taken for the next one's.
                if self._is_out_of_step:
                    await asyncio.shield(self._take_down())
                raise

    async def _run_request(
        self, header: Mapping[str, Any], payload: bytes, timeout_s: float
    ) -> Answer:
        """Return the answer; marked `lost` if programs spoiled the box, which is then replaced."""
        loop = asyncio.get_running_loop()
        kills, began = self._memory_kills(), loop.time()
        try:
            answer = await self._request(header, payload, timeout_s + GRACE_S)
        except BoxLostError:
            wall_s, out_of_memory = loop.time() - began, self._memory_kills() > kills
            if not out_of_memory and wall_s < timeout_s + GRACE_S:
                raise
            await self._restart()
            return lost_answer(wall_s, out_of_memory)
        if answer.header.get("refused") == "box":
            await self._restart()
            return lost_answer(loop.time() - began, out_of_memory=False)
        if self._memory_kills() > kills:
            return Answer(header={**answer.header, "out_of_memory": True}, payload=answer.payload)
        return answer

    # -- programs ----------------------------------------------------------------------------

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
        request = self._program(argv, env, cwd)
        timeout_s = positive("timeout_s", timeout_s, self.limits.timeout_s)
        limit = positive("output_limit", output_limit, self.limits.output_limit_bytes)
        data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else bytes(stdin)
        request |= {"op": "exec", "timeout_s": timeout_s, "limit": int(limit)}
        async with self._turn():
            return exec_result(await self._run_request(request, data, timeout_s))

    @override
    async def start_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "."
    ) -> Process:
        request = self._program(argv, env, cwd) | {"op": "start"}
        async with self._turn():
            answer = await self._request(request, b"", GRACE_S)
            if "refused" in answer.header:
                raise SandboxError(f"cannot start {argv[0]!r}: {answer.header['text']}")
            return SupervisedProcess(self, self._generation, answer.header["program"])

    def _program(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str
    ) -> dict[str, Any]:
        words = list(argv)
        if isinstance(argv, str) or not words:
            raise SandboxError(f"'argv' must be a sequence of at least one string (got {argv!r})")
        variables = dict(env or {})
        for word in (*words, *variables, *variables.values(), cwd):
            if not isinstance(word, str) or "\0" in word:
                raise SandboxError(f"arguments must be strings without NUL (got {word!r})")
        bad = [name for name in variables if not name or "=" in name]
        if bad:
            raise SandboxError(f"names of variables must be non-empty, without '=' (got {bad!r})")
        folder = "/".join(path_parts(cwd, is_folder=True)) or "."
        return {"argv": words, "env": self._environment() | variables, "cwd": folder}

    # -- files -------------------------------------------------------------------------------

    @override
    async def read_file(self, path: str, *, max_bytes: int = 16 * MIB) -> bytes:
        parts = path_parts(path)
        request = {"op": "read", "path": parts, "max_bytes": int(max_bytes)}
        async with self._turn():
            answer = await self._request(request, b"", self.limits.timeout_s + GRACE_S)
        check_file(answer, path)
        return answer.payload

    @override
    async def write_file(
        self, path: str, data: bytes | str, *, is_executable: bool = False
    ) -> None:
        parts = path_parts(path)
        content = data.encode("utf-8") if isinstance(data, str) else bytes(data)
        request = {"op": "write", "path": parts, "is_executable": is_executable}
        async with self._turn():
            answer = await self._request(request, content, self.limits.timeout_s + GRACE_S)
        check_file(answer, path)


class SupervisedProcess(Process):
    """A program that lives in a supervised box."""

    def __init__(self, box: SupervisedSandbox, generation: int, program: int) -> None:
        self._box = box
        self._generation = generation
        self._program = program
        self._has_ended = False

    @property
    @override
    def is_alive(self) -> bool:
        return not self._has_ended and self._generation == self._box._generation

    @override
    async def interact(
        self, message: bytes, *, marker: str, timeout_s: float, output_limit: int | None = None
    ) -> Reply:
        if not (16 <= len(marker) <= 64 and marker.isascii()):
            raise SandboxError(f"'marker' must be 16 to 64 ASCII characters (got {marker!r})")
        box = self._box
        timeout_s = positive("timeout_s", timeout_s, box.limits.timeout_s)
        limit = positive("output_limit", output_limit, box.limits.output_limit_bytes)
        request = {"op": "interact", "program": self._program, "marker": marker}
        request |= {"timeout_s": timeout_s, "limit": int(limit)}
        async with box._turn():
            if not self.is_alive:
                raise SandboxError("the program has ended; start a new one")
            answer = await box._run_request(request, message, timeout_s)
        return self._reply(answer)

    def _reply(self, answer: Answer) -> Reply:
        header = answer.header
        if "refused" in header:
            self._has_ended = True
            raise SandboxError(f"the program has ended: {header['text']}")
        if "lost" in header:
            self._has_ended = True
            out_of_memory = header["out_of_memory"]
            return Reply(
                output="",
                timed_out=not out_of_memory,
                out_of_memory=out_of_memory,
                exit_code=KILLED,
                wall_s=header["wall_s"],
            )
        self._has_ended = header["exit_code"] is not None
        sizes = sum(header["sizes"])
        output, is_cut = joined(answer.payload[:sizes], header["sizes"], header["totals"][0])
        message = answer.payload[sizes:].decode("utf-8", "replace")
        return Reply(
            output=output,
            output_truncated=is_cut,
            message=message if header["has_message"] else None,
            timed_out=header["timed_out"],
            out_of_memory=header["out_of_memory"],
            exit_code=header["exit_code"],
            wall_s=header["wall_s"],
            cpu_s=header["cpu_s"],
        )

    @override
    async def stop(self) -> None:
        if self.is_alive:
            self._has_ended = True
            async with self._box._turn():
                request = {"op": "stop", "program": self._program}
                await self._box._request(request, b"", GRACE_S)
