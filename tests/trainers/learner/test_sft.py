"""Demonstrations and supervised steps on them.

Class: *work that is kept only at its end* (F47).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.config import EnvSource, OptimConfig, RunConfig, WarmstartConfig
from agentgym.errors import ConfigError
from agentgym.records import Source, Trajectory
from agentgym.records.limits import Limits
from agentgym.renderer.folder import load_renderer
from agentgym.trainers.learner import checkpoint
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.sft import SupervisedTrainer, demonstrate, demonstration_rows
from agentgym.trainers.loop.setup import FRESH
from agentgym.trainers.models import tokenizer_corpus
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.objective.preset import load_preset
from agentgym.trainers.rollout.task_stream import TaskStream, open_sources


def stream() -> TaskStream:
    return TaskStream(open_sources([EnvSource(name="math/arithmetic")]), seed=0)


def demos(count: int, share: float) -> tuple[Trajectory, ...]:
    config = WarmstartConfig(steps=1, warmup_steps=0, demos=count, guess_share=share)
    return asyncio.run(demonstrate(stream(), config, seed=5, limits=Limits(), max_concurrent=8))


def test_demonstrate_plays_the_expert_and_a_share_of_guesses() -> None:
    episodes = demos(60, 0.4)
    assert all(t.completion.source is Source.EXPERT for e in episodes for t in e.turns)
    guesses = [episode for episode in episodes if not episode.tools or len(episode.turns) == 1]
    solved = [episode for episode in episodes if episode.outcome == 1.0]
    assert len(solved) + len(guesses) == 60  # a guess is wrong, an expert's episode is right
    # 24 expected of 60; four standard deviations are 4 * sqrt(60 * 0.24) = 15.
    assert abs(len(guesses) - 24) <= 15
    assert all(episode.outcome == 1.0 for episode in demos(20, 0.0))


def test_demonstrate_repeats_itself() -> None:
    texts = [[t.completion.text for e in demos(12, 0.5) for t in e.turns] for _ in range(2)]
    assert texts[0] == texts[1]


def trainer(tmp_path: Path, *, steps: int, batch: int = 8) -> tuple[SupervisedTrainer, Learner]:
    episodes = demos(24, 0.0)
    folder = build_tiny(tmp_path / "tiny", corpus=["<answer>12</answer>"], seed=3)
    renderer = load_renderer(folder)
    learner = Learner(
        load_model(folder),
        preset=load_preset("grpo"),
        optim=OptimConfig(),
        total_updates=1,
        temperature=1.0,
    )
    config = WarmstartConfig(
        steps=steps,
        demos=24,
        batch_size=batch,
        warmup_steps=2,
        decay_share=0.5,
        learning_rate=0.004,
    )
    rows = demonstration_rows(episodes, renderer)
    subject = SupervisedTrainer(
        learner, rows, config, total_steps=steps, seed=1, pad_id=renderer.pad_id
    )
    return subject, learner


def test_demonstration_rows_train_the_experts_words_only(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path / "tiny", seed=3)
    renderer = load_renderer(folder)
    episode = demos(1, 0.0)[0]
    rows = demonstration_rows([episode], renderer)
    trained = [i for row in rows for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
    expected = [
        i for turn in episode.turns for i in renderer.encode_completion(turn.completion.text)
    ]
    assert trained == expected
    assert rows[0].behavior_logprobs is None


def test_supervised_steps_begin_at_chance_and_learn(tmp_path: Path) -> None:
    subject, learner = trainer(tmp_path, steps=12)
    first = subject.step()
    model: Any = learner.model
    vocabulary = model.config.vocab_size
    assert first == pytest.approx(math.log(vocabulary), abs=0.3)  # an untrained model: uniform
    last = asyncio.run(subject.run())
    assert subject.steps_done == 12
    assert last < first - 1.0


def test_supervised_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    subject, _ = trainer(tmp_path, steps=8)
    rates = []
    for _ in range(8):
        subject.step()
        rates.append(subject._optimizer.param_groups[0]["lr"] / 0.004)
    # 2 steps of warm-up; the last 4 of 8 fall: 4/4, 3/4, 2/4, 1/4.
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_supervised_steps_use_every_row_once_in_a_pass(tmp_path: Path) -> None:
    subject, _ = trainer(tmp_path, steps=8)
    seen = [row for _ in range(3) for row in subject._next_rows()]
    assert sorted(seen) == list(range(24))


def test_supervised_run_notices_a_cancellation(tmp_path: Path) -> None:
    subject, _ = trainer(tmp_path, steps=1000)

    async def main() -> None:
        work = asyncio.create_task(subject.run())
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())
    assert 1 <= subject.steps_done <= 3


def test_supervised_trainer_needs_rows(tmp_path: Path) -> None:
    _, learner = trainer(tmp_path, steps=2)
    with pytest.raises(ConfigError, match="needs demonstrations"):
        SupervisedTrainer(learner, [], WarmstartConfig(), total_steps=1, seed=0, pad_id=0)
    assert torch.is_grad_enabled()


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.model.state_dict().items()}


def interrupt(subject: SupervisedTrainer, kept: Path) -> None:
    """Cancel a warm start after its first steps."""

    async def main() -> None:
        work = asyncio.create_task(subject.run(kept=kept))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())


def test_f47_an_interrupted_warm_start_goes_on_bit_equal(tmp_path: Path) -> None:
    whole, learner = trainer(tmp_path / "whole", steps=7)
    asyncio.run(whole.run())
    first, _ = trainer(tmp_path / "first", steps=7)
    kept = tmp_path / "run" / "checkpoints" / "warmstart"
    interrupt(first, kept)
    assert 0 < first.steps_done < 7
    assert checkpoint.is_usable(kept)
    second, other = trainer(tmp_path / "second", steps=7)
    second.restore(kept)
    assert second.steps_done == first.steps_done
    seen: list[int] = []
    asyncio.run(second.run(on_progress=lambda done, total, loss: seen.append(done)))
    assert seen == list(range(first.steps_done + 1, 8))
    for name, value in weights(learner).items():
        assert torch.equal(value, weights(other)[name]), name


def test_f47_a_warm_start_that_has_ended_is_not_taken_again(tmp_path: Path) -> None:
    subject, learner = trainer(tmp_path / "first", steps=3)
    kept = tmp_path / "warmstart"
    asyncio.run(subject.run(kept=kept))
    again, other = trainer(tmp_path / "second", steps=3)
    again.restore(kept)
    assert math.isnan(asyncio.run(again.run(kept=kept)))  # no step, no loss
    for name, value in weights(learner).items():
        assert torch.equal(value, weights(other)[name]), name


def test_f47_a_damaged_warm_start_is_named_and_taken_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject, _ = trainer(tmp_path, steps=3)
    kept = tmp_path / "warmstart"
    assert not checkpoint.is_usable(kept)
    subject.save(kept)
    (kept / "state.json").write_text("{}")
    with caplog.at_level(logging.WARNING, "agentgym"):
        assert not checkpoint.is_usable(kept)
    assert "warmstart (state.json is damaged)" in caplog.text


def test_f47_the_first_checkpoint_of_a_step_replaces_that_of_the_warm_start(tmp_path: Path) -> None:
    subject, learner = trainer(tmp_path / "model", steps=3)
    subject.save(tmp_path / "checkpoints" / checkpoint.WARM_START)
    assert checkpoint.latest(tmp_path / "checkpoints") is None
    saved = checkpoint.save(tmp_path / "checkpoints", learner, FRESH, keep=2)
    assert [*(tmp_path / "checkpoints").iterdir()] == [saved]


class Told:
    """Remembers what it is told of."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps = 0

    def on_phase(self, name: str, total: int | None) -> None:
        self.lines.append(f"{name} {total}")

    def on_step(self, metrics: Mapping[str, float]) -> None:
        self.steps += 1

    def on_evaluation(self, result: object) -> None:
        raise AssertionError

    def on_note(self, text: str) -> None:
        self.lines.append(text)

    def on_done(self, summary: Mapping[str, str]) -> None:
        raise AssertionError


def test_f47_the_episodes_of_the_tokenizer_are_announced_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_corpus, "TOKENIZER_EPISODES", 6)
    told = Told()
    config = RunConfig(envs=(EnvSource(name="math/arithmetic"),))
    asyncio.run(tokenizer_corpus.corpus_texts(stream(), config, told))
    assert told.steps == 6
    assert "learns from 6 episodes of the training tasks" in told.lines[0]
    assert told.lines[1:] == ["tokenizer's episodes 6"]
