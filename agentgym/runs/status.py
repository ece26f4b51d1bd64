"""What a run is doing now: `LiveRun`, written to its folder once a second by `LiveWriter`.

A thread of its own writes, so that a run whose event loop or whose learner is stuck still says
where. The file stays behind a process that was killed and then says where that stood; a run that
ends in good order removes it. `dump_on_signal` writes the same as text to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from agentgym.errors import RecordError
from agentgym.records.escape import plain
from agentgym.redaction import masked_tree
from agentgym.rollouts.episode_state import Episode
from agentgym.runs.folder import LIVE_FILE as LIVE
from agentgym.runs.json_files import read_json

SCHEMA = 1
_INTERVAL_S = 1.0
_LATE_S = 10.0
"""Age of the file from which its writer, a thread that does nothing else, counts as stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEpisode:
    """An episode that has begun and not ended.

    Example:
        LiveEpisode(id="g3-e0", env_id="math/arithmetic-v0", turn=2, state="env", seconds=41.5,
                    last_tool="calculator")
    """

    id: str
    """Id of the trajectory that it becomes."""
    env_id: str
    """Its environment."""
    turn: int
    """Turns that are done."""
    state: str
    """What it waits for: `starting` (an instance), `reset`, `generate`, `env`, `outcome`."""
    seconds: float
    """For how long."""
    last_tool: str
    """The tool that it called last; empty if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run at one moment."""

    pid: int
    """Process that runs the episodes."""
    host: str
    """Its machine."""
    written_at: float
    """Seconds since 1970."""
    phase: str
    """What the loop does, such as `wait for episodes`, `learn`, `publish`, `evaluate`."""
    phase_s: float
    """For how long."""
    loop_late_s: float
    """Seconds by which the event loop is late for its next turn."""
    step: int
    """Steps taken."""
    steps: int
    """Steps of the run."""
    policy_version: int
    """Updates behind the weights that sample."""
    queues: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many stand where: groups and episodes."""
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the policy says of its load and its health; empty if it says nothing."""
    episodes: tuple[LiveEpisode, ...] = ()
    """Those that live, the longest wait first."""

    @property
    def longest(self) -> tuple[str, str, float]:
        """Return who has waited longest: its name, for what, and seconds."""
        waits = [("the loop", self.phase, self.phase_s)]
        waits += [(one.id, one.state, one.seconds) for one in self.episodes[:1]]
        return max(waits, key=lambda wait: wait[2])


def live_episodes(live: Mapping[str, Episode]) -> tuple[LiveEpisode, ...]:
    """Return what is known of an engine's live episodes, the longest wait first.

    May be called from any thread.
    """
    now = time.monotonic()
    found = [
        LiveEpisode(
            id=episode.spec.id,
            env_id=episode.spec.task.env_id,
            turn=len(episode.turns),
            state=episode.state,
            seconds=round(now - episode.state_since, 3),
            last_tool=episode.last_tool,
        )
        for episode in list(live.values())  # copied at once: another thread changes it
    ]
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.id)))


class LiveWriter:
    """Keeps a run's live file while it is open.

    Args:
        folder: The run's folder.
        snapshot: Returns the run at this moment, given the seconds by which the event loop is late;
            called from other threads.
        interval_s: Seconds between two writes.
    """

    def __init__(
        self,
        folder: Path,
        snapshot: Callable[[float], LiveRun],
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self.path = folder / LIVE
        self._snapshot = snapshot
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticked = time.monotonic()
        self._tick: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._beat()
        self._thread = threading.Thread(target=self._run, name="live-state", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.path.unlink(missing_ok=True)

    def now(self) -> LiveRun:
        """Return the run at this moment."""
        late = time.monotonic() - self._ticked - self._interval_s
        return self._snapshot(round(max(late, 0.0), 3))

    def _beat(self) -> None:
        self._ticked = time.monotonic()
        self._tick = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._write()

    def _write(self) -> None:
        text = json.dumps(masked_tree({"schema": SCHEMA, **asdict(self.now())}))
        temporary = self.path.with_name(f".{LIVE}.tmp")
        try:
            # Not synced: it is of no use after the machine went down.
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)
        except OSError:  # a full disk: whoever writes records says so
            temporary.unlink(missing_ok=True)


def snapshot_head() -> dict[str, Any]:
    """Return the fields of a `LiveRun` that say whose it is and when."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "written_at": time.time()}


def read_live(folder: Path) -> LiveRun | None:
    """Return what a run last said of itself; None if it ended in good order, or never began.

    Raises:
        RecordError: If the file is damaged.
    """
    file = folder / LIVE
    if not file.exists():
        return None
    data = read_json(file)
    try:
        del data["schema"]
        episodes = tuple(LiveEpisode(**one) for one in data.pop("episodes"))
        return LiveRun(**data, episodes=episodes)
    except (KeyError, TypeError) as error:
        raise RecordError(f"{file} is no state of a run: {error}") from error


def process_state(live: LiveRun, *, now: float | None = None) -> str:
    """Return `running`, `stuck`, `dead`, or `elsewhere` for a process of another machine."""
    if live.host != socket.gethostname():
        return "elsewhere"
    try:
        os.kill(live.pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass  # it is there, and another user's
    age = (now if now is not None else time.time()) - live.written_at
    return "stuck" if age > _LATE_S else "running"


def live_lines(live: LiveRun) -> list[str]:
    """Return a run's state as lines for a terminal, harmless whatever an agent wrote."""
    who, what, seconds = live.longest
    rows = [("episode", "turn", "state", "seconds", "last tool", "environment")]
    rows += [
        (one.id, str(one.turn), one.state, f"{one.seconds:.1f}", one.last_tool, one.env_id)
        for one in live.episodes
    ]
    clean = [[plain(text).replace("\n", " ") for text in row] for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(clean[0]))]
    shown = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in clean
    ]
    return [plain(line) for line in _facts(live)] + [
        plain(f"longest wait: {who} in {what} for {seconds:.1f} s"),
        *shown,
    ]


def _facts(live: LiveRun) -> Sequence[str]:
    queues = ", ".join(f"{name} {count}" for name, count in live.queues.items())
    policy = ", ".join(f"{name} {value}" for name, value in live.policy.items())
    place = f"step {live.step} of {live.steps}, policy version {live.policy_version}"
    return (
        f"process {live.pid} on {live.host}: {place}",
        f"the loop: {live.phase} for {live.phase_s:.1f} s, late by {live.loop_late_s:.1f} s",
        f"queues: {queues or 'none'}",
        f"policy: {policy or 'says nothing of its load'}",
    )


@contextmanager
def dump_on_signal(now: Callable[[], LiveRun]) -> Generator[None]:
    """Write a run's state to standard error whenever the process gets SIGUSR1."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return

    def dump(number: int, frame: FrameType | None) -> None:
        text = "\n".join(live_lines(now())) + "\n"
        # Not through sys.stderr: the signal may have come in the middle of a write to it.
        os.write(2, text.encode(errors="backslashreplace"))

    before = signal.signal(signal.SIGUSR1, dump)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


__all__ = [
    "LIVE",
    "LiveEpisode",
    "LiveRun",
    "LiveWriter",
    "dump_on_signal",
    "live_episodes",
    "live_lines",
    "process_state",
    "read_live",
    "snapshot_head",
]
