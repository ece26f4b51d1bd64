"""The control of a training run: the same seconds, spent on more supervised steps instead of RL.

It begins from the run's own warm start, on the very demonstrations that the warm start learned
from, and is evaluated on the same held-out tasks.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.evaluation import EvaluationResult, evaluate_policy
from agentgym.policies.transformers import TransformersPolicy
from agentgym.redaction import masked_tree
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine
from agentgym.runs.folder import read_config, write_atomic
from agentgym.runs.progress import ProgressSink
from agentgym.trainers.learner.distributed import join_world
from agentgym.trainers.learner.sft import SupervisedTrainer, demonstrate, demonstration_rows
from agentgym.trainers.loop.open_learner import open_learner
from agentgym.trainers.loop.setup import WARM_START, Inputs, check_inputs

_PACE_STEPS = 10
"""Steps that are timed to know how many fit into the seconds, for the schedule's end."""


async def supervised_control(
    run: Path, *, seconds: float, progress: ProgressSink
) -> EvaluationResult:
    """Spend `seconds` on supervised steps from a run's warm start and evaluate; write the result.

    Args:
        run: Folder of a run with a warm start.
        seconds: Training time, evaluation excluded.
        progress: Who is told how it goes.

    Raises:
        ConfigError: If the run had no warm start.
    """
    config = read_config(run)
    folder = run / WARM_START
    if not folder.is_dir():
        raise ConfigError(f"{run} had no warm start, so there is nothing to go on from")
    inputs = check_inputs(config)
    renderer = load_renderer(folder, history=config.rollout.history)
    learner = open_learner(config, inputs.preset, folder, join_world(config.optim.device))
    episodes = await demonstrate(
        inputs.stream,
        config.warmstart,
        seed=config.seed,
        limits=config.limits.to_limits(),
        max_concurrent=config.rollout.max_concurrent,
    )
    trainer = SupervisedTrainer(
        learner,
        demonstration_rows(episodes, renderer),
        config.warmstart,
        total_steps=config.warmstart.steps,
        seed=config.seed + 1,
        pad_id=renderer.pad_id,
    )
    await _spend(trainer, seconds, progress)
    policy = TransformersPolicy(learner.model, renderer, policy_id="control")
    result = await _evaluate(inputs, policy)
    text = json.dumps(masked_tree(result.to_dict()), indent=2, allow_nan=False)
    write_atomic(run / "evaluations" / "control.json", text + "\n")
    return result


async def _spend(trainer: SupervisedTrainer, seconds: float, progress: ProgressSink) -> None:
    """Take as many steps as fit, with the schedule's decay at their end."""
    began = time.monotonic()
    for _ in range(_PACE_STEPS):
        trainer.step()
    pace = (time.monotonic() - began) / _PACE_STEPS
    trainer.plan(max(int(seconds / pace), _PACE_STEPS))
    progress.on_phase("control", trainer.total_steps)
    while trainer.steps_done < trainer.total_steps and time.monotonic() - began < seconds:
        progress.on_step({"loss": trainer.step()})
        await asyncio.sleep(0)


async def _evaluate(inputs: Inputs, policy: TransformersPolicy) -> EvaluationResult:
    async with Engine(
        policy,
        max_concurrent=inputs.config.rollout.max_concurrent,
        retries=inputs.config.rollout.retries,
    ) as engine:
        result = await evaluate_policy(
            engine,
            inputs.eval_tasks,
            inputs.config.eval,
            name="control",
            limits=inputs.config.limits.to_limits(),
        )
    await policy.aclose()
    return result
