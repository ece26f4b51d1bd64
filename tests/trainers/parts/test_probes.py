# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Probes, rows, sampler and controller: what is asked of the model and of the engine."""

import json
import random
from pathlib import Path

import pytest
import torch

from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    FinalPrompt,
    Sample,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.parts import mixer, rows, sampler, schedule
from agentgym.trainers.parts.controllers import adaptive_coefficient
from agentgym.trainers.parts.probes import belief_fields, final_prompt_ids, gold_answer
from agentgym.trainers.parts.tables import RowTable

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())


def make_trajectory(name="a", **changes):
    """P P A A | O A: the second turn reads everything before it, then there is one more id."""
    first = TokenTrace(ids=(5, 6), versions=(VersionRun(version=0, count=2),))
    second = TokenTrace(ids=(4,), versions=(VersionRun(version=0, count=1),))
    turns = (
        Turn(index=0, prompt_ids=(1, 2), completion=Completion(text="", tokens=first)),
        Turn(
            index=1,
            parent=0,
            prefix_length=4,
            prompt_ids=(8,),
            completion=Completion(text="", tokens=second),
        ),
    )
    final = FinalPrompt(prefix_length=6, ids=(9,))
    values = {"id": name, "group_id": "g", "task_id": "t", "env_id": "e", "turns": turns}
    return Trajectory(**{**values, "final_prompt": final, **changes})


def encode(text):
    return [ord(character) for character in text]


def test_gold_answer_is_asked_before_each_turn_and_at_the_end():
    found = gold_answer(
        [make_trajectory()], {"t": ("x", "yz")}, encode, template="<{answer}/>", final_prompt=True
    )
    assert [one.scored for one in found] == [(1, 2)] * 3 + [(1, 3)] * 3
    assert [(one.column, one.prefix, one.target) for one in found] == [
        (0, (1, 2), (60, 120)),
        (1, (1, 2, 5, 6, 8), (60, 120)),
        (2, (1, 2, 5, 6, 8, 4, 9), (60, 120)),
        (0, (1, 2), (60, 121, 122)),
        (1, (1, 2, 5, 6, 8), (60, 121, 122)),
        (2, (1, 2, 5, 6, 8, 4, 9), (60, 121, 122)),
    ]
    fewer = gold_answer(
        [make_trajectory()], {"t": ("x",)}, encode, template="{answer}", final_prompt=False
    )
    assert [one.column for one in fewer] == [0, 1]


def test_no_id_belongs_to_the_template_and_to_the_answer():
    """A tokenizer that writes `>1` as one id: the answer is scored as it is written alone."""

    def merging(text):
        return encode(text.replace(">1", "\u263a"))

    options = {"template": "<a>{answer}</a>", "final_prompt": False}
    one = gold_answer([make_trajectory()], {"t": ("17",)}, merging, **options)[0]
    start, stop = one.scored
    assert one.target[:start] == tuple(encode("<a>"))
    assert one.target[start:stop] == tuple(encode("17"))


def test_nothing_is_asked_of_failures_text_policies_and_tasks_without_answer():
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
    failed = make_trajectory("b", failure=failure)
    text = make_trajectory(
        "c", turns=(Turn(index=0, completion=Completion(text="hi")),), final_prompt=None
    )
    other = make_trajectory("d", task_id="unknown")
    options = {"template": "{answer}", "final_prompt": True}
    assert gold_answer([failed, text, other], {"t": ("x",)}, encode, **options) == ()
    for template in ("{answer}", "<{answer}>"):
        options = {"template": template, "final_prompt": True}
        assert gold_answer([make_trajectory()], {"t": ("",)}, encode, **options) == ()
    for template in ("answer", "{answer}{answer}"):
        with pytest.raises(ValueError, match=r"must contain '\{answer\}' once"):
            gold_answer([], {}, encode, template=template, final_prompt=False)


def test_beliefs_come_back_as_a_table_with_the_likeliest_answer():
    items = [make_trajectory(), make_trajectory("b")]
    found = gold_answer(items, {"t": ("x", "y")}, encode, template="{answer}", final_prompt=False)
    numbers = [-3.0, -1.0, -2.0, -4.0, -0.5, -0.6, -0.7, -0.1]
    table = belief_fields(found, numbers, trajectories=2, turns=2)
    assert table[:, :2].tolist() == [[-2.0, -1.0], [-0.5, -0.1]]
    assert table.shape == (2, 3)
    assert table[:, 2].isnan().all()
    with pytest.raises(ValueError, match="8 requests, but 1 results"):
        belief_fields(found, [0.0], trajectories=2, turns=2)


