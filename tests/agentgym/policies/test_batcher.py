"""The batcher under any order of requests, cancellations and ends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from agentgym.policies.transformers.batcher import Batcher, BatchLimits
from agentgym.policies.transformers.forward import ModelRunner
from agentgym.policies.transformers.jobs import Job, Outcome, StopScanner, version_runs
from agentgym.records import Sampling, VersionRun

END = 1


def make_batcher(model: Any, *, max_rows: int = 64, is_deterministic: bool = False) -> Batcher:
    return Batcher(
        ModelRunner(model),
        end_ids=frozenset({END}),
        stops=StopScanner(lambda ids: "x" * len(ids), vocabulary_size=model.config.vocab_size),
        limits=BatchLimits(
            max_rows=max_rows,
            prefill_tokens=64,
            max_context_tokens=200,
            is_deterministic=is_deterministic,
        ),
    )


def check_places(batcher: Batcher) -> None:
    """Every row stands where it says, those that decode at the front."""
    for place, row in enumerate(batcher._places):
        assert row is None or row.place == place
    assert {r.place for r in batcher._rows.values()} == {
        place for place, row in enumerate(batcher._places) if row is not None
    }
    assert [row.place for row in batcher._active] == list(range(len(batcher._active)))
    assert all(row.job is not None for row in batcher._active)


@torch.no_grad()
def worst_gap(model: Any, job: Job, outcome: Outcome) -> float:
    logits = model(torch.tensor([[*job.prompt, *outcome.ids]])).logits[0].float()
    logprobs = logits.log_softmax(-1)[len(job.prompt) - 1 : -1]
    expected = logprobs.gather(-1, torch.tensor(outcome.ids)[:, None])[:, 0]
    return float((expected - torch.tensor(outcome.logprobs)).abs().max())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_rows", [5, 64])
@torch.no_grad()
def test_any_schedule_keeps_rows_apart(
    load_tiny: Callable[[], Any], seed: int, max_rows: int
) -> None:
    model = load_tiny()
    batcher = make_batcher(model, max_rows=max_rows)
    rng = Random(seed)
    answered: list[tuple[Job, Outcome]] = []
    contexts: dict[str, tuple[int, ...]] = {}
    busy: dict[str, Job] = {}

    def submit(name: str) -> None:
        held = contexts.get(name, ())
        kept = held[: rng.randrange(len(held) + 1)] if rng.random() < 0.3 else held
        prompt = (*kept, *(rng.randrange(20, 250) for _ in range(rng.randrange(1, 9))))[-150:]

        def on_done(outcome: Outcome | Exception) -> None:
            assert isinstance(outcome, Outcome)
            answered.append((job, outcome))
            contexts[name] = job.prompt + outcome.ids
            del busy[name]

        sampling = Sampling(max_new_tokens=rng.randrange(1, 12))
        job = Job(
            episode_id=name, prompt=prompt, sampling=sampling, rng=Random(seed), on_done=on_done
        )
        busy[name] = job
        batcher.submit(job)

    for _ in range(300):
        name = f"e{rng.randrange(9)}"
        match rng.choice(("ask", "ask", "step", "step", "step", "begin", "cancel", "end", "new")):
            case "ask" if name not in busy:
                submit(name)
            case "step":
                batcher.step(0)
            case "begin":
                batcher.begin(name)
            case "cancel" if name in busy and rng.random() < 0.5:
                batcher.cancel(busy.pop(name))
            case "end" if rng.random() < 0.5:
                batcher.end(name)
                busy.pop(name, None)
            case "new" if rng.random() < 0.2:
                batcher.forget()
            case _:
                pass
        check_places(batcher)
    while batcher.jobs:
        batcher.step(0)
    check_places(batcher)
    assert not busy
    assert len(answered) > 20
    assert max(worst_gap(model, job, outcome) for job, outcome in answered) < 1e-4


def test_deterministic_batch_waits_for_every_begun_episode(load_tiny: Callable[[], Any]) -> None:
    batcher = make_batcher(load_tiny(), is_deterministic=True)
    for name in ("a", "b"):
        batcher.begin(name)

    def job(name: str) -> Job:
        return Job(
            episode_id=name,
            prompt=(30, 31),
            sampling=Sampling(max_new_tokens=3),
            rng=Random(1),
            on_done=lambda outcome: None,
        )

    batcher.submit(job("b"))
    assert not batcher.can_step
    batcher.submit(job("a"))
    assert batcher.can_step
    with torch.no_grad():
        batcher.step(0)
    # The rows stand by name, whoever asked first; nobody joins while they run.
    assert [row.episode_id for row in batcher._active] == ["a", "b"]
    batcher.begin("c")
    batcher.submit(job("c"))
    with torch.no_grad():
        batcher.step(0)
    assert [row.episode_id for row in batcher._active] == ["a", "b"]
    batcher.end("a")
    batcher.end("b")
    assert batcher.can_step


# <tag> is one id, its letters and brackets are ids too; "é" is two ids that mean nothing alone.
TEXTS = ["<", "t", "a", "g", ">", "<tag>", ">x", "\ufffd", "\ufffd"]


def decode(ids: Any) -> str:
    text = "".join(TEXTS[i] for i in ids)
    return text.replace("\ufffd\ufffd", "é")


@pytest.mark.parametrize(
    ("ids", "stop", "is_stopped"),
    [
        ([0, 1, 2, 3], "<tag>", False),
        ([0, 1, 2, 3, 4], "<tag>", True),
        ([2, 5], "<tag>", True),
        ([0, 1, 2, 3, 6], "<tag>", True),  # the last id goes on past the string
        ([1, 2, 3, 4], "<tag>", False),  # no "<"
        ([2, 7], "aé", False),
        ([2, 7, 8], "aé", True),  # completed by half a character
        ([2, 3], "", False),
        ([1] * 50 + [0, 1, 2, 3, 4], "<tag>", True),
    ],
)
def test_stop_strings_are_found_whatever_ids_spell_them(
    ids: list[int], stop: str, is_stopped: bool
) -> None:
    scanner = StopScanner(decode, vocabulary_size=len(TEXTS))
    assert scanner.is_stopped(ids, (stop, "never")) == is_stopped


def test_version_runs_join_equal_neighbours() -> None:
    assert version_runs([3, 3, 4, 3]) == (
        VersionRun(version=3, count=2),
        VersionRun(version=4, count=1),
        VersionRun(version=3, count=1),
    )
    assert version_runs([]) == ()
