# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""What is not known is not 0, and what is masked may be any number.

Classes of faults: missing taken for a value (F4), masking by multiplication (F9).
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentgym.errors import RecordError
from agentgym.records import Completion, Score, TokenTrace, Trajectory, Turn, VersionRun
from agentgym.rollouts.samples import to_samples
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.loop.steps import _means
from agentgym.trainers.objective.prepare import micro_loss, prepare
from agentgym.trainers.objective.preset import list_presets, load_preset

RUN = (VersionRun(version=0, count=2),)


def episode(name: str, logprobs: list[tuple[float, ...] | None]) -> Trajectory:
    """Turns of a prompt of two ids and two sampled ones."""
    turns = tuple(
        Turn(
            index=at,
            parent=at - 1 if at else None,
            prefix_length=4 * at,
            prompt_ids=(7, 7),
            completion=Completion(
                text="", tokens=TokenTrace(ids=(5, 6), behavior_logprobs=given, versions=RUN)
            ),
        )
        for at, given in enumerate(logprobs)
    )
    return Trajectory(id=name, group_id="g", task_id="t", env_id="e", turns=turns, terminated=True)


def collated(*episodes: Trajectory, is_scored: bool = True) -> Batch:
    samples = [sample for one in episodes for sample in to_samples(one)]
    scores = [
        Score(trajectory_id=one.id, scorer_id="s", outcome=float(at % 2), is_success=bool(at % 2))
        for at, one in enumerate(episodes)
    ]
    return collate(samples, episodes, scores if is_scored else (), pad_id=0)


GIVEN = (-1.0, -2.0)


@pytest.mark.parametrize("logprobs", [[None], [GIVEN, None], [None, GIVEN], [GIVEN, None, GIVEN]])
def test_f4_sampled_ids_without_log_probabilities_are_refused(logprobs: Any) -> None:
    (row,) = to_samples(episode("a", logprobs))
    assert row.behavior_logprobs is None
    message = r"row 'a-s0' has sampled ids without log-probabilities \(got None\)"
    with pytest.raises(RecordError, match=message):
        collated(episode("a", logprobs), episode("b", [GIVEN]))


def test_f4_rows_that_no_ratio_is_taken_over_need_none_and_are_no_certainty() -> None:
    batch = collated(episode("a", [None]), episode("b", [GIVEN]), is_scored=False)
    behavior = batch.rows.logprobs["behavior"]
    assert behavior[0].isnan().all()
    assert behavior[1].tolist() == [0, 0, -1, -2]


def test_f4_a_turn_without_ids_lacks_nothing() -> None:
    silent = Turn(
        index=1,
        parent=0,
        prefix_length=4,
        prompt_ids=(7,),
        completion=Completion(text="", tokens=TokenTrace(ids=())),
    )
    one = episode("a", [GIVEN])
    one = Trajectory(
        id="a",
        group_id="g",
        task_id="t",
        env_id="e",
        turns=(*one.turns, silent),
        terminated=True,
    )
    (row,) = to_samples(one)
    assert row.behavior_logprobs == (0.0, 0.0, -1.0, -2.0, 0.0)


def test_f4_a_metric_that_an_update_lacks_is_in_no_mean() -> None:
    assert _means([{"loss": 4.0, "tokens": 2.0}, {"tokens": 4.0}]) == {"loss": 4.0, "tokens": 3.0}


@pytest.mark.parametrize("name", list_presets())
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf")])
def test_f9_numbers_off_the_mask_change_neither_loss_nor_gradient(name: str, junk: float) -> None:
    """Every number that a model or a record has for a token, off the mask."""
    preset = load_preset(name, {"regularizers": [], **_anywhere(name)})
    plain = collated(episode("a", [GIVEN, GIVEN]), episode("b", [GIVEN]))
    mask, shape = plain.rows.mask, plain.ids.shape
    generator = torch.Generator().manual_seed(1)

    def numbers() -> Any:
        return -torch.rand(shape, generator=generator, dtype=torch.float64)

    fields = {name: numbers() for name in ("behavior", "proximal", "reference")}
    values, policy = numbers(), numbers()
    beliefs = torch.zeros(2, 3, dtype=torch.float64) - 1
    found = []
    for filled in (None, junk):

        def fill(given: Any, filled: float | None = filled) -> Any:
            return given if filled is None else torch.where(mask, given, filled)

        batch = plain.with_logprobs(**{key: fill(one) for key, one in fields.items()})
        batch = batch.with_token_fields(values=fill(values))
        batch = batch.with_turn_fields(belief_logprobs=beliefs)
        leaf, head = (fill(one).detach().clone().requires_grad_() for one in (policy, values))
        prepared = prepare(preset, batch)
        part = micro_loss(preset, prepared, torch.arange(2), leaf, values=head)
        part.loss.backward()
        assert all(bool(one.isfinite().all()) for one in (prepared.coefficients, leaf.grad))
        found.append((part.loss.detach(), leaf.grad, head.grad))
    for a, b in zip(*found, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def _anywhere(name: str) -> dict[str, Any]:
    """Return settings under which each weight that could be multiplied with a mask is there."""
    if load_preset(name).critic is not None:
        return {"correction": {"part": "masked", "level": "token", "low": 0.5, "high": 2.0}}
    return {"correction": {"part": "truncated", "level": "turn", "cap": 2.0}}
