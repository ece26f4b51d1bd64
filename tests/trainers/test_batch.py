# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""From records to tables, and from rows to micro-batches: tokens are drawn in each docstring."""

import dataclasses

import pytest
import torch

from agentgym.errors import RecordError
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    Sample,
    Score,
    Source,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.batch import collate
from agentgym.trainers.learner.layout import micro_batches


def make_turn(index, ids, *, agent="default", source=Source.POLICY, version=3):
    runs = (VersionRun(version=version, count=len(ids)),) if ids else ()
    return Turn(
        index=index,
        agent_id=agent,
        parent=index - 1 if index else None,
        prompt_ids=(7,),
        completion=Completion(text="", source=source, tokens=TokenTrace(ids=ids, versions=runs)),
    )


def make_trajectory(name, *turns, group="g", **changes):
    return Trajectory(id=name, group_id=group, task_id="t", env_id="e", turns=turns, **changes)


def make_sample(trajectory, ids, mask, turns, **changes):
    trained = [m == "1" for m in mask]
    values = {
        "id": f"{trajectory.id}/0",
        "trajectory_id": trajectory.id,
        "group_id": trajectory.group_id,
        "ids": tuple(ids),
        "loss_mask": tuple(trained),
        "behavior_logprobs": tuple(-0.5 if one else 0.0 for one in trained),
        "versions": tuple(3 if one else -1 for one in trained),
        "turn_ids": tuple(turns),
    }
    return Sample(**{**values, **changes})


def make_score(trajectory, outcome, **rewards):
    return Score(
        trajectory_id=trajectory.id,
        scorer_id="s",
        outcome=outcome,
        is_success=False,
        turn_rewards=rewards,
    )


def two_trajectories():
    """Trajectory a: P P A A O A (turns 0 0 and 1); trajectory b: P A E (turn 0)."""
    a = make_trajectory("a", make_turn(0, (5, 6)), make_turn(1, (4,)), truncated=True)
    b = make_trajectory("b", make_turn(0, (5, 2)), group="h", terminated=True)
    rows = [
        make_sample(a, [7, 7, 5, 6, 8, 4], "001101", [-1, -1, 0, 0, -1, 1]),
        make_sample(b, [7, 5, 2], "011", [-1, 0, 0]),
    ]
    return rows, [a, b]


def test_collate_builds_both_tables():
    rows, items = two_trajectories()
    scores = [make_score(items[1], 0.25), make_score(items[0], 1.0, tool=(0.0, None))]
    batch = collate(rows, items, scores, pad_id=99)
    assert batch.ids.tolist() == [[7, 7, 5, 6, 8, 4], [7, 5, 2, 99, 99, 99]]
    assert batch.lengths.tolist() == [6, 3]
    assert batch.rows.mask.tolist() == [
        [False, False, True, True, False, True],
        [False, True, True, False, False, False],
    ]
    assert batch.rows.turn_ids.tolist() == [[-1, -1, 0, 0, -1, 1], [-1, 0, 0, -1, -1, -1]]
    assert batch.rows.versions.tolist() == [[-1, -1, 3, 3, -1, 3], [-1, 3, 3, -1, -1, -1]]
    assert batch.rows.trajectory.tolist() == [0, 1]
    assert batch.rows.logprobs["behavior"][1].tolist() == [0, -0.5, -0.5, 0, 0, 0]
    assert batch.table.outcome.tolist() == [1.0, 0.25]
    assert batch.table.turn_valid.tolist() == [[True, True], [True, False]]
    assert batch.table.group.tolist() == [0, 1]
    assert batch.group_ids == ("g", "h")
    assert batch.table.truncated.tolist() == [True, False]
    assert batch.table.length.tolist() == [3, 2]
    # A zero that counts differs from none.
    assert batch.table.rewards["tool"].values.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert batch.table.rewards["tool"].valid.tolist() == [[True, False], [False, False]]


def test_mask_follows_provenance_not_markers_b1():
    """P P A A A E O O A E: six sampled ids, six trained."""
    item = make_trajectory("a", make_turn(0, (5, 5, 5, 9)), make_turn(1, (5, 9)))
    row = make_sample(
        item, [7, 7, 5, 5, 5, 9, 8, 8, 5, 9], "0011110011", [-1, -1, 0, 0, 0, 0, -1, -1, 1, 1]
    )
    batch = collate([row], [item], [], pad_id=9)
    assert batch.rows.mask.int().tolist() == [[0, 0, 1, 1, 1, 1, 0, 0, 1, 1]]
    assert int(batch.rows.mask.sum()) == 6


