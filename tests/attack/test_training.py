# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""Random batches with everything that a record may lack, through every preset.

Classes F1, F2, F4, F7, F9: whatever is missing, masked, too old, cut short or rejected, a loss is
finite, an update that moves nothing changes nothing, and no member leaves a baseline silently. The
plain suite has one case of each.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    FinalPrompt,
    Group,
    Score,
    StopReason,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.loop.collect import make_batch
from agentgym.trainers.objective.prepare import prepare
from agentgym.trainers.objective.preset import list_presets, load_preset

pytestmark = pytest.mark.attack

VERSION, BOUND = 5, 2
ROUNDS = 6
ENDS = (
    StopReason.TERMINATED,
    StopReason.MAX_TURNS,
    StopReason.MAX_TOKENS,
    StopReason.MAX_SECONDS,
    StopReason.MAX_CONTEXT,
    StopReason.FAILURE,
    StopReason.CANCELLED,
)
FAILURE = Failure(kind=ErrorKind.INFRASTRUCTURE, where="env", message="gone")
CORRECTIONS: tuple[dict[str, Any], ...] = (
    {"part": "none"},
    {"part": "truncated", "level": "token", "cap": 2.0},
    {"part": "truncated", "level": "sequence", "cap": 2.0},
    {"part": "masked", "level": "token", "low": 0.5, "high": 2.0},
    {"part": "masked", "level": "sequence", "low": 0.999, "high": 1.001},
)


def episode(name: str, group: str, rng: random.Random) -> Trajectory:
    reason = rng.choice(ENDS)
    turns: list[Turn] = []
    length = 0
    for index in range(rng.randint(0, 3)):
        size = rng.choice([0, 1, 2, 4])
        ids = tuple(rng.randrange(1, 11) for _ in range(size))
        run = VersionRun(version=rng.randint(0, VERSION), count=size) if size else None
        trace = TokenTrace(
            ids=ids,
            behavior_logprobs=tuple(rng.choice([0.0, -2.0, -30.0]) for _ in ids),
            versions=(run,) if run else (),
        )
        prompt = (1,) * rng.randint(1, 3)
        turns.append(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                prefix_length=length,
                prompt_ids=prompt,
                completion=Completion(text="", tokens=trace),
            )
        )
        length += len(prompt) + size
    is_over = reason not in {StopReason.FAILURE, StopReason.CANCELLED}
    return Trajectory(
        id=name,
        group_id=group,
        task_id=group,
        env_id="e",
        turns=tuple(turns),
        final_prompt=FinalPrompt(prefix_length=length, ids=(2,)) if turns else None,
        terminated=reason is StopReason.TERMINATED,
        truncated=is_over and reason is not StopReason.TERMINATED,
        stop_reason=reason,
        failure=FAILURE if reason is StopReason.FAILURE else None,
    )


def collected(rng: random.Random) -> tuple[list[Group], list[Score]]:
    groups: list[Group] = []
    scores: list[Score] = []
    for at in range(rng.randint(1, 3)):
        members = tuple(episode(f"g{at}-e{i}", f"g{at}", rng) for i in range(rng.randint(1, 4)))
        groups.append(Group(id=f"g{at}", task_id="t", requested_size=4, trajectories=members))
        for one in members:
            if rng.random() < 0.85 and one.failure is None and (one.terminated or one.truncated):
                outcome = rng.choice([0.0, 0.0, 0.5, 1.0])
                given = tuple(rng.choice([None, 0.0, 0.3]) for _ in one.turns)
                scores.append(
                    Score(
                        trajectory_id=one.id,
                        scorer_id="s",
                        outcome=outcome,
                        is_success=outcome == 1,
                        turn_rewards={"hint": given},
                    )
                )
    return groups, scores


