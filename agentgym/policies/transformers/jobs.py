"""One request on its way: `Job`, what it came to: `Outcome`, and `StopScanner` for stop strings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentgym.records import FinishReason, Sampling, VersionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The sampled ids of one request.

    Example:
        Outcome(ids=(5, 6, 9), logprobs=(-0.5, -1.25, -0.1),
                versions=(VersionRun(version=3, count=3),), finish_reason=FinishReason.STOP)
    """

    ids: tuple[int, ...]
    """[time] sampled ids, the end id included where it was sampled."""
    logprobs: tuple[float, ...]
    """[time] log-probability of each under the sampling distribution, in nats."""
    versions: tuple[VersionRun, ...]
    """Weights that sampled each id, as runs in order."""
    finish_reason: FinishReason
    """Why it stopped."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request that is being answered. It belongs to the worker thread once submitted."""

    episode_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    rng: random.Random
    on_done: Callable[[Outcome | Exception], None]
    """Called once, on the worker thread."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    waited: int = 0
    """Decode steps that went by while it waited to be admitted."""
    is_cancelled: bool = False

    @property
    def context(self) -> tuple[int, ...]:
        """[time] the prompt and what was sampled so far."""
        return (*self.prompt, *self.ids) if self.ids else self.prompt

    def add(self, token: int, logprob: float, version: int) -> None:
        """Append one sampled id with what belongs to it."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def outcome(self, reason: FinishReason) -> Outcome:
        """Return what was sampled."""
        return Outcome(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=version_runs(self.versions),
            finish_reason=reason,
        )


def version_runs(versions: Sequence[int]) -> tuple[VersionRun, ...]:
    """Return [time] versions as runs: (3, 3, 4) gives two of 3 and one of 4."""
    runs: list[VersionRun] = []
    start = 0
    for index in range(1, len(versions) + 1):
        if index == len(versions) or versions[index] != versions[start]:
            runs.append(VersionRun(version=versions[start], count=index - start))
            start = index
    return tuple(runs)


class StopScanner:
    """Finds stop strings in sampled ids without decoding at each id.

    A string can only be completed by an id whose text holds the string's last character, so other
    ids cost one look into a set.

    Args:
        decode: Ids to text, every token shown.
        vocabulary_size: Number of ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], *, vocabulary_size: int) -> None:
        self._decode = decode
        self._vocabulary_size = vocabulary_size
        self._texts: list[str] | None = None
        self._completing: dict[str, frozenset[int]] = {}

    def is_stopped(self, ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Return whether the last of `ids` completes one of `stop`."""
        if not any(ids[-1] in self._ids_with(text[-1]) for text in stop if text):
            return False
        longest = max(len(text) for text in stop)
        tail = self._decode(ids[-self._reach(ids, longest) :])
        return any(text in tail for text in stop if text)

    def _reach(self, ids: Sequence[int], characters: int) -> int:
        """Return how many last ids cover `characters`; ids without text of their own count 0."""
        texts = self._token_texts()
        count = covered = 0
        while count < len(ids) and covered < characters + len(texts[ids[-1]]):
            count += 1
            covered += len(texts[ids[-count]]) if "\ufffd" not in texts[ids[-count]] else 0
        return count

    def _ids_with(self, character: str) -> frozenset[int]:
        known = self._completing.get(character)
        if known is None:
            # U+FFFD: a part of a character, which together with others may be the one looked for.
            texts = enumerate(self._token_texts())
            known = frozenset(i for i, text in texts if character in text or "\ufffd" in text)
            self._completing[character] = known
        return known

    def _token_texts(self) -> list[str]:
        if self._texts is None:
            self._texts = [self._decode([index]) for index in range(self._vocabulary_size)]
        return self._texts


__all__ = ["Job", "Outcome", "StopScanner", "version_runs"]
