# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""The walk through one group's numbers, on a batch whose numbers are worked by hand."""

import pytest
import torch

from agentgym.records import Completion, Sample, Score, TokenTrace, Trajectory, Turn, VersionRun
from agentgym.trainers.batch import collate
from agentgym.trainers.objective.explain import explain
from agentgym.trainers.objective.preset import load_preset


def make_batch():
    """Group g: a with turns of 2 and 1 tokens and outcome 1, b with one turn of 2 and outcome 0."""
    items, samples = [], []
    for name, sizes in (("a", [2, 1]), ("b", [2])):
        turns = tuple(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                prompt_ids=(7,),
                completion=Completion(
                    text="",
                    tokens=TokenTrace(
                        ids=(5,) * size, versions=(VersionRun(version=0, count=size),)
                    ),
                ),
            )
            for index, size in enumerate(sizes)
        )
        items.append(
            Trajectory(id=name, group_id="g", task_id="t", env_id="e", turns=turns, truncated=True)
        )
        turn_ids = [turn for turn, size in enumerate(sizes) for _ in range(size)]
        samples.append(
            Sample(
                id=name,
                trajectory_id=name,
                group_id="g",
                ids=(5,) * len(turn_ids),
                loss_mask=(True,) * len(turn_ids),
                behavior_logprobs=(0.0,) * len(turn_ids),
                versions=(0,) * len(turn_ids),
                turn_ids=tuple(turn_ids),
            )
        )
    scores = [
        Score(trajectory_id=name, scorer_id="s", outcome=outcome, is_success=False)
        for name, outcome in (("a", 1.0), ("b", 0.0))
    ]
    return collate(samples, items, scores, pad_id=0)


def test_explain_walks_from_rewards_to_weights():
    # dr_grpo: A = +-1/2; coefficient 1 / (2 trajectories * 10 tokens) = .05
    preset = load_preset("dr_grpo", {"aggregation.max_tokens": 10})
    lines = explain(preset, make_batch(), "g")
    assert lines == (
        "group g, preset dr_grpo: 2 of 2 trajectories",
        "",
        "trajectory a: outcome 1, 3 of 3 sampled tokens trained, 1 rows, truncated",
        "  turn  outcome  outcome.normalise    A  tokens  coefficient  weight",
        "     0        1                0.5  0.5       2         0.05    0.05",
        "     1        1                0.5  0.5       1         0.05   0.025",
        "",
        "trajectory b: outcome 0, 2 of 2 sampled tokens trained, 1 rows, truncated",
        "  turn  outcome  outcome.normalise     A  tokens  coefficient  weight",
        "     0        0               -0.5  -0.5       2         0.05   -0.05",
    )


def test_explain_shows_none_apart_from_zero_and_the_clip_widths():
    beliefs = torch.tensor([[0.2, 0.6, 0.0], [0.5, 0.0, 0.0]]).double().log()
    batch = make_batch().with_turn_fields(belief_logprobs=beliefs)
    lines = explain(load_preset("a2tgpo"), batch, "g")
    assert lines[3].split() == [
        "turn", "gain", "outcome", "gain.normalise", "outcome.normalise", "A",
        "clip", "low", "clip", "high", "tokens", "coefficient", "weight",
    ]  # fmt: skip
    assert lines[4].split()[:4] == ["0", "0.4", "1", "0"]
    assert lines[5].split()[:4] == ["1", "-", "1", "-"]


def test_explain_says_what_it_cannot_find():
    with pytest.raises(LookupError, match=r"no group 'x' in the batch \(known: g\)"):
        explain(load_preset("grpo"), make_batch(), "x")
    with pytest.raises(LookupError, match="run the preset's probes"):
        explain(load_preset("igpo"), make_batch(), "g")


def test_explain_names_a_group_that_is_drawn_again():
    part = {
        "part": "zero_variance_group",
        "tolerance": 1.0,
        "refill": True,
        "statistics": "include",
    }
    lines = explain(load_preset("grpo", {"filters": [part]}), make_batch(), "g")
    assert lines[1] == "the filters ask for another group in its place"
    assert "0 of 3 sampled tokens trained" in lines[3]