def junk_off_the_mask(batch: Batch, rng: random.Random) -> Batch:
    """Numbers of a model where tokens are trained, and no numbers elsewhere."""
    shape, mask = batch.ids.shape, batch.rows.mask
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def numbers() -> Any:
        drawn = -3 * torch.rand(shape, generator=generator)
        return torch.where(mask, drawn, rng.choice([torch.nan, torch.inf, 0.0]))

    count, turns = batch.table.turn_valid.shape
    beliefs = -torch.rand((count, turns + 1), generator=generator, dtype=torch.float64)
    beliefs[torch.rand((count, turns + 1), generator=generator) < 0.3] = torch.nan
    batch = batch.with_logprobs(reference=numbers(), proximal=numbers())
    return batch.with_token_fields(values=numbers()).with_turn_fields(belief_logprobs=beliefs)


def learner_of(name: str, rng: random.Random) -> Learner:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    changes: dict[str, Any] = {"correction": rng.choice(CORRECTIONS)}
    if load_preset(name).critic is not None:
        changes["critic.warmup_updates"] = rng.choice([0, 1])
        changes["critic.at_truncation"] = rng.choice(["outcome", "bootstrap"])
    model: Any = LlamaForCausalLM(config)
    return Learner(
        model,
        preset=load_preset(name, changes),
        optim=OptimConfig(learning_rate=0.01, weight_decay=0.1),
        total_updates=9,
        temperature=1.0,
        options=UpdateOptions(micro_batch_tokens=rng.choice([8, 32, None])),
    )


def weights(one: Learner) -> list[Any]:
    own = list(one.critic.parameters()) if one.critic is not None else []
    return [parameter.detach().clone() for parameter in (*one.model.parameters(), *own)]


@pytest.mark.parametrize("name", list_presets())
def test_f2_f7_f9_every_preset_survives_what_records_lack(name: str) -> None:
    """A round: a learner, two updates on batches of their own; the second has momentum."""
    for number in range(ROUNDS):
        rng = random.Random(f"{name} {number}")
        one = learner_of(name, rng)
        for _ in range(2):
            groups, scores = collected(rng)
            batch = make_batch(
                one.preset, groups, scores, pad_id=0, version=VERSION, max_staleness=BOUND
            )
            check_statistics(batch, scores)
            batch = junk_off_the_mask(batch, rng)
            if one.critic is not None:
                members = [t for group in groups for t in group.trajectories]
                values = batch.rows.fields["values"]
                batch = one.with_needs(batch, members).with_token_fields(values=values)
            prepared = prepare(one.preset, batch)
            check_ends(one, batch, prepared.value_targets)
            before, taken = weights(one), one.updates
            one.update(batch, is_single=False)
            assert all(bool(w.isfinite().all()) for w in weights(one))
            if one.updates == taken:
                assert all(torch.equal(a, b) for a, b in zip(before, weights(one), strict=True))


def check_statistics(batch: Batch, scores: list[Score]) -> None:
    """Every score is in the table, also of an episode that is too old for a row."""
    scored = {
        name for name, has in zip(batch.trajectory_ids, batch.table.scored, strict=True) if has
    }
    assert scored == {score.trajectory_id for score in scores}
    assert bool((batch.rows.versions[batch.rows.mask] >= VERSION - BOUND).all())


def check_ends(one: Learner, batch: Batch, targets: Any) -> None:
    """With weights of 1 the first target of an episode is its outcome or its bootstrap."""
    if targets is None:
        return
    known = batch.table.fields.get("bootstrap_values")
    for row, owner in enumerate(batch.rows.trajectory.tolist()):
        places = batch.rows.mask[row].nonzero().flatten().tolist()
        if not places or not bool(batch.table.scored[owner]):
            continue
        outcome = float(batch.table.outcome[owner])
        is_open = known is not None and bool(known[owner, 0].isfinite())
        expected = float(known[owner, 0]) if is_open else outcome
        found = float(targets.returns[row, places[0]])
        assert found == pytest.approx(expected, abs=1e-5)


def test_f1_the_records_tell_the_tasks_limits_from_those_outside() -> None:
    rng = random.Random(0)
    for at in range(200):
        one = episode(f"e{at}", "g", rng)
        outside = {StopReason.MAX_SECONDS, StopReason.MAX_CONTEXT}
        assert one.is_cut_short == (one.stop_reason in outside)
        assert not dataclasses.replace(one, truncated=False).is_cut_short
