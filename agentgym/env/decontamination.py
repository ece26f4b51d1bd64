"""`near_duplicates`: held-out tasks that ask, in almost the same words, what a training task asks.

Two prompts are near each other if the Jaccard similarity of their word trigrams reaches a
threshold, and the numbers in them and the gold answers are the same: tasks of one template with
other numbers, or with another answer, are other tasks. Candidates are found by prefix filtering
(Chaudhuri, Ganti and Kaushik 2006), which misses none, so thousands of tasks take seconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentgym.records import Task
from agentgym.records.text import normalized

THRESHOLD = 0.9
"""Similarity from which prompts are near: one word of sixty replaced is 0.902."""
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+|[^\w\s]")
_SENTENCE_MARKS = frozenset(".,;:!?'\"`‘’“”")
"""Not told apart: they change how a question reads, not what it asks. Operators are."""
_SIZE = 3
_FEWEST_WORDS = 4
"""A prompt with fewer different words of two letters or more is no prose: a sum, a map, a list."""
_ROUNDING = 1e-9

_Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicate:
    """A held-out task and a training task that is almost the same.

    Example:
        NearDuplicate(train_id="a-17", held_out_id="b-4", similarity=0.93)
    """

    train_id: str
    """Id of the training task."""
    held_out_id: str
    """Id of the held-out one."""
    similarity: float
    """Jaccard similarity of their word trigrams, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    task: Task
    grams: frozenset[_Gram]
    numbers: tuple[str, ...]
    answers: frozenset[str]


def near_duplicates(
    train: Iterable[Task], held_out: Iterable[Task], *, threshold: float = THRESHOLD
) -> tuple[NearDuplicate, ...]:
    """Return held-out tasks that are almost a training task, each with the nearest one.

    Tasks without prose in their prompt are left out, such as sums, maps and pages by name:
    `Task.content_hash` compares what they ask.

    Args:
        train: Tasks that are trained on.
        held_out: Tasks that must be others.
        threshold: Jaccard similarity in (0, 1] from which two prompts are near.

    Raises:
        ValueError: If the threshold is not in (0, 1].
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"'threshold' must be in (0, 1] (got {threshold!r})")
    known = [text for task in train if (text := _text(task)).grams]
    asked = [text for task in held_out if (text := _text(task)).grams]
    frequency = Counter(gram for text in (*known, *asked) for gram in text.grams)
    index: dict[_Gram, list[_Text]] = defaultdict(list)
    for text in known:
        for gram in _prefix(text, frequency, threshold):
            index[gram].append(text)
    found: list[NearDuplicate] = []
    for text in asked:
        candidates = [
            other for gram in _prefix(text, frequency, threshold) for other in index.get(gram, ())
        ]
        nearest = _nearest(text, candidates)
        if nearest is not None and nearest.similarity >= threshold - _ROUNDING:
            found.append(nearest)
    return tuple(found)


def _nearest(text: _Text, candidates: Sequence[_Text]) -> NearDuplicate | None:
    scored = [
        (_jaccard(text.grams, other.grams), other.task.id)
        for other in candidates
        if other.numbers == text.numbers and _have_an_answer_in_common(other, text)
    ]
    if not scored:
        return None
    similarity, train_id = max(scored)
    return NearDuplicate(train_id=train_id, held_out_id=text.task.id, similarity=similarity)


def _have_an_answer_in_common(one: _Text, other: _Text) -> bool:
    if not one.answers or not other.answers:
        return one.answers == other.answers
    return not one.answers.isdisjoint(other.answers)


def _text(task: Task) -> _Text:
    tokens = [t for t in _TOKEN.findall(_folded(task.prompt)) if t not in _SENTENCE_MARKS]
    is_prose = len({t for t in tokens if len(t) > 1 and t.isalpha()}) >= _FEWEST_WORDS
    count = max(len(tokens) - _SIZE + 1, 1) if is_prose else 0
    return _Text(
        task=task,
        grams=frozenset(tuple(tokens[n : n + _SIZE]) for n in range(count)),
        numbers=tuple(sorted(token for token in tokens if token[0].isdigit())),
        answers=frozenset(_folded(answer) for answer in task.answers),
    )


def _folded(text: str) -> str:
    return " ".join(normalized(text, "NFKC").casefold().split())


def _prefix(text: _Text, frequency: Counter[_Gram], threshold: float) -> list[_Gram]:
    """Return the rarest trigrams, so many that a near text must have one of its own among them."""
    rarest = sorted(text.grams, key=lambda gram: (frequency[gram], gram))
    needed = math.ceil(threshold * len(rarest) - _ROUNDING)
    return rarest[: len(rarest) - needed + 1]


def _jaccard(one: frozenset[_Gram], other: frozenset[_Gram]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common)
