# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""What each advantage estimator is biased by, on bandits small enough to be summed exactly.

Two bandits of two states and two turns, a softmax policy with two logits for each state:

- *fixed*: action 0 or 1 leads to state 1 or 2, there one more action. Always two turns.
- *stopping*: action 0 ends the episode, action 1 leads to state 1 and one more action. The policy
  decides the number of turns.

All groups of N = 3 trajectories are enumerated, each as a group of its own in one table, and the
estimator's mean over them, weighted by their probabilities, is compared with the exact gradient of
the expected return. No sampling, no tolerance but rounding.
"""

import itertools

import pytest
import torch

from agentgym.trainers.objective.preset import load_preset
from agentgym.trainers.objective.stages import call_part, finish_term
from agentgym.trainers.parts import combine, critic, terms
from agentgym.trainers.parts.registry import Slot
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

F64 = torch.float64
SIZE = 3
LOGITS = torch.tensor([[0.3, -0.2], [0.5, 0.1], [-0.4, 0.6]], dtype=F64)
# [state][action] reward of the turn; the episode's return is their sum.
REWARDS = torch.tensor([[0.2, 0.5], [1.0, 0.1], [0.3, 0.9]], dtype=F64)
FIXED = [((0, 0), (1, 0)), ((0, 0), (1, 1)), ((0, 1), (2, 0)), ((0, 1), (2, 1))]
STOPPING = [((0, 0),), ((0, 1), (1, 0)), ((0, 1), (1, 1))]
PROBABILITIES = LOGITS.softmax(1)


def probability(path):
    product = 1.0
    for state, action in path:
        product *= float(PROBABILITIES[state, action])
    return product


def true_gradient(paths):
    """Gradient of the expected return with respect to the logits."""
    logits = LOGITS.clone().requires_grad_()
    chances = logits.softmax(1)
    total = torch.zeros((), dtype=F64)
    for path in paths:
        chance = torch.ones((), dtype=F64)
        for state, action in path:
            chance = chance * chances[state, action]
        total = total + chance * sum(REWARDS[state, action] for state, action in path)
    total.backward()
    assert logits.grad is not None
    return logits.grad


def score(state, action):
    """Gradient of log pi(action | state) with respect to the logits."""
    gradient = torch.zeros_like(LOGITS)
    gradient[state] = -PROBABILITIES[state]
    gradient[state, action] += 1
    return gradient


class Enumeration:
    """Every group of SIZE trajectories, as one table of groups."""

    def __init__(self, paths):
        self.groups = list(itertools.product(paths, repeat=SIZE))
        self.chances = [
            float(torch.tensor([probability(path) for path in group], dtype=F64).prod())
            for group in self.groups
        ]
        self.members = [path for group in self.groups for path in group]
        turns = torch.tensor([len(path) for path in self.members])
        valid = torch.arange(2) < turns[:, None]
        self.scores = torch.zeros(*valid.shape, *LOGITS.shape, dtype=F64)
        values = torch.zeros(valid.shape, dtype=F64)
        for row, path in enumerate(self.members):
            for turn, (state, action) in enumerate(path):
                values[row, turn] = REWARDS[state, action]
                self.scores[row, turn] = score(state, action)
        self.rewards = TurnValues(values=values, valid=valid)
        count = len(self.members)
        self.table = TurnTable(
            group=torch.arange(len(self.groups)).repeat_interleave(SIZE),
            turn_valid=valid,
            agent=torch.zeros(valid.shape, dtype=torch.long),
            outcome=values.sum(1),
            scored=torch.ones(count, dtype=torch.bool),
            truncated=torch.zeros(count, dtype=torch.bool),
            on_policy=torch.ones(count, dtype=torch.bool),
            length=turns,
            rewards={},
            fields={},
        )

    def expected(self, advantages, weights=None):
        """Mean of sum_k A[k] grad log pi / N over all groups; weights multiply a trajectory."""
        chances = torch.tensor(self.chances, dtype=F64).repeat_interleave(SIZE) / SIZE
        if weights is not None:
            chances = chances * weights
        weighted = chances[:, None] * advantages.expand_as(self.rewards.values)
        return (weighted[:, :, None, None] * self.scores).sum(dim=(0, 1))

    def of_preset(self, name, overrides=None):
        """The turn-level advantages that a preset's terms give these returns."""
        preset = load_preset(name, overrides)
        whole = TurnValues(
            values=self.rewards.zeroed().sum(1, keepdim=True),
            valid=torch.ones(len(self.members), 1, dtype=torch.bool),
        )
        known = {"outcome": whole}
        if "turn" in {config.name for config in preset.rewards}:
            nothing = torch.zeros_like(self.rewards.valid)
            empty = TurnValues(values=torch.zeros_like(self.rewards.values), valid=nothing)
            known = {"turn": self.rewards, "outcome": empty}
        done = {term.name: finish_term(term, known, self.table)[-1] for term in preset.terms}
        weighted = tuple(
            combine.Term(name=term.name, weight=term.weight, result=done[term.name])
            for term in preset.terms
        )
        assert preset.combine is not None
        return call_part(Slot.COMBINE, preset.combine, weighted, self.table)


