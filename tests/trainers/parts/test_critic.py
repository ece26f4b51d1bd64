# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""The token critic: what it skips, where it bootstraps, across how many rows it runs.

Tokens are drawn as one line: `a` sampled by the policy, `o` observation.
"""

import json
from pathlib import Path

import pytest
import torch

from agentgym.trainers.parts.critic import (
    clipped_value_loss,
    discounted_residuals,
    token_gae,
    token_order,
)
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "policy_golden.json").read_text())
F64 = torch.float64


def make(turn_rows, trajectory=None, *, truncated=False):
    """Tables of rows of turn numbers; -1 is an observation or padding."""
    width = max(len(row) for row in turn_rows)
    turn_ids = torch.tensor([[*row, *[-1] * (width - len(row))] for row in turn_rows])
    trajectory = torch.tensor(trajectory or list(range(len(turn_rows))))
    count, turns = int(trajectory.max()) + 1, max(1, int(turn_ids.max()) + 1)
    rows = RowTable(
        mask=turn_ids >= 0,
        turn_ids=turn_ids,
        role_ids=turn_ids,
        trajectory=trajectory,
        versions=turn_ids,
        logprobs={},
        fields={},
    )
    table = TurnTable(
        group=torch.zeros(count, dtype=torch.long),
        turn_valid=torch.ones(count, turns, dtype=torch.bool),
        agent=torch.zeros(count, turns, dtype=torch.long),
        outcome=torch.zeros(count, dtype=F64),
        scored=torch.ones(count, dtype=torch.bool),
        truncated=torch.full((count,), truncated),
        on_policy=torch.ones(count, dtype=torch.bool),
        length=torch.ones(count, dtype=torch.long),
        rewards={},
        fields={},
    )
    return rows, table


def numbers(rows):
    values = torch.tensor(rows, dtype=F64)
    return TurnValues(values=values, valid=torch.ones(values.shape, dtype=torch.bool))


def gae(rows, table, rewards, values, *, after_end=0.0, **options):
    options = {"discount": 1.0, "decay_actor": 1.0, "decay_critic": 1.0, **options}
    start = torch.full(table.group.shape, after_end, dtype=F64)
    return token_gae(
        numbers(rewards), torch.tensor(values, dtype=F64), start, rows, table, **options
    )


def close(actual, expected):
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_observation_values_never_enter_golden():
    """a a o a a, values .1 .2 9 .4 .5, reward 1 at the end, lambda .95."""
    rows, table = make([[0, 0, -1, 1, 1]])
    result = gae(
        rows,
        table,
        [[0, 1]],
        [[0.1, 0.2, 9, 0.4, 0.5]],
        decay_actor=0.95,
        decay_critic=0.95,
    )
    close(result.advantages[0].tolist(), GOLDEN["gae"]["adv"])
    close(result.returns[0].tolist(), GOLDEN["gae"]["returns"])
    # The recursion that walks over the observation gives another first number.
    assert abs(result.advantages[0, 0].item() - GOLDEN["gae"]["naive"][0]) > 0.1


def test_lambda_one_is_the_return_minus_the_value():
    """a a o o a, reward 1: 1 - V of each sampled token."""
    rows, table = make([[0, 0, -1, -1, 1]])
    result = gae(rows, table, [[0, 1]], [[0.5, 0.6, 9, 9, 0.7]])
    close(result.advantages[0].tolist(), [0.5, 0.4, 0, 0, 0.3])


def test_recursion_runs_on_the_compressed_tokens_f14():
    """a a o o a a, values .5 .5 9 9 .5 .5, reward 1, discount .9, lambda .8.

    By hand, backwards: 1 - .5 = .5; (.9*.5 - .5) + .72*.5 = .31; -.05 + .72*.31 = .1732;
    -.05 + .72*.1732 = .074704.
    """
    rows, table = make([[0, 0, -1, -1, 1, 1]])
    values = [[0.5, 0.5, 9, 9, 0.5, 0.5]]
    result = gae(rows, table, [[0, 1]], values, discount=0.9, decay_actor=0.8)
    close(result.advantages[0].tolist(), [0.074704, 0.1732, 0, 0, 0.31, 0.5])


# r = 1, V = 2: nothing after the end 1 - 2 = -1; a value of 2 there 1 + 2 - 2 = 1.
@pytest.mark.parametrize(("after_end", "expected"), [(0.0, -1.0), (2.0, 1.0)])
def test_what_comes_after_the_last_token_is_given_f15(after_end, expected):
    rows, table = make([[0]], truncated=True)
    result = gae(rows, table, [[1]], [[2.0]], after_end=after_end)
    assert result.advantages.item() == expected
    assert result.returns.item() == expected + 2.0


def test_actor_and_critic_decay_apart():
    """Two tokens, values .5 .25, reward 1 at the end, no observation.

    Residuals: .25 - .5 = -.25 and 1 - .25 = .75. Actor .4: -.25 + .3 = .05. Critic .8: .35 + .5.
    """
    rows, table = make([[0, 0]])
    result = gae(rows, table, [[1]], [[0.5, 0.25]], decay_actor=0.4, decay_critic=0.8)
    close(result.advantages[0].tolist(), [0.05, 0.75])
    close(result.returns[0].tolist(), [0.85, 1.0])


def test_segments_of_a_trajectory_are_one_sequence():
    """Turn 1 lies in the first row and turn 0 in the second; another trajectory between them."""
    rows, table = make([[-1, 1, 1], [-1, 0, -1], [0, -1, -1]], trajectory=[0, 1, 0])
    order = token_order(rows, 2)
    assert order.flat.tolist() == [[6, 1, 2], [4, 0, 0]]
    assert order.valid.tolist() == [[True, True, True], [True, False, False]]
    values = [[9, 0.4, 0.5], [9, 0.3, 9], [0.2, 9, 9]]
    result = gae(rows, table, [[0, 1], [0.5, 0]], values, decay_actor=0.5)
    # residuals .2 .1 .5 -> .5; .1 + .25 = .35; .2 + .175 = .375; the other: .5 - .3 = .2
    close(result.advantages.flatten().tolist(), [0, 0.35, 0.5, 0, 0.2, 0, 0.375, 0, 0])


def test_turns_out_of_order_are_put_in_order_wherever_they_stand():
    """Turns 0 2 | 1 of one trajectory: none comes before the first, and yet two have to change."""
    rows, _ = make([[0, 2], [1, -1]], trajectory=[0, 0])
    assert token_order(rows, 1).flat.tolist() == [[0, 2, 1]]


def test_reward_of_a_turn_without_tokens_falls_to_the_token_before():
    """Turn 1 is empty: its reward lies on the last token of turn 0; turn 0 keeps its own."""
    rows, table = make([[0, 0, -1, 2]])
    result = gae(rows, table, [[1, 2, 4]], [[0.0] * 4])
    close(result.returns[0].tolist(), [7, 7, 0, 4])


def test_reward_before_the_first_token_trains_nothing():
    rows, table = make([[1, -1]])
    result = gae(rows, table, [[5, 1]], [[0.0, 0.0]])
    close(result.returns[0].tolist(), [1, 0])


def test_terminal_reward_survives_a_last_observation():
    """a a o: the reward of the turn is on its last sampled token."""
    rows, table = make([[0, 0, -1]])
    close(gae(rows, table, [[1]], [[0.0, 0.0, 9.0]]).returns[0].tolist(), [1, 1, 0])


def test_batch_without_tokens_gives_zeros():
    rows, table = make([[-1, -1], [0, -1]])
    assert gae(rows, table, [[1], [0.5]], [[9, 9], [0.25, 9]]).advantages.tolist() == [
        [0, 0],
        [0.25, 0],
    ]
    empty, nothing = make([[-1, -1]], truncated=True)
    turnless = TurnValues(values=torch.ones(1, 1, dtype=F64), valid=torch.ones(1, 1).bool())
    result = token_gae(
        turnless,
        torch.ones(1, 2, dtype=F64),
        torch.ones(1, dtype=F64),
        empty,
        nothing,
        discount=1.0,
        decay_actor=1.0,
        decay_critic=1.0,
    )
    assert result.advantages.tolist() == [[0, 0]]


@pytest.mark.parametrize("name", ["discount", "decay_actor", "decay_critic"])
@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_weights_outside_the_unit_interval_are_refused(name, weight):
    rows, table = make([[0]])
    with pytest.raises(ValueError, match=rf"'{name}' must be in \[0, 1\] \(got {weight}\)"):
        gae(rows, table, [[1]], [[0.0]], **{name: weight})


@pytest.mark.parametrize(
    ("name", "advantages", "returns"),
    [
        # Rewards 0 and 1, values .5 and .25, weights 1: residuals -.25 and .75.
        ("discount", [-0.5, 0.75], [0.0, 1.0]),
        ("decay_actor", [-0.25, 0.75], [1.0, 1.0]),
        ("decay_critic", [0.5, 0.75], [0.25, 1.0]),
    ],
)
def test_a_weight_of_zero_is_a_weight(name, advantages, returns):
    rows, table = make([[0, 1]])
    found = gae(rows, table, [[0, 1]], [[0.5, 0.25]], **{name: 0.0})
    close(found.advantages[0].tolist(), advantages)
    close(found.returns[0].tolist(), returns)


def test_no_gradient_flows_from_the_advantages_to_the_values():
    rows, table = make([[0, 0]])
    values = torch.tensor([[0.1, 0.2]], dtype=F64, requires_grad=True)
    start = torch.zeros(1, dtype=F64)
    result = token_gae(
        numbers([[1]]),
        values,
        start,
        rows,
        table,
        discount=1.0,
        decay_actor=1.0,
        decay_critic=1.0,
    )
    assert not result.advantages.requires_grad
    assert not result.returns.requires_grad


def test_residuals_decay_from_the_right():
    actual = discounted_residuals(torch.tensor([[1.0, 2.0, 4.0]]), decay=0.5)
    assert actual.tolist() == [[3.0, 4.0, 4.0]]
    assert discounted_residuals(torch.zeros(2, 0), decay=0.5).shape == (2, 0)


# v .9, old .5, R 1, width .2: cut to .7, (.3)^2/2 = .045 > (.1)^2/2: the cut branch, no gradient.
# v .6: inside, (.4)^2/2 = .08, gradient -.4. v 1.2 from .5: cut .7 gives .045 > .02.
# v 0 from .5: cut .3 gives .245 < .5: the unclipped branch, gradient -1.
@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [(0.9, 0.045, 0.0), (0.6, 0.08, -0.4), (1.2, 0.045, 0.0), (0.0, 0.5, -1.0)],
)
def test_value_loss_is_clipped_golden(value, loss, slope):
    v = torch.tensor([[value]], dtype=F64, requires_grad=True)
    old, target = torch.tensor([[0.5]], dtype=F64), torch.tensor([[1.0]], dtype=F64)
    actual = clipped_value_loss(v, old, target, width=0.2)
    actual.sum().backward()
    assert actual.item() == pytest.approx(loss)
    assert v.grad.item() == pytest.approx(slope)
    assert GOLDEN["vclip"] == {"loss": 0.045, "grad": 0.0}


def test_value_loss_refuses_a_width_of_zero():
    with pytest.raises(ValueError, match="'width' must be > 0"):
        clipped_value_loss(*[torch.ones(1, 1)] * 3, width=0.0)


def test_token_gae_refuses_one_number_a_trajectory():
    rows, table = make([[0, 1, 2]])
    with pytest.raises(ValueError, match="needs one number a turn"):
        gae(rows, table, [[1.0]], [[0.0, 0.0, 0.0]])
    # lambda .95 and no values: 1 at the last turn, .95 and .95^2 before it
    whole = gae(rows, table, [[0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0]], decay_actor=0.95)
    assert whole.advantages.tolist() == [pytest.approx([0.9025, 0.95, 1.0])]