def test_final_prompt_keeps_what_the_record_says():
    assert final_prompt_ids(make_trajectory()) == (1, 2, 5, 6, 8, 4, 9)
    shorter = make_trajectory(final_prompt=FinalPrompt(prefix_length=2, ids=(7, 7)))
    assert final_prompt_ids(shorter) == (1, 2, 7, 7)
    assert final_prompt_ids(make_trajectory(final_prompt=None)) is None
    (first, _) = make_trajectory().turns
    final = FinalPrompt(prefix_length=4, ids=(3,))
    assert final_prompt_ids(make_trajectory(turns=(first,), final_prompt=final)) == (1, 2, 5, 6, 3)
    assert final_prompt_ids(make_trajectory(turns=(), final_prompt=final)) is None


def test_turn_rows_train_each_id_once_with_its_whole_context():
    sample = Sample(
        id="a/0",
        trajectory_id="a",
        group_id="g",
        ids=(1, 2, 5, 6, 8, 4),
        loss_mask=(False, False, True, True, False, True),
        behavior_logprobs=(0.0, 0.0, -0.5, -0.25, 0.0, -1.0),
        versions=(-1, -1, 3, 4, -1, 4),
        turn_ids=(-1, -1, 0, 0, -1, 1),
    )
    first, second = rows.turn([sample])
    assert first.ids == (1, 2, 5, 6)
    assert first.loss_mask == (False, False, True, True)
    assert first.versions == (-1, -1, 3, 4)
    assert second.ids == sample.ids
    assert second.loss_mask == (False,) * 5 + (True,)
    assert second.turn_ids == (-1,) * 5 + (1,)
    assert second.behavior_logprobs == sample.behavior_logprobs
    assert first.id != second.id
    assert rows.segment([sample]) == (sample,)


def test_sampler_repeats_no_task_while_others_are_left():
    chosen = sampler.uniform([1.0, 0.0, 2.0, 1.0], 3, random.Random(7))
    assert sorted(chosen) == [0, 2, 3]
    more = sampler.uniform([1.0, 0.0, 2.0, 1.0], 6, random.Random(7))
    assert sorted(more) == [0, 0, 2, 2, 3, 3]
    five = sampler.uniform([1.0, 0.0, 2.0, 1.0], 5, random.Random(7))
    assert (len(five), sorted(five[:3])) == (5, [0, 2, 3])
    assert sampler.uniform([1.0] * 9, 4, random.Random(1)) == sampler.uniform(
        [1.0] * 9, 4, random.Random(1)
    )
    firsts = [sampler.uniform([1.0, 3.0], 1, random.Random(seed))[0] for seed in range(2000)]
    assert 0.71 < sum(firsts) / 2000 < 0.79  # 3 of 4
    with pytest.raises(ValueError, match="no task has a weight above 0"):
        sampler.uniform([0.0], 1, random.Random(0))


def test_rollout_mixer_and_schedule_of_the_plain_step():
    plans = sampler.group([4, 2], 8)
    assert [(plan.task, plan.count) for plan in plans] == [(4, 8), (2, 8)]
    assert mixer.none([]) == ()
    mask = torch.tensor([[True, False]])
    table = RowTable(
        mask=mask,
        turn_ids=torch.zeros(1, 2, dtype=torch.long),
        role_ids=torch.zeros(1, 2, dtype=torch.long),
        trajectory=torch.zeros(1, dtype=torch.long),
        versions=torch.zeros(1, 2, dtype=torch.long),
        logprobs={},
        fields={},
    )
    (phase,) = schedule.joint(table)
    assert phase.name == "joint"
    assert phase.tokens.all()


@pytest.mark.parametrize(("measured", "at"), [(3.0, 0), (12.0, 1)])
def test_adaptive_coefficient_matches_golden(measured, at):
    actual = adaptive_coefficient(0.2, measured, 256, target=6.0, horizon=1e4)
    assert actual == pytest.approx(GOLDEN["adkl"]["beta"][at], rel=1e-5)
    # inside the bound: 6.6 / 6 - 1 = .1, half of the largest error
    assert adaptive_coefficient(1.0, 6.6, 100, target=6.0, horizon=100.0) == pytest.approx(1.1)
    # 0.44 / 0.4 - 1 = .1 over half of the horizon
    assert adaptive_coefficient(1.0, 0.44, 1, target=0.4, horizon=2.0) == pytest.approx(1.05)
    assert adaptive_coefficient(1.0, 0.44, 1, target=0.4, horizon=1.0) == pytest.approx(1.1)
    for target, horizon in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)):
        with pytest.raises(ValueError, match=r"must be > 0 \(got"):
            adaptive_coefficient(1.0, 1.0, 1, target=target, horizon=horizon)