def test_mask_comes_from_lengths_where_pad_is_eos_b3():
    """Sampled 5 6 2 with EOS = PAD = 2, beside a row of five: the real EOS alone is trained."""
    short = make_trajectory("a", make_turn(0, (5, 6, 2)))
    long = make_trajectory("b", make_turn(0, (5,) * 5))
    rows = [
        make_sample(short, [5, 6, 2], "111", [0, 0, 0]),
        make_sample(long, [5] * 5, "11111", [0] * 5),
    ]
    batch = collate(rows, [short, long], [], pad_id=2)
    assert batch.ids[0].tolist() == [5, 6, 2, 2, 2]
    assert batch.rows.mask[0].int().tolist() == [1, 1, 1, 0, 0]


def test_lengths_that_differ_raise_at_the_record_b2():
    item = make_trajectory("a", make_turn(0, (5,)))
    with pytest.raises(RecordError, match="every per-token list must have 2 entries"):
        make_sample(item, [7, 5], "011", [-1, 0])


def test_trajectory_in_two_rows_is_one_line_of_the_table():
    item = make_trajectory("a", make_turn(0, (5,)), make_turn(1, (6,)))
    rows = [
        make_sample(item, [7, 5], "01", [-1, 0]),
        make_sample(item, [7, 6], "01", [-1, 1], id="a/1", segment=1),
    ]
    batch = collate(rows, [item], [make_score(item, 1)], pad_id=0)
    assert batch.rows.trajectory.tolist() == [0, 0]
    assert batch.table.outcome.tolist() == [1.0]
    assert batch.table.length.tolist() == [2]


def test_unscored_and_failed_trajectories_are_not_scored():
    failure = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
    rows, (a, b) = two_trajectories()
    lost = make_trajectory("c", make_turn(0, (5,)), failure=failure)
    batch = collate(rows, [a, b, lost], [make_score(a, 1), make_score(lost, 1)], pad_id=0)
    assert batch.table.scored.tolist() == [True, False, False]


def test_last_score_counts():
    rows, (a, b) = two_trajectories()
    scores = [make_score(a, 0.0), make_score(b, 1.0), make_score(a, 0.75)]
    assert collate(rows, [a, b], scores, pad_id=0).table.outcome.tolist() == [0.75, 1.0]


def test_expert_turns_are_not_on_policy_and_agents_are_numbered():
    item = make_trajectory(
        "a", make_turn(0, (5,), agent="red"), make_turn(1, (6,), agent="blue", source=Source.EXPERT)
    )
    batch = collate([], [item], [], pad_id=0)
    assert batch.table.on_policy.tolist() == [False]
    assert batch.agent_ids == ("red", "blue")
    assert batch.table.agent.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trajectory_id": "zzz"}, "unknown trajectory 'zzz'"),
        ({"turn_ids": (-1, 4, 4)}, "names turn 4 of 1"),
        ({"turn_ids": (-1, -1, 0)}, "a trained token has no turn"),
    ],
)
def test_collate_refuses_rows_that_fit_no_trajectory(change, message):
    rows, items = two_trajectories()
    with pytest.raises(RecordError, match=message):
        collate([dataclasses.replace(rows[1], **change)], items, [], pad_id=0)


def test_collate_refuses_twins_and_rewards_of_turns_that_are_not_there():
    rows, (a, b) = two_trajectories()
    with pytest.raises(RecordError, match="two trajectories of a batch have one id"):
        collate(rows, [a, a], [], pad_id=0)
    with pytest.raises(RecordError, match="reward 'tool' of 'b' has 2 entries for 1 turns"):
        collate(rows, [a, b], [make_score(b, 1, tool=(1.0, 1.0))], pad_id=0)


