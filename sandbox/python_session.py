"""`PythonSession`: Python in a box that keeps its names from one turn of an episode to the next."""

from __future__ import annotations

import dataclasses
import functools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from agentgym.errors import SandboxError
from agentgym.sandbox.base import Process, Reply, Sandbox
from agentgym.sandbox.host.threads import in_thread
from agentgym.sandbox.inside.values import decode, encode
from agentgym.sandbox.supervised.bootstrap import BOOT

T = TypeVar("T")
SHARED_IMPORT = "from agentgym.sandbox.inside.values import decode, encode\n"
"""Line of the program in the box for which the module itself is put in front."""

UNREADABLE = "the returned value cannot be read"
SHORT_CHARS = 16_384
"""A longer answer is read in a thread: other boxes are served by the same event loop."""
_DECODING_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError),
    ArithmeticError,  # a complex number made of integers beyond every float
)
"""What `decode` raises on an answer that the code in the box wrote itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    r"""What became of one cell.

    Example:
        "x = 2" then "x + 1" gives CellResult(output="3\n")
    """

    output: str
    """All that was printed, with the traceback if the cell raised; cut in the middle if long."""
    raised: str | None = None
    """Type name of the exception that ended the cell; None if it ran through."""
    output_truncated: bool = False
    """True if `output` lacks bytes."""
    timed_out: bool = False
    """True if the cell was stopped at its time limit."""
    out_of_memory: bool = False
    """True if the kernel stopped it for memory."""
    is_state_lost: bool = False
    """True if the session ended with this cell: the next one starts without names."""
    wall_s: float = 0.0
    """Seconds from start to end."""

    @property
    def is_ok(self) -> bool:
        """Whether the cell ran through."""
        return self.raised is None and not self.is_state_lost

    def observation(self) -> str:
        """Return the result as text for an agent."""
        parts = [self.output.rstrip("\n")] if self.output.strip() else []
        if self.timed_out:
            parts.append(f"[time limit reached after {self.wall_s:.1f} s]")
        elif self.out_of_memory:
            parts.append("[out of memory]")
        if self.is_state_lost:
            parts.append("[the Python session ended; its variables are gone]")
        return "\n".join(parts) if parts else "[no output]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call of a function in the box gave: a value of built-in types, or why not."""

    value: Any = None
    """The returned value; only meaningful if `problem` is None."""
    problem: str | None = None
    """What went wrong, for people: exception, time limit, ended session, unreadable value."""
    timed_out: bool = False
    """True if the call was stopped at its time limit."""
    answer: Mapping[str, Any] | None = None
    """The answer as it came from the box, encoded: `value`, or `raised` with `text`; None if there
    was none."""
    wall_s: float = 0.0
    """Seconds that the call took."""


