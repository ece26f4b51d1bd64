"""The learner: the same gradient for any layout of the rows, one process or two."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.config import OptimConfig
from agentgym.records import Completion, Sample, Score, StopReason, Trajectory, Turn
from agentgym.trainers.batch import Batch, collate
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.learner import DivergedError, Learner
from agentgym.trainers.objective.preset import load_preset

VOCABULARY = 23


def small_model(dtype: torch.dtype) -> Any:
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype)


def random_batch(seed: int = 0) -> Batch:
    """Return 3 groups of 4 trajectories with 1 to 3 turns, behaviour off the policy."""
    rng = random.Random(seed)
    trajectories, samples, scores = [], [], []
    for group in range(3):
        for index in range(4):
            name = f"g{group}-{index}"
            sample, turns = random_row(name, f"g{group}", rng)
            samples.append(sample)
            trajectories.append(
                Trajectory(
                    id=name,
                    group_id=f"g{group}",
                    task_id=f"task-{group}",
                    env_id="test/env-v0",
                    turns=tuple(
                        Turn(index=k, completion=Completion(text="")) for k in range(turns)
                    ),
                    terminated=True,
                    stop_reason=StopReason.TERMINATED,
                    outcome=0.0,
                )
            )
            outcome = float(rng.random() < 0.5)
            scores.append(
                Score(trajectory_id=name, scorer_id="s", outcome=outcome, is_success=outcome == 1)
            )
    return collate(samples, trajectories, scores, pad_id=0)


def random_row(name: str, group: str, rng: random.Random) -> tuple[Sample, int]:
    ids: list[int] = []
    mask: list[bool] = []
    turn_ids: list[int] = []
    turns = rng.randint(1, 3)
    for turn in range(turns):
        prompt, sampled = rng.randint(2, 5), rng.randint(1, 4)
        ids += [rng.randrange(VOCABULARY) for _ in range(prompt + sampled)]
        mask += [False] * prompt + [True] * sampled
        turn_ids += [-1] * prompt + [turn] * sampled
    row = Sample(
        id=name,
        trajectory_id=name,
        group_id=group,
        ids=tuple(ids),
        loss_mask=tuple(mask),
        behavior_logprobs=tuple(-3 * rng.random() if keep else 0.0 for keep in mask),
        versions=tuple(0 if keep else -1 for keep in mask),
        turn_ids=tuple(turn_ids),
    )
    return row, turns


def gradient(
    options: UpdateOptions, *, preset: str, dtype: torch.dtype, world: World | None = None
) -> Tensor:
    """Return the gradient of one update as a flat vector, nothing clipped."""
    model = small_model(dtype)
    learner = Learner(
        model,
        preset=load_preset(preset),
        optim=OptimConfig(max_grad_norm=None),
        total_updates=5,
        temperature=0.7,
        world=world,
        options=options,
    )
    found: list[Tensor] = []

    def keep(*_: object, **__: object) -> None:
        for parameter in model.parameters():
            grad: Any = parameter.grad
            whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            found.append(whole.detach().clone().flatten())

    learner.optimizer.step = keep
    learner.update(random_batch(), is_single=False)
    return torch.cat(found)


def relative(first: Tensor, second: Tensor) -> float:
    return ((first - second).norm() / second.norm()).item()


PRESETS = ["grpo", "trloo", "turn_grpo", "grpo_turn_ratio", "dr_grpo", "reinforce", "rloo"]
LAYOUTS = [
    UpdateOptions(micro_batch_rows=rows, packed=packed)
    for rows in (1, 2, 4, 8)
    for packed in (False, True)
]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_update_has_one_gradient_for_every_layout_f7_f8(
    preset: str, dtype: torch.dtype, bound: float
) -> None:
    whole = gradient(UpdateOptions(), preset=preset, dtype=dtype)
    assert whole.norm() > 0
    for options in LAYOUTS:
        assert relative(gradient(options, preset=preset, dtype=dtype), whole) <= bound, options


def test_update_by_tokens_has_the_same_gradient() -> None:
    whole = gradient(UpdateOptions(), preset="trloo", dtype=torch.float64)
    for packed in (False, True):
        options = UpdateOptions(micro_batch_tokens=20, packed=packed)
        assert relative(gradient(options, preset="trloo", dtype=torch.float64), whole) <= 1e-9


def test_update_over_two_processes_has_the_same_gradient_f9(tmp_path: Path) -> None:
    """Two gloo processes, the model sharded over them, an uneven number of micro-batches."""
    for dtype in ("float64", "float32"):
        torch.save(
            gradient(UpdateOptions(), preset="trloo", dtype=getattr(torch, dtype)),
            tmp_path / f"{dtype}.pt",
        )
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS.format(tests=str(Path(__file__)), folder=str(tmp_path)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agrees") == 8


_RANKS = """
import importlib.util
import torch
from agentgym.trainers.learner.layout import UpdateOptions
from agentgym.trainers.learner.distributed import join_world