def test_fields_are_attached_by_shape():
    rows, items = two_trajectories()
    batch = collate(rows, items, [], pad_id=0)
    more = (
        batch.with_logprobs(proximal=torch.ones(2, 6))
        .with_token_fields(values=torch.zeros(2, 6))
        .with_turn_fields(belief_logprobs=torch.zeros(2, 3))
    )
    assert set(more.rows.logprobs) == {"behavior", "proximal"}
    assert set(more.rows.fields) == {"values"}
    assert set(more.table.fields) == {"belief_logprobs"}
    assert set(batch.rows.logprobs) == {"behavior"}  # the first batch is as it was
    with pytest.raises(ValueError, match=r"field 'proximal' must begin with shape \(2, 6\)"):
        batch.with_logprobs(proximal=torch.ones(2, 5))


# --- micro-batches: rows of 6 and 3 tokens --------------------------------------------------------


def test_packed_rows_lie_end_to_end():
    rows, items = two_trajectories()
    batch = collate(rows, items, [], pad_id=0)
    (micro,) = micro_batches(batch, [0, 1], packed=True)
    assert micro.ids.tolist() == [[7, 7, 5, 6, 8, 4, 7, 5, 2]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2]]  # G10: real positions
    assert micro.segment_ids.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1]]
    assert micro.to_rows(micro.ids.float()).tolist() == [[7, 7, 5, 6, 8, 4], [7, 5, 2, 0, 0, 0]]


def test_padded_rows_are_cut_to_the_longest_of_theirs():
    rows, items = two_trajectories()
    batch = collate(rows, items, [], pad_id=99)
    one, other = micro_batches(batch, [1, 0], packed=False, max_rows=1)
    assert one.rows.tolist() == [1]
    assert one.ids.tolist() == [[7, 5, 2]]
    assert other.ids.shape == (1, 6)
    (both,) = micro_batches(batch, [0, 1], packed=False)
    assert both.ids[1].tolist() == [7, 5, 2, 99, 99, 99]
    assert both.segment_ids[1].tolist() == [1, 1, 1, -1, -1, -1]
    assert both.to_rows(both.ids.float())[1].tolist() == [7, 5, 2, 0, 0, 0]
    assert both.to_rows(torch.ones(2, 6, 4)).shape == (2, 6, 4)


# Rows of 6, 3, 3, 2 tokens, 8 a micro-batch. Packed, longest first: 6+2, 3+3.
# Padded: 6 alone (2 rows of 6 are 12), 3+3 (a third would be 9), 2 alone.
@pytest.mark.parametrize(
    ("packed", "expected"), [(True, [[0, 3], [1, 2]]), (False, [[0], [1, 2], [3]])]
)
def test_bins_hold_at_most_the_tokens(packed, expected):
    sizes = [6, 3, 3, 2]
    items = [make_trajectory(str(at), make_turn(0, (5,) * size)) for at, size in enumerate(sizes)]
    rows = [
        make_sample(item, [5] * size, "1" * size, [0] * size)
        for item, size in zip(items, sizes, strict=True)
    ]
    batch = collate(rows, items, [], pad_id=0)
    bins = micro_batches(batch, range(4), packed=packed, max_tokens=8)
    assert [micro.rows.tolist() for micro in bins] == expected
    # Also a longer row than the bound gets its place; none is lost.
    tight = micro_batches(batch, range(4), packed=packed, max_tokens=2)
    assert sorted(int(row) for micro in tight for row in micro.rows) == [0, 1, 2, 3]
    capped = micro_batches(batch, range(4), packed=packed, max_tokens=100, max_rows=3)
    assert [len(micro.rows) for micro in capped] == [3, 1]


def test_no_rows_give_no_micro_batches():
    rows, items = two_trajectories()
    batch = collate(rows, items, [], pad_id=0)
    assert micro_batches(batch, [], packed=True) == ()
    assert micro_batches(batch, [], packed=False, max_tokens=4) == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_trajectory_with_a_reward_that_is_no_number_is_not_scored_f4(bad, caplog):
    rows, items = two_trajectories()
    scores = [make_score(items[0], 1.0, tool=(0.5, bad)), make_score(items[1], 0.25, tool=(0.75,))]
    batch = collate(rows, items, scores, pad_id=0)
    assert batch.table.scored.tolist() == [False, True]
    assert batch.table.rewards["tool"].valid.tolist() == [[False, False], [True, False]]
    assert "trajectory 'a' is not trained on: its reward 'tool' is not finite" in caplog.text
