# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""How an episode ends is credited once. Class of faults: two credits for one event.

The episode: one turn, two sampled tokens `a a`, outcome 1, then a final prompt of value .9.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import (
    Completion,
    FinalPrompt,
    Score,
    StopReason,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.rollouts.samples import to_samples
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.objective.prepare import micro_loss, prepare
from agentgym.trainers.objective.preset import Preset, load_preset

CRITICS = ("ppo", "turn_ppo", "s_ppo", "st_ppo")
OF_THE_TASK = (
    StopReason.MAX_TURNS,
    StopReason.MAX_TOOL_CALLS,
    StopReason.MAX_TOKENS,
    StopReason.ENV_TRUNCATED,
)
FROM_OUTSIDE = (StopReason.MAX_SECONDS, StopReason.MAX_CONTEXT)


def episode(name: str, reason: StopReason, *, prompt: int = 2) -> Trajectory:
    run = VersionRun(version=0, count=2)
    trace = TokenTrace(ids=(5, 6), behavior_logprobs=(-1.0, -2.0), versions=(run,))
    turn = Turn(index=0, prompt_ids=(3,) * prompt, completion=Completion(text="", tokens=trace))
    return Trajectory(
        id=name,
        group_id="g",
        task_id="t",
        env_id="e",
        turns=(turn,),
        final_prompt=FinalPrompt(prefix_length=prompt + 2, ids=(4, 4)),
        terminated=reason is StopReason.TERMINATED,
        truncated=reason is not StopReason.TERMINATED,
        stop_reason=reason,
    )


def batch_of(*episodes: Trajectory, outcome: float = 1.0, **rewards: Any) -> Batch:
    scores = [
        Score(
            trajectory_id=one.id,
            scorer_id="s",
            outcome=outcome,
            is_success=outcome == 1,
            turn_rewards=rewards,
        )
        for one in episodes
    ]
    samples = [sample for one in episodes for sample in to_samples(one)]
    batch = collate(samples, episodes, scores, pad_id=0)
    nothing = torch.zeros(batch.ids.shape, dtype=torch.float64)
    return batch.with_token_fields(values=nothing + 0.5).with_logprobs(proximal=nothing - 1)


def preset_of(name: str, at_truncation: str, **changes: Any) -> Preset:
    plain = {"reshape": [], "critic.decay_actor": 1.0, "critic.at_truncation": at_truncation}
    return load_preset(name, {**plain, **changes})


@pytest.mark.parametrize("name", CRITICS)
@pytest.mark.parametrize("reason", [*OF_THE_TASK, *FROM_OUTSIDE, StopReason.TERMINATED])
@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_f1_a_limit_counts_as_its_outcome_by_default(
    name: str, reason: StopReason, outcome: float
) -> None:
    """V = .5 everywhere: A = outcome - .5, target = outcome, whatever ended the episode."""
    batch = batch_of(episode("a", reason), outcome=outcome)
    batch = batch.with_turn_fields(bootstrap_values=torch.tensor([[0.9]]))
    assert load_preset(name).critic.at_truncation == "outcome"
    prepared = prepare(preset_of(name, "outcome"), batch)
    assert prepared.advantages[0, 2:].tolist() == pytest.approx([outcome - 0.5] * 2)
    assert prepared.value_targets.returns[0, 2:].tolist() == pytest.approx([outcome] * 2)


@pytest.mark.parametrize("name", CRITICS)
def test_f1_a_bootstrap_stands_in_the_place_of_the_outcome(name: str) -> None:
    """Targets .9 (bootstrap) and 1 (outcome), never 1.9; rewards of turns, .25, stay in both."""
    cut, whole = episode("a", StopReason.MAX_SECONDS), episode("b", StopReason.MAX_TURNS)
    batch = batch_of(cut, whole, shaped=(0.25,))
    known = torch.tensor([[0.9], [torch.nan]], dtype=torch.float64)
    changes: dict[str, Any] = {
        "rewards": [
            {"name": "outcome", "part": "outcome", "place": "last_turn"},
            {"name": "turns", "part": "turn_rewards", "weights": {"shaped": 1.0}},
        ],
        "critic.reward": ["outcome", "turns"],
    }
    preset = preset_of(name, "bootstrap", **changes)
    prepared = prepare(preset, batch.with_turn_fields(bootstrap_values=known))
    returns = prepared.value_targets.returns
    assert returns[0, 2:].tolist() == pytest.approx([1.15, 1.15])
    assert returns[1, 2:].tolist() == pytest.approx([1.25, 1.25])


def test_f1_the_gradient_of_the_value_is_that_of_one_credit() -> None:
    """d/dv of .5 (v - R)^2 * .5 / 2 tokens = .25 (v - R); v = .5: R = .9 gives -.1, 1.9 -.35."""
    batch = batch_of(episode("a", StopReason.MAX_CONTEXT))
    preset = preset_of("ppo", "bootstrap")
    prepared = prepare(preset, batch.with_turn_fields(bootstrap_values=torch.tensor([[0.9]])))
    values = batch.rows.fields["values"].clone().requires_grad_()
    policy = torch.full(batch.ids.shape, -1.0, dtype=torch.float64, requires_grad=True)
    loss = micro_loss(preset, prepared, torch.arange(1), policy, values=values).loss
    loss.backward()
    assert values.grad[0, 2:].tolist() == pytest.approx([-0.1, -0.1])
    # Advantage .4 of each of two tokens, ratio 1: -A / 2.
    assert policy.grad[0, 2:].tolist() == pytest.approx([-0.2, -0.2])


def test_f1_a_preset_that_bootstraps_names_what_is_missing() -> None:
    with pytest.raises(LookupError, match=r"no 'bootstrap_values'.* 'bootstrap' needs"):
        prepare(preset_of("ppo", "bootstrap"), batch_of(episode("a", StopReason.MAX_TURNS)))


def learner(preset: Preset, options: UpdateOptions) -> Learner:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model: Any = LlamaForCausalLM(config)
    found = Learner(
        model,
        preset=preset,
        optim=OptimConfig(),
        total_updates=5,
        temperature=1.0,
        options=options,
    )
    torch.nn.init.normal_(found.critic.head.weight)
    return found


def test_f1_only_episodes_that_were_cut_short_from_outside_have_a_bootstrap() -> None:
    episodes = [
        episode(f"e{at}", reason)
        for at, reason in enumerate((StopReason.TERMINATED, *OF_THE_TASK, *FROM_OUTSIDE))
    ]
    preset = preset_of("ppo", "bootstrap")
    batch = learner(preset, UpdateOptions()).with_needs(batch_of(*episodes), episodes)
    known = batch.table.fields["bootstrap_values"][:, 0].isfinite()
    assert known.tolist() == [False] * 5 + [True] * 2
    plain = learner(preset_of("ppo", "outcome"), UpdateOptions())
    assert "bootstrap_values" not in plain.with_needs(batch_of(*episodes), episodes).table.fields


def test_f12_final_prompts_are_cut_by_the_bound_of_tokens() -> None:
    """Six final prompts of 7 to 12 ids, at most 20 a pass: the values are those of one pass."""
    episodes = [episode(f"e{at}", StopReason.MAX_SECONDS, prompt=2 + at) for at in range(6)]
    preset = preset_of("ppo", "bootstrap")
    found = {}
    for bound in (20, None):
        one = learner(preset, UpdateOptions(micro_batch_tokens=bound))
        sizes: list[int] = []

        def note(module: Any, given: Any, sizes: list[int] = sizes) -> None:
            sizes.append(given[0].ids.numel())

        one.critic.register_forward_pre_hook(note)
        batch = one.with_needs(batch_of(*episodes), episodes)
        found[bound] = batch.table.fields["bootstrap_values"]
        assert bound is None or max(sizes) <= bound
    torch.testing.assert_close(found[20], found[None], rtol=1e-5, atol=1e-6)
    assert found[20].isfinite().all()
