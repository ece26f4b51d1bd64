"""Demonstrations and supervised steps on them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.config import EnvSource, OptimConfig, WarmstartConfig
from agentgym.errors import ConfigError
from agentgym.limits import Limits
from agentgym.records import Source, Trajectory
from agentgym.renderer.folder import load_renderer
from agentgym.trainers.learner import Learner
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.preset import load_preset
from agentgym.trainers.sources import TaskStream, open_sources
from agentgym.trainers.warmstart import SupervisedTrainer, demonstrate, demonstration_rows


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