spec = importlib.util.spec_from_file_location("shared", {tests!r})
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
world = join_world("cpu")
for name, bound in (("float64", 1e-9), ("float32", 1e-5)):
    whole = torch.load("{folder}/" + name + ".pt")
    packed = UpdateOptions(micro_batch_rows=2, packed=True)
    for options in (UpdateOptions(micro_batch_rows=5), packed):
        mine = shared.gradient(options, preset="trloo", dtype=getattr(torch, name), world=world)
        assert shared.relative(mine, whole) <= bound, shared.relative(mine, whole)
        print("agrees", flush=True)
world.close()
"""


def learner_of(model: Any, **optim: float) -> Learner:
    return Learner(
        model,
        preset=load_preset("trloo"),
        optim=OptimConfig(**optim),  # type: ignore[arg-type]
        total_updates=5,
        temperature=1.0,
    )


def test_score_gives_the_log_probabilities_of_trained_tokens_only() -> None:
    batch = random_batch()
    model = small_model(torch.float64)
    scored = learner_of(model).score(batch)
    assert scored[~batch.rows.mask].abs().sum() == 0
    row, length = 5, int(batch.lengths[5])
    ids = batch.ids[row : row + 1, :length]
    plain = model(input_ids=ids).logits[0].log_softmax(-1)
    for time in batch.rows.mask[row].nonzero().flatten().tolist():
        assert scored[row, time].item() == pytest.approx(
            plain[time - 1, ids[0, time]].item(), abs=1e-10
        )


def test_update_changes_the_weights_and_counts_itself() -> None:
    model = small_model(torch.float32)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learner = learner_of(model, learning_rate=0.01, warmup_steps=4)
    metrics = learner.update(random_batch(), is_single=True)
    assert learner.updates == 1
    assert metrics["learning_rate"] == pytest.approx(0.0025)  # first of four warm-up updates
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_update_is_on_policy_where_the_policy_is_its_own_anchor() -> None:
    metrics = learner_of(small_model(torch.float32)).update(random_batch(), is_single=True)
    assert metrics["log_ratio_abs_max"] == 0.0


def test_update_refuses_a_gradient_that_is_not_finite_f12() -> None:
    model = small_model(torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight[3, 0] = float("nan")
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    learner = learner_of(model)
    with pytest.raises(DivergedError, match="not taken"):
        learner.update(random_batch(), is_single=False)
    assert learner.updates == 0
    torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight, before, rtol=0, atol=0)


def actor_and_critic(overrides: dict[str, Any], **optim: float) -> tuple[Learner, Batch]:
    """Return a learner with a critic, and a batch with values."""
    learner = Learner(
        small_model(torch.float32),
        preset=load_preset("st_ppo", {"critic.warmup_updates": 0, **overrides}),
        optim=OptimConfig(**optim),  # type: ignore[arg-type]
        total_updates=5,
        temperature=1.0,
    )
    batch = random_batch()
    return learner, batch.with_token_fields(values=torch.zeros(batch.ids.shape))


def test_a_hook_measures_the_clip_without_what_regularizers_read() -> None:
    bonus = {"part": "entropy_bonus", "coefficient": 0.01}
    for measure in ("norm", "absolute"):
        changes = {"regularizers": [bonus], "hooks.0.measure": measure}
        learner, batch = actor_and_critic(changes)
        metrics = learner.update(batch, is_single=False)
        assert metrics["entropy_sum"] > 0
        assert 0 < metrics["policy_weight"] <= 1


def test_the_critic_is_clipped_by_a_norm_of_its_own() -> None:
    learner, batch = actor_and_critic({}, max_grad_norm=1e-3)
    assert learner.critic is not None
    found: list[float] = []

    def keep(*_: object, **__: object) -> None:
        for module in (learner.model, learner.critic):
            assert module is not None
            squares = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
            found.append(torch.stack(squares).sum().sqrt().item())

    learner.optimizer.step = keep
    metrics = learner.update(batch, is_single=False)
    assert metrics["grad_norm"] > 1e-2
    assert metrics["critic_grad_norm"] > 1e-2
    assert metrics["grad_norm"] != metrics["critic_grad_norm"]
    assert found == pytest.approx([1e-3, 1e-3], rel=1e-2)


def test_a_critic_whose_gradient_is_not_finite_stops_the_step_f12() -> None:
    learner, batch = actor_and_critic({})
    assert learner.critic is not None
    learner.critic.head.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = [p.detach().clone() for p in learner.model.parameters()]
    with pytest.raises(DivergedError, match=r"critic's gradient .* nan; the step was not taken"):
        learner.update(batch, is_single=False)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert all(p.grad is None for p in learner.critic.parameters())


def test_the_policy_stands_still_while_the_critic_warms_up() -> None:
    learner, batch = actor_and_critic(
        {"critic.warmup_updates": 1}, learning_rate=0.01, weight_decay=0.1
    )
    assert learner.critic is not None
    before = [p.detach().clone() for p in learner.model.parameters()]
    learner.update(batch, is_single=False)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert learner.critic.head.weight.abs().sum() > 0
    learner.update(batch, is_single=False)
    assert not all(
        torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True)
    )