class PythonSession:
    """A Python process in a box.

    It starts with its first use, and anew after it was lost: to a time limit, to `os._exit`, to a
    reset of the box.
    """

    def __init__(self, box: Sandbox, *, python: str = "python3") -> None:
        self._box = box
        self._python = python
        self._process: Process | None = None

    @property
    def is_alive(self) -> bool:
        """Whether there are names to come back to."""
        return self._process is not None and self._process.is_alive

    async def start(self) -> None:
        """Start the process now, so that the first cell need not wait for it.

        Raises:
            SandboxError: If the box has no Python.
            InfrastructureError: If the box was lost.
        """
        reply = await self._send({"op": "run", "code": ""}, None, None)
        if reply.message is None:
            raise SandboxError(f"Python does not start in the box: {reply.output[-300:]}")

    async def run(
        self, code: str, *, timeout_s: float | None = None, output_limit: int | None = None
    ) -> CellResult:
        """Run a cell; the value of a last line that is an expression is printed, if not None.

        Args:
            code: Python source.
            timeout_s: Wall seconds; the box's own limit by default.
            output_limit: Bytes kept of the output; the box's own limit by default.

        Not an error: whatever the code does.

        Raises:
            InfrastructureError: If the box was lost through no doing of the code.
        """
        reply = await self._send({"op": "run", "code": _clean(code)}, timeout_s, output_limit)
        answer = await read_answer(reply, _answer)
        return CellResult(
            output=reply.output,
            raised=answer.get("raised") if answer is not None else "SystemExit",
            output_truncated=reply.output_truncated,
            timed_out=reply.timed_out,
            out_of_memory=reply.out_of_memory,
            is_state_lost=not self.is_alive,
            wall_s=reply.wall_s,
        )

    async def call(
        self,
        name: str,
        arguments: Sequence[Any],
        *,
        keywords: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> CallResult:
        """Call the function that a cell defined as `name`.

        Args:
            name: A global name of the session.
            arguments: Positional arguments of built-in types.
            keywords: Keyword arguments of built-in types.
            timeout_s: Wall seconds; the box's own limit by default.

        Raises:
            InfrastructureError: If the box was lost through no doing of the code.
        """
        encoded = encode(list(arguments)), encode(dict(keywords or {}))
        return await self._call(name, *encoded, timeout_s, _call_result)

    async def relay(
        self, name: str, arguments: Any, keywords: Any, *, timeout_s: float | None = None
    ) -> CallResult:
        """Call a function with arguments that are encoded; its value stays encoded, in `answer`.

        For a call from one box into another, of which nothing is decoded in between.

        Args:
            name: A global name of the session.
            arguments: A list of positional arguments, as `encode` writes it.
            keywords: A dict of keyword arguments, as `encode` writes it.
            timeout_s: Wall seconds; the box's own limit by default.

        Raises:
            InfrastructureError: If the box was lost through no doing of the code.
        """
        return await self._call(name, arguments, keywords, timeout_s, _relayed_result)

    async def _call(
        self,
        name: str,
        arguments: Any,
        keywords: Any,
        timeout_s: float | None,
        read: Callable[[Reply], CallResult],
    ) -> CallResult:
        request = {"op": "call", "name": name, "arguments": arguments, "keywords": keywords}
        reply = await self._send(request, timeout_s, None)
        return await read_answer(reply, read)

    async def aclose(self) -> None:
        """End the process. Closing twice is no error."""
        process, self._process = self._process, None
        if process is not None and process.is_alive:
            await process.stop()

    async def _send(
        self, request: dict[str, Any], timeout_s: float | None, output_limit: int | None
    ) -> Reply:
        first = b""
        if self._process is None or not self._process.is_alive:
            self._process = await self._box.start_process([self._python, "-u", "-c", BOOT])
            source = session_source()
            first = len(source).to_bytes(4, "big") + source
        marker = secrets.token_hex(16)
        body = ascii(request | {"marker": marker}).encode("ascii")
        return await self._process.interact(
            first + len(body).to_bytes(4, "big") + body,
            marker=marker,
            timeout_s=self._box.limits.timeout_s if timeout_s is None else timeout_s,
            output_limit=output_limit,
        )


@functools.cache
def session_source() -> bytes:
    """Return the program of a session, complete in one text."""
    folder = resources.files("agentgym.sandbox.inside")
    values = folder.joinpath("values.py").read_text("utf-8")
    session = folder.joinpath("session.py").read_text("utf-8")
    return joined_sources(values, session, SHARED_IMPORT)


def joined_sources(shared: str, program: str, import_line: str) -> bytes:
    """Return `program` with the module `shared` in place of the line that imports it.

    Raises:
        SandboxError: If the line is not there.
    """
    future = "from __future__ import annotations\n"
    if import_line not in program:
        raise SandboxError(f"the program lacks the line {import_line!r}")
    return (future + (shared + program.replace(import_line, "")).replace(future, "")).encode()


async def read_answer(reply: Reply, read: Callable[[Reply], T]) -> T:
    """Return what `read` makes of an answer; one that is long does not hold up the event loop."""
    if len(reply.message or "") <= SHORT_CHARS:
        return read(reply)
    return await in_thread(read, reply)


def _relayed_result(reply: Reply) -> CallResult:
    """Return what a call gave, its value encoded."""
    answer = _answer(reply)
    if answer is None:
        why = "time limit reached" if reply.timed_out else "the program ended"
        if reply.message is not None:
            why = UNREADABLE
        return CallResult(problem=why, timed_out=reply.timed_out, wall_s=reply.wall_s)
    problem = f"{answer['raised']}: {answer.get('text', '')}" if "raised" in answer else None
    return CallResult(problem=problem, answer=answer, wall_s=reply.wall_s)


def _call_result(reply: Reply) -> CallResult:
    """Return what a call gave, its value decoded."""
    result = _relayed_result(reply)
    if result.answer is None or result.problem is not None:
        return result
    try:
        return dataclasses.replace(result, value=decode(result.answer["value"]))
    except _DECODING_ERRORS:
        return CallResult(problem=UNREADABLE, wall_s=reply.wall_s)


def _answer(reply: Reply) -> dict[str, Any] | None:
    """Return the session's answer; None if there is none, or if the code broke it."""
    if reply.message is None:
        return None
    try:
        answer = json.loads(reply.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    # Names and texts are shown: what is no text was not written by the session.
    shown = (answer[key] for key in ("raised", "text") if key in answer)
    return answer if all(isinstance(text, str) for text in shown) else None


def _clean(code: str) -> str:
    """JSON carries every code point, but Python reads no lone surrogates in source."""
    return code.encode("utf-8", "replace").decode("utf-8")
