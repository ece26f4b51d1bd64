"""`Batcher`: which rows run together. Synchronous; one thread calls it.

Rows that decode stand at the front of the store. A request first has all but the last id of its
prompt written (those that its episode's row does not hold yet), many rows in one padded forward;
then the row decodes with the others until its request is answered, and waits with what it holds for
the episode's next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.errors import PolicyError
from agentgym.policies.transformers.draw import draw
from agentgym.policies.transformers.forward import ModelRunner
from agentgym.policies.transformers.jobs import Job, StopScanner
from agentgym.policies.transformers.store import KeyValueStore
from agentgym.records import FinishReason

_PATIENCE_STEPS = 4
"""Decode steps a request waits, at most, for others to share its prompt's forward."""
_ADMIT_SHARE = 0.25
"""Requests are admitted at once when they are this share of the rows that decode."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One episode's place in the store."""

    episode_id: str
    place: int
    ids: list[int] = field(default_factory=list[int])
    """[time] ids whose keys and values the row holds."""
    job: Job | None = None
    next_id: int = 0
    """Id that the next decode step feeds."""
    used_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a batch."""

    max_rows: int
    """Rows in the store, episodes that only wait included."""
    prefill_tokens: int
    """Ids, padding included, that one forward over prompts takes."""
    max_context_tokens: int | None
    """Ids that prompt and completion may have together."""
    is_deterministic: bool
    """Start a batch only when every begun episode asks, and let none join it."""


class Batcher:
    """Answers jobs in batches.

    Args:
        runner: The model.
        end_ids: Ids that end a completion.
        stops: Finds stop strings.
        limits: Bounds of a batch.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        end_ids: frozenset[int],
        stops: StopScanner,
        limits: BatchLimits,
    ) -> None:
        self._runner = runner
        self._end_ids = end_ids
        self._stops = stops
        self._limits = limits
        self._store = KeyValueStore()
        self._places: list[Row | None] = [None] * self._store.rows
        self._rows: dict[str, Row] = {}
        self._active: list[Row] = []
        self._waiting: list[Job] = []
        self._begun: set[str] = set()
        self._steps = 0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every job that is not answered."""
        return (*self._waiting, *(row.job for row in self._active if row.job is not None))

    @property
    def running(self) -> int:
        """How many rows decode. May be read from any thread."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many jobs wait to be admitted. May be read from any thread."""
        return len(self._waiting)

    @property
    def is_complete(self) -> bool:
        """True if every begun episode waits, so that nobody else can join by waiting longer."""
        asking = {job.episode_id for job in self._waiting}
        return bool(asking) and self._begun <= asking

    @property
    def can_step(self) -> bool:
        """True if a step would do something."""
        return bool(self._active) or (bool(self._waiting) and self._may_admit())

    @property
    def is_idle(self) -> bool:
        """True if no row decodes."""
        return not self._active

    def begin(self, episode_id: str) -> None:
        """Announce an episode: a deterministic batch waits for it."""
        self._begun.add(episode_id)

    def end(self, episode_id: str) -> None:
        """Free an episode's row; a request of it that still runs is dropped."""
        self._begun.discard(episode_id)
        for job in self.jobs:
            if job.episode_id == episode_id:
                self.cancel(job)
        row = self._rows.pop(episode_id, None)
        if row is not None:
            self._places[row.place] = None

    def submit(self, job: Job) -> None:
        """Take a job."""
        if any(other.episode_id == job.episode_id for other in self.jobs):
            job.on_done(PolicyError(f"episode {job.episode_id!r} asks twice at the same time"))
            return
        self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Drop a job; its row keeps what it holds."""
        job.is_cancelled = True
        self._waiting = [other for other in self._waiting if other is not job]
        self._retire([row for row in self._active if row.job is job])

    def forget(self) -> None:
        """Drop every key and value: the weights changed. Running jobs go on under the new ones."""
        resumed = [row.job for row in self._active if row.job is not None]
        self._active.clear()
        self._waiting = [*resumed, *self._waiting]
        self._rows.clear()
        self._places = [None] * self._store.rows

    def step(self, version: int) -> None:
        """Admit who may be admitted, then sample one id for each row that decodes."""
        self._runner.prepare()
        if self._may_admit():
            self._admit()
        if self._active:
            self._decode(version)
        self._steps += 1

    # -- admission -------------------------------------------------------------------------

    def _may_admit(self) -> bool:
        if not self._waiting:
            return False
        if self._limits.is_deterministic:
            return not self._active and self.is_complete
        is_patient = all(job.waited < _PATIENCE_STEPS for job in self._waiting)
        return len(self._waiting) >= _ADMIT_SHARE * len(self._active) or not is_patient

    def _admit(self) -> None:
        rows: list[Row] = []
        for job in sorted(self._waiting, key=lambda job: job.episode_id):
            row = self._row_for(job.episode_id, busy=len(self._active) + len(rows))
            if row is None:
                break
            row.job, row.used_at = job, self._steps
            del row.ids[_shared_prefix(row.ids, job.context[:-1]) :]
            row.next_id = job.context[-1]
            rows.append(row)
        admitted = {row.job for row in rows}
        self._waiting = [job for job in self._waiting if job not in admitted]
        self._write_prompts(rows)
        self._active += rows
        self._arrange(self._active)

    def _row_for(self, episode_id: str, *, busy: int) -> Row | None:
        """Return the episode's row, a free one, or one taken from an episode that does not run."""
        row = self._rows.get(episode_id)
        if row is not None:
            return row
        if len(self._rows) >= self._limits.max_rows:
            if busy >= self._limits.max_rows:
                return None
            resting = [row for row in self._rows.values() if row.job is None]
            oldest = min(resting, key=lambda row: (row.used_at, row.episode_id))
            self._places[oldest.place] = None
            del self._rows[oldest.episode_id]
        if None not in self._places:
            self._store.reserve(rows=len(self._places) + 1, columns=0)
            self._places += [None] * (self._store.rows - len(self._places))
        place = self._places.index(None)
        row = Row(episode_id=episode_id, place=place)
        self._places[place] = self._rows[episode_id] = row
        return row

    def _write_prompts(self, rows: list[Row]) -> None:
        """Write what the rows lack, and order `rows` as they then stand."""
        missing = {row.episode_id: _context(row)[len(row.ids) : -1] for row in rows}
        leaders: dict[tuple[int, ...], Row] = {}
        followers: list[tuple[Row, Row]] = []
        for row in rows:
            # Siblings of a group open with the same prompt: it is computed once and copied.
            leader = leaders.setdefault(_context(row)[:-1], row) if not row.ids else row
            if leader is not row and not leader.ids:
                followers.append((row, leader))
        copied = {row.episode_id for row, _ in followers}
        lacking = [row for row in rows if missing[row.episode_id] and row.episode_id not in copied]
        lacking.sort(key=lambda row: (len(missing[row.episode_id]), row.episode_id))
        first = len(self._active)
        self._arrange([*self._active, *lacking])
        for start, stop in self._chunks([len(missing[row.episode_id]) for row in lacking]):
            part = lacking[start:stop]
            self._extend(first + start, part, [missing[row.episode_id] for row in part])
        for row, leader in followers:
            row.ids[:] = leader.ids
        for leader in dict.fromkeys(leader for _, leader in followers):
            places = [row.place for row, other in followers if other is leader]
            self._store.repeat(leader.place, places, length=len(leader.ids))
        done = {row.episode_id for row in lacking}
        rows[:] = [*lacking, *(row for row in rows if row.episode_id not in done)]

    def _chunks(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return runs of rows, lengths ascending, whose padded size is within bounds."""
        chunks: list[tuple[int, int]] = []
        start = 0
        for index, length in enumerate(lengths):
            if index > start and (index + 1 - start) * length > self._limits.prefill_tokens:
                chunks.append((start, index))
                start = index
        return [*chunks, (start, len(lengths))] if lengths else []

    def _extend(self, first: int, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        """Write one chunk, in several forwards where a single row is longer than the bound."""
        longest = max(map(len, tokens))
        reach = longest if len(rows) > 1 else min(longest, self._limits.prefill_tokens)
        for start in range(0, longest, reach):
            parts = [row[start : start + reach] for row in tokens]
            columns = [len(row.ids) for row in rows]
            self._store.reserve(rows=0, columns=max(columns) + max(map(len, parts)))
            self._runner.extend(self._store, first, parts, columns)
            for row, part in zip(rows, parts, strict=True):
                row.ids += part

    # -- decoding --------------------------------------------------------------------------

    def _decode(self, version: int) -> None:
        rows = self._active
        columns = [len(row.ids) for row in rows]
        self._store.reserve(rows=0, columns=max(columns) + 1)
        logits = self._runner.decode(self._store, [row.next_id for row in rows], columns)
        jobs = [_job(row) for row in rows]
        draws = draw(logits, [job.sampling for job in jobs], [job.rng.random() for job in jobs])
        finished: list[tuple[Row, Job, FinishReason]] = []
        for row, job, token, logprob in zip(rows, jobs, draws.ids, draws.logprobs, strict=True):
            row.ids.append(row.next_id)
            row.next_id = token
            job.add(token, logprob, version)
            reason = self._finish_reason(job)
            if reason is not None:
                finished.append((row, job, reason))
        for job in self._waiting:
            job.waited += 1
        self._retire([row for row, _, _ in finished])
        # Told last: whoever hears of an answer finds its row at rest.
        for _, job, reason in finished:
            job.on_done(job.outcome(reason))

    def _finish_reason(self, job: Job) -> FinishReason | None:
        if job.ids[-1] in self._end_ids:
            return FinishReason.STOP
        if job.sampling.stop and self._stops.is_stopped(job.ids, job.sampling.stop):
            return FinishReason.STOP
        bound = self._limits.max_context_tokens
        is_full = bound is not None and len(job.prompt) + len(job.ids) >= bound
        is_long = len(job.ids) >= job.sampling.max_new_tokens
        return FinishReason.LENGTH if is_full or is_long else None

    def _retire(self, rows: Sequence[Row]) -> None:
        """Take rows out of the run; the last ones fill the gaps."""
        for row in rows:
            row.job = None
            last = self._active.pop()
            if last is not row:
                self._active[self._active.index(row)] = last
            if row.episode_id not in self._begun and self._rows.get(row.episode_id) is row:
                del self._rows[row.episode_id]
                self._places[row.place] = None
        if rows:
            self._arrange(self._active)

    def _arrange(self, front: Sequence[Row]) -> None:
        """Move rows so that `front` stands at places 0, 1, ...; those in the way change places."""
        before: dict[int, tuple[Row, int]] = {}
        for place, row in enumerate(front):
            if row.place == place:
                continue
            other = self._places[place]
            before.setdefault(id(row), (row, row.place))
            if other is not None:
                before.setdefault(id(other), (other, other.place))
                other.place = row.place
            self._places[row.place], self._places[place] = other, row
            row.place = place
        moved = [(old, row.place) for row, old in before.values() if row.ids and old != row.place]
        self._store.move([old for old, _ in moved], [new for _, new in moved])


def _job(row: Row) -> Job:
    if row.job is None:
        raise AssertionError("a row without a job decodes")
    return row.job


def _context(row: Row) -> tuple[int, ...]:
    return _job(row).context


def _shared_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    """Return how many first ids are the same."""
    size = min(len(held), len(wanted))
    if list(held[:size]) == list(wanted[:size]):
        return size
    return next(i for i in range(size) if held[i] != wanted[i])


__all__ = ["BatchLimits", "Batcher", "Row"]
