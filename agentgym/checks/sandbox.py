"""`check_sandbox`: does a kind of sandbox keep the contract of `agentgym.sandbox.base`?

In order: what a box must offer (`Box`), the report, the runner, and what checks are made of. The
checks are in `sandbox_programs`, `sandbox_state` and `sandbox_isolation`; the last apply to
backends which say that they isolate. A box is passed in, so that the core imports no sandbox.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agentgym.errors import AgentGymError


class Box(Protocol):
    """The part of `agentgym.sandbox.base.Sandbox` that is checked; see there."""

    # ruff: noqa: D102 - the methods are described there

    isolates: ClassVar[bool]

    @property
    def work_dir(self) -> str: ...
    @property
    def limits(self) -> Any: ...
    async def start(self) -> None: ...
    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float | None = None,
        output_limit: int | None = None,
    ) -> Any: ...
    async def read_file(self, path: str, *, max_bytes: int = ...) -> bytes: ...
    async def write_file(
        self, path: str, data: bytes | str, *, is_executable: bool = False
    ) -> None: ...
    async def start_process(self, argv: Sequence[str]) -> Any: ...
    async def reset(self) -> None: ...
    async def ping(self) -> None: ...
    async def aclose(self) -> None: ...


class CheckFailedError(AssertionError):
    """What a box did against its contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The outcome of one check."""

    name: str
    """What was checked, in words."""
    problem: str | None = None
    """What was wrong; None if nothing was."""
    wall_s: float = 0.0
    """Seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """The outcomes of all checks of one kind of box."""

    outcomes: tuple[CheckOutcome, ...]

    @property
    def problems(self) -> tuple[CheckOutcome, ...]:
        """Checks that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.problem is not None)

    def __str__(self) -> str:
        lines = [f"{len(self.outcomes)} checks, {len(self.problems)} failed"]
        lines += [f"  {outcome.name}: {outcome.problem}" for outcome in self.problems]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a box must do."""

    name: str
    """What it must do, in words."""
    run: Callable[[Box], Awaitable[None]]
    """Raises CheckFailedError if the box does not."""
    on: str
    """Which boxes are checked: OPEN, ISOLATING (open ones that isolate) or CLOSED."""


OPEN, ISOLATING, CLOSED = "open", "isolating", "closed"
_checks: list[Check] = []


def check(
    name: str, *, on: str = OPEN
) -> Callable[[Callable[[Box], Awaitable[None]]], Callable[[Box], Awaitable[None]]]:
    """Return a decorator that adds a function to the checks."""

    def add(run: Callable[[Box], Awaitable[None]]) -> Callable[[Box], Awaitable[None]]:
        _checks.append(Check(name=name, run=run, on=on))
        return run

    return add


def sandbox_checks() -> tuple[Check, ...]:
    """Return all checks, in the order in which they run."""
    for part in ("sandbox_programs", "sandbox_state", "sandbox_isolation"):
        importlib.import_module(f"agentgym.checks.{part}")
    return tuple(sorted(_checks, key=lambda check: check.on == CLOSED))


async def check_sandbox(make_box: Callable[[], Box], *, only: str = "") -> SandboxReport:
    """Run every check over one box, which is reset before each.

    Args:
        make_box: Makes a box that is not started yet.
        only: Run the checks whose name holds this text.

    Raises:
        SandboxUnavailableError: If this machine has no such boxes.
    """
    outcomes: list[CheckOutcome] = []
    box = make_box()
    await box.start()
    try:
        for one in sandbox_checks():
            if only not in one.name or (one.on == ISOLATING and not box.isolates):
                continue
            if one.on == CLOSED:
                await box.aclose()
            outcomes.append(await run_check(one, box))
    finally:
        await box.aclose()
    return SandboxReport(outcomes=tuple(outcomes))


async def run_check(check: Check, box: Box) -> CheckOutcome:
    """Return the outcome of one check, in a clean box where it needs an open one."""
    began = time.monotonic()
    problem = None
    try:
        if check.on != CLOSED:
            await box.reset()
        await check.run(box)
    except (CheckFailedError, AgentGymError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"[:500]
    return CheckOutcome(name=check.name, problem=problem, wall_s=time.monotonic() - began)


def expect(condition: bool, what: str) -> None:
    """Fail the check unless `condition` holds."""
    if not condition:
        raise CheckFailedError(what)


def equal(actual: Any, wanted: Any, what: str) -> None:
    """Fail the check unless both are equal."""
    expect(actual == wanted, f"{what}: wanted {wanted!r} (got {actual!r})")


async def python(box: Box, code: str, **options: Any) -> Any:
    """Run Python code in the box."""
    return await box.exec(["python3", "-c", code], **options)


async def shell(box: Box, script: str, **options: Any) -> Any:
    """Run a shell script in the box."""
    return await box.exec(["sh", "-c", script], **options)


@contextlib.asynccontextmanager
async def refused(kind: type[BaseException], what: str) -> AsyncGenerator[None]:
    """Fail the check unless the body raises `kind`."""
    try:
        yield
    except kind:
        return
    raise CheckFailedError(f"{what}: wanted {kind.__name__}, nothing was raised")


async def count_running(box: Box, argument: str) -> int:
    """Return how many processes that the box sees have `argument` as their last argument."""
    code = (
        "import os, sys\n"
        "def words(p):\n"
        "    try: return open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0')\n"
        "    except OSError: return []\n"
        "pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "print(sum(words(p)[-2:-1] == [sys.argv[1].encode()] and words(p)[0] == b'sleep'"
        " for p in pids))"
    )
    return int((await box.exec(["python3", "-c", code, argument])).stdout)
