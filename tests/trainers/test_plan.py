"""What a run plans is what it executes. Class of faults: a plan that is not what was executed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentgym.config import LearningRateSchedule, load_config
from agentgym.records import Group
from agentgym.runs.dry_run import implications
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.optimizer import learning_rate_factor
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.loop.collect import minibatches
from agentgym.trainers.loop.run_preset import measures_gap, preset_of
from agentgym.trainers.loop.session import Session
from agentgym.trainers.loop.steps import _updates
from agentgym.trainers.objective.preset import load_preset


def groups(count: int) -> list[Group]:
    return [
        Group(id=f"g{at}", task_id="t", requested_size=1, trajectories=()) for at in range(count)
    ]


# 4 in 3: ends at 4/3, 8/3, 4, rounded down; 9 in 8: seven of one and the last of two.
@pytest.mark.parametrize(
    ("count", "pieces", "sizes"),
    [
        (4, 3, [1, 1, 2]),
        (6, 4, [1, 2, 1, 2]),
        (9, 8, [1, 1, 1, 1, 1, 1, 1, 2]),
        (8, 2, [4, 4]),
        (2, 3, [1, 1]),  # fewer groups than planned: no update is made up
        (0, 3, []),
        (5, 1, [5]),
    ],
)
def test_f5_a_pass_takes_as_many_updates_as_planned(
    count: int, pieces: int, sizes: list[int]
) -> None:
    cut = minibatches(groups(count), pieces)
    assert [len(piece) for piece in cut] == sizes
    assert [one.id for piece in cut for one in piece] == [one.id for one in groups(count)]


class Counting:
    """A learner that notes where in the plan each update stands; every second one is skipped."""

    def __init__(self) -> None:
        self.updates = 0
        self.places: list[int] = []

    def with_anchor(self, batch: Any) -> Any:
        return batch

    def update(self, batch: Any, *, is_single: bool, planned: int) -> dict[str, float]:
        self.places.append(planned)
        self.updates += planned % 2
        return {"trained_tokens": 1.0}


def session(learner: Counting, *, step: int, **settings: Any) -> Session:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    found = Session.__new__(Session)
    for name, part in {
        "config": load_config(settings={"envs": ["x"], **given}),
        "preset": load_preset("grpo"),
        "learner": learner,
        "clock": Stopwatch(),
        "step": step,
    }.items():
        setattr(found, name, part)
    return found


def test_f5_the_learning_rate_goes_by_the_plan_whatever_was_skipped() -> None:
    """2 epochs of 3: step 4 has the places 24 to 29, though one of three batches is missing."""
    learner = Counting()
    settings = {"optim__epochs": 2, "optim__minibatches": 3}
    whole = [Batch.__new__(Batch) for _ in range(3)]  # what is in them is not looked at
    found = _updates(session(learner, step=4, **settings), whole)
    assert learner.places == [24, 25, 26, 27, 28, 29]
    assert (found["updates"], found["skipped_updates"]) == (3, 3)
    learner.places.clear()
    found = _updates(session(learner, step=5, **settings), whole[:2])
    assert learner.places == [30, 31, 33, 34]
    assert (found["updates"], found["skipped_updates"]) == (2, 4)


def test_f5_a_schedule_ends_at_the_last_step() -> None:
    """10 steps of 3: the last update is the 30th of 30 planned, 1/30 of the peak is left."""
    config = load_config(settings={"envs": ["x"], "steps": 10, "optim.minibatches": 3})
    total = config.steps * config.optim.updates_per_step
    linear = LearningRateSchedule.LINEAR
    assert total == 30
    factor = learning_rate_factor(total - 1, warmup=0, total=total, schedule=linear)
    assert factor == pytest.approx(1 / 30)


VLLM = {"envs": ["math/arithmetic-v0"], "policy": "vllm:http://127.0.0.1:1"}


def gap_line(**settings: Any) -> list[str]:
    config = load_config(settings={**VLLM, **settings})
    return [line.value for line in implications(config) if line.name == "gap to vLLM"]


def test_f10_vllm_is_corrected_by_default_and_a_dry_run_says_so() -> None:
    config = load_config(settings=VLLM)
    assert measures_gap(config)
    found = preset_of(config).correction
    assert (found.part, found.parameters) == ("truncated", {"level": "token", "cap": 2.0})
    assert not preset_of(config).can_skip_proximal
    (line,) = gap_line()
    assert "measured in every step; corrected by truncated importance weights" in line
    engine = {"envs": ["x"], "policy": "tiny", "rollout.engine": "vllm"}
    assert preset_of(load_config(settings=engine)).correction.part == "truncated"


def test_f10_what_somebody_chose_is_left() -> None:
    none = {"preset_overrides": {"correction.part": "none"}}
    config = load_config(settings={**VLLM, **none})
    assert preset_of(config).correction.part == "none"
    assert measures_gap(config)
    assert gap_line(**none) == [
        "measured in every step; not corrected, as 'correction.part' is none"
    ]
    behavior = {"preset_overrides": {"anchor.part": "behavior"}}
    assert preset_of(load_config(settings={**VLLM, **behavior})).correction.part == "none"
    assert "anchor behavior" in gap_line(**behavior)[0]
    masked = {
        "correction.part": "masked",
        "correction.level": "token",
        "correction.low": 0.5,
        "correction.high": 2.0,
    }
    chosen = load_config(settings={**VLLM, "preset_overrides": masked})
    assert preset_of(chosen).correction.part == "masked"


def test_f10_the_learners_own_samples_are_left_alone() -> None:
    config = load_config(settings={"envs": ["math/arithmetic-v0"]})
    assert preset_of(config) == load_preset("grpo")
    assert not measures_gap(config)
    assert not [line for line in implications(config) if line.name == "gap to vLLM"]