@pytest.fixture(params=["fixed", "stopping"])
def bandit(request):
    paths = FIXED if request.param == "fixed" else STOPPING
    return Enumeration(paths), true_gradient(paths)


NO_SCALE = {"terms.0.ops.1.scale": "none", "terms.0.ops.1.floor": 0.0}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("name", ["reinforce", "rloo", "trloo"])
def test_unbiased_estimators_give_the_exact_gradient(bandit, name):
    groups, truth = bandit
    close(groups.expected(groups.of_preset(name)), truth)


def test_self_inclusive_mean_is_the_gradient_times_n_minus_1_over_n(bandit):
    groups, truth = bandit
    close(groups.expected(groups.of_preset("dr_grpo")), truth * (SIZE - 1) / SIZE)


def test_opo_with_equal_lengths_is_the_self_inclusive_mean():
    groups, truth = Enumeration(FIXED), true_gradient(FIXED)
    close(groups.expected(groups.of_preset("opo")), truth * (SIZE - 1) / SIZE)


def test_opo_is_biased_where_lengths_differ():
    """Its weights hold the trajectory's own length, which depends on its own actions."""
    groups, truth = Enumeration(STOPPING), true_gradient(STOPPING)
    actual = groups.expected(groups.of_preset("opo"))
    assert cosine(actual, truth) < 0.9999
    assert cosine(actual, truth) > 0.9


def test_dividing_by_the_deviation_changes_the_direction(bandit):
    groups, truth = bandit
    actual = groups.expected(groups.of_preset("grpo"))
    assert cosine(actual, truth) < 0.99999
    assert cosine(actual, truth) > 0.9


def test_turn_grpo_without_deviation_is_two_thirds_where_turns_are_fixed():
    groups, truth = Enumeration(FIXED), true_gradient(FIXED)
    actual = groups.expected(groups.of_preset("turn_grpo", NO_SCALE))
    close(actual, truth * (SIZE - 1) / SIZE)


def test_turn_grpo_shrinks_later_turns_where_the_policy_stops():
    """At turn 1 the factor is the mean of (M - 1) / M over M, the number that reach the turn.

    With p = P(go on), seen from one that reaches it: the other two bring M - 1 = 0, 1, 2 with
    (1-p)^2, 2p(1-p), p^2: factor 2p(1-p)/2 + p^2 * 2/3. At turn 0 all three are there: 2/3.
    """
    groups, truth = Enumeration(STOPPING), true_gradient(STOPPING)
    actual = groups.expected(groups.of_preset("turn_grpo", NO_SCALE))
    p = float(PROBABILITIES[0, 1])
    close(actual[0], truth[0] * 2 / 3)
    close(actual[1], truth[1] * (p * (1 - p) + p * p * 2 / 3))


def test_singletons_of_zero_bias_leave_one_out_at_a_turn():
    """Alone at a turn with result 0 instead of the return: the factor 1 - (1-p)^2."""
    groups, truth = Enumeration(STOPPING), true_gradient(STOPPING)
    zero = {"terms.0.ops.1.singleton": "zero"}
    actual = groups.expected(groups.of_preset("trloo", zero))
    p = float(PROBABILITIES[0, 1])
    close(actual[0], truth[0])
    close(actual[1], truth[1] * (1 - (1 - p) ** 2))


def normalised_then_summed(groups):
    """Immediate rewards minus the others' mean at the turn, then summed to go."""
    parameters = load_preset("trloo").terms[0].ops[1].parameters
    centred = terms.normalise(groups.rewards, groups.table, **parameters)
    return terms.to_go(centred, groups.table, discount=1.0).values


def test_per_turn_normalisation_before_summing_hides_a_length_penalty():
    """Summing centred rewards takes the mean of a later turn off every decision to go on.

    Bias of the first state's gradient: -E[baseline of turn 1] * grad P(go on). The baseline is the
    others' mean, 0 where none of the two others goes on: (1 - (1-p)^2) * E[r | turn 1].
    The second state's gradient is exact: nothing comes after it.
    """
    groups, truth = Enumeration(STOPPING), true_gradient(STOPPING)
    actual = groups.expected(normalised_then_summed(groups))
    p = float(PROBABILITIES[0, 1])
    later = float((PROBABILITIES[1] * REWARDS[1]).sum())
    hidden = (1 - (1 - p) ** 2) * later
    gradient_of_going_on = p * score(0, 1)[0]
    close(actual[0] - truth[0], -hidden * gradient_of_going_on)
    close(actual[1], truth[1])
    # Rewards are positive here: going on is punished.
    assert actual[0, 1] < truth[0, 1]


