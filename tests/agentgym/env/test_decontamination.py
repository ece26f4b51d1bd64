"""Held-out tasks that are nearly training tasks, by similarities worked out by hand."""

from __future__ import annotations

import random

import pytest

from agentgym.env.decontamination import THRESHOLD, NearDuplicate, near_duplicates
from agentgym.records import Task

WORDS = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)]


def task(task_id: str, prompt: str, *answers: str) -> Task:
    return Task(id=task_id, env_id="a/b-v0", prompt=prompt, answers=answers)


def replaced(words: list[str], place: int, by: str) -> str:
    return " ".join([*words[:place], by, *words[place + 1 :]])


def test_similarity_is_that_of_word_trigrams() -> None:
    """64 words have 62 trigrams; one word within is in 3 of them: (62 - 3) / (62 + 3) = 0.9077."""
    words = WORDS[:64]
    (found,) = near_duplicates(
        [task("t", " ".join(words), "9")], [task("h", replaced(words, 30, "other"), "9")]
    )
    assert found == NearDuplicate(train_id="t", held_out_id="h", similarity=59 / 65)


def test_threshold_is_reached_or_not() -> None:
    """59 words: (57 - 3) / (57 + 3) = 0.9 is near; 58 words: 53 / 59 = 0.898 is not."""
    for count, expected in ((59, 1), (58, 0)):
        words = WORDS[:count]
        train, held_out = task("t", " ".join(words)), task("h", replaced(words, 30, "other"))
        assert len(near_duplicates([train], [held_out], threshold=THRESHOLD)) == expected, count


@pytest.mark.parametrize(
    "prompt",
    [
        "How many apples do Ann and Bob have, 3 + 4?",
        "how many apples do ann and bob have 3 + 4",
        "How many apples  do “Ann” and\nBob have: 3 ＋ 4 …".replace("…", "."),
    ],
)
def test_case_spacing_marks_and_width_make_no_other_task(prompt: str) -> None:
    train = task("t", "How many apples do Ann and Bob have, 3 + 4?", "7")
    (found,) = near_duplicates([train], [task("h", prompt, "7")])
    assert found.similarity == 1.0


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("How many apples do Ann and Bob have, 3 + 5?", "7"),  # another number
        ("How many apples do Ann and Bob have, 3 * 4?", "7"),  # another sign: 2 of 9 trigrams
        ("How many apples do Ann and Bob have, 3 + 4?", "8"),  # another answer
        ("How many apples do Ann and Bob have, 3 + 4?", ""),
    ],
)
def test_other_number_sign_or_answer_is_another_task(prompt: str, answer: str) -> None:
    train = task("t", "How many apples do Ann and Bob have, 3 + 4?", "7")
    held_out = task("h", prompt, *([answer] if answer else []))
    assert near_duplicates([train], [held_out]) == ()


def test_prompts_without_prose_are_left_out() -> None:
    for prompt in ("", "3 + 4", ".G..\n..O.\n...A", "one two three"):
        assert near_duplicates([task("t", prompt)], [task("h", prompt)]) == ()


def test_nearest_training_task_is_named() -> None:
    words = WORDS[:90]
    train = [task("far", replaced(words, 40, "x")), task("near", " ".join(words))]
    (found,) = near_duplicates(train, [task("h", " ".join(words))])
    assert (found.train_id, found.similarity) == ("near", 1.0)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_none_is_missed_that_comparing_all_pairs_finds(threshold: float) -> None:
    """Texts of few words, so that many are alike; the index against the definition."""
    rng = random.Random(7)

    def grams(prompt: str) -> set[tuple[str, ...]]:
        words = prompt.split()
        return {tuple(words[n : n + 3]) for n in range(len(words) - 2)}

    def texts(prefix: str) -> list[Task]:
        tasks: list[Task] = []
        for number in range(60):
            words = WORDS[:12].copy()
            for _ in range(rng.randrange(3)):
                words[rng.randrange(12)] = rng.choice(WORDS[:20])
            tasks.append(task(f"{prefix}{number}", " ".join(words)))
        return tasks

    train, held_out = texts("t"), texts("h")
    wanted: set[str] = set()
    for one in held_out:
        for other in train:
            a, b = grams(one.prompt), grams(other.prompt)
            if len(a & b) / len(a | b) >= threshold:
                wanted.add(one.id)
    assert {
        found.held_out_id for found in near_duplicates(train, held_out, threshold=threshold)
    } == (wanted)
    assert wanted


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.1])
def test_threshold_is_checked(threshold: float) -> None:
    with pytest.raises(ValueError, match="'threshold' must be in"):
        near_duplicates([], [], threshold=threshold)