def test_the_same_order_is_unbiased_where_turns_are_fixed():
    groups, truth = Enumeration(FIXED), true_gradient(FIXED)
    close(groups.expected(normalised_then_summed(groups)), truth)


def test_joint_normalisation_rewards_or_punishes_length():
    """igpo: one mean over all rewards of the group, then summed to go: biased if turns are free."""
    op = {**load_preset("igpo").terms[0].ops[0].parameters, "scale": "none"}

    def expected(paths):
        groups = Enumeration(paths)
        centred = terms.normalise(groups.rewards, groups.table, **op)
        return groups.expected(terms.to_go(centred, groups.table, discount=1.0).values)

    # Fixed turns: the mean contains both rewards of the trajectory itself, 1/6 each: at turn 0
    # two of them are taken off, at turn 1 one, which leaves 1 - 2/6 and, of r1 alone, 1 - 1/6.
    fixed, truth = expected(FIXED), true_gradient(FIXED)
    close(fixed[0], truth[0] * (1 - 2 / 6))
    close(fixed[1:], truth[1:] * (1 - 1 / 6))
    free, truth = expected(STOPPING), true_gradient(STOPPING)
    assert free[0, 1] < 0.5 * truth[0, 1]  # the mean reward is above 0: going on is punished


@pytest.mark.parametrize("weighting", ["sequence_mean_token_mean", "token_mean"])
def test_dividing_by_sampled_lengths_changes_the_direction(weighting):
    """One token a turn: 1/L of the trajectory, or 1 / (tokens of the group), depend on actions."""
    groups, truth = Enumeration(STOPPING), true_gradient(STOPPING)
    lengths = groups.table.length.double()
    if weighting == "token_mean":
        sums = lengths.reshape(-1, SIZE).sum(1).repeat_interleave(SIZE)
        weights = SIZE / sums
    else:
        weights = 1 / lengths
    actual = groups.expected(groups.of_preset("rloo"), weights)
    assert cosine(actual, truth) < 0.9999
    fixed = Enumeration(FIXED)
    same = fixed.expected(fixed.of_preset("rloo"), torch.full((len(fixed.members),), 0.5))
    close(same, 0.5 * true_gradient(FIXED))


# --- the token critic -----------------------------------------------------------------------------


def state_values():
    """Exact values of the three states of the fixed bandit."""
    later = (PROBABILITIES * REWARDS).sum(1)
    first = (PROBABILITIES[0] * (REWARDS[0] + later[1:])).sum()
    return torch.stack([first, later[1], later[2]])


def critic_gradient(values, *, decay, truncated=False, bootstrap=0.0):
    """Mean of the critic's estimator over all trajectories of the fixed bandit."""
    turn_ids = torch.tensor([[0, 1]] * 4)
    per_token = torch.tensor(
        [[float(values[state]) for state, _ in path] for path in FIXED], dtype=F64
    )
    rewards = torch.tensor(
        [[float(REWARDS[state, action]) for state, action in path] for path in FIXED], dtype=F64
    )
    rows = RowTable(
        mask=turn_ids >= 0,
        turn_ids=turn_ids,
        role_ids=turn_ids,
        trajectory=torch.arange(4),
        versions=turn_ids,
        logprobs={},
        fields={},
    )
    one = Enumeration(FIXED).table
    table = TurnTable(
        group=torch.arange(4),
        turn_valid=one.turn_valid[:4],
        agent=one.agent[:4],
        outcome=one.outcome[:4],
        scored=one.scored[:4],
        truncated=torch.full((4,), truncated),
        on_policy=one.on_policy[:4],
        length=one.length[:4],
        rewards={},
        fields={},
    )
    found = critic.token_gae(
        TurnValues(values=rewards, valid=torch.ones(4, 2, dtype=torch.bool)),
        per_token,
        torch.full((4,), bootstrap, dtype=F64),
        rows,
        table,
        discount=1.0,
        decay_actor=decay,
        decay_critic=decay,
    )
    total = torch.zeros_like(LOGITS)
    for row, path in enumerate(FIXED):
        for turn, (state, action) in enumerate(path):
            total += probability(path) * found.advantages[row, turn] * score(state, action)
    return total


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_critic_with_exact_values_is_unbiased_for_any_lambda(decay):
    close(critic_gradient(state_values(), decay=decay), true_gradient(FIXED))


def test_critic_with_wrong_values_is_unbiased_for_lambda_one_alone():
    wrong = state_values() + torch.tensor([0.3, -0.4, 0.8], dtype=F64)
    truth = true_gradient(FIXED)
    close(critic_gradient(wrong, decay=1.0), truth)
    assert float((critic_gradient(wrong, decay=0.5)[0] - truth[0]).norm()) > 1e-2


def test_truncation_with_the_same_bootstrap_everywhere_changes_nothing():
    # A constant after the last token is a constant for every action.
    close(
        critic_gradient(state_values(), decay=1.0, truncated=True, bootstrap=5.0),
        true_gradient(FIXED),
    )
