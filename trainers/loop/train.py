"""The loop: Task -> Env -> Turn -> Trajectory -> Group -> Sample -> Batch -> Update -> Policy.

One loop for every preset, policy and number of processes. What a line does is the function it
calls; options belong to those functions.
"""

from __future__ import annotations

import asyncio

from agentgym.errors import ConfigError, InfrastructureError
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.thread import uninterrupted
from agentgym.trainers.loop.collect import Episodes, collect
from agentgym.trainers.loop.session import Session
from agentgym.trainers.loop.steps import (
    Summary,
    collate_step,
    finish_run,
    learn,
    look_back,
    publish,
    record_step,
    save_what_is_whole,
    start_run,
)


async def run_loop(session: Session) -> Summary:
    """Train until the last step or the end of a budget, and return what came of it.

    Episodes run in the background (`session.rollouts`), up to `rollout.max_staleness` updates ahead
    of learning; with 0 none is begun before the weights that it is trained on are there. Cancelled
    (Ctrl-C), or with a disk or a policy that fails, it drops the step in flight, saves the state
    after the last whole step and raises on.

    Raises:
        ConfigError: If there is no step left to take.
        InfrastructureError: If not one episode of a step came to an end, or the disk is full.
        DivergedError: If a loss or a gradient is not finite.
    """
    state = session.state
    if state.next_step >= session.config.steps:
        raise ConfigError(
            f"the run has taken all its {session.config.steps} steps; "
            f"give a larger 'steps' to go on from step {state.next_step}"
        )
    async with session, session.rollouts:
        try:
            state = await start_run(session, state)
            while not session.is_finished(state):
                state = await take_step(session, state)
                await look_back(session, state)
                # A cancellation that a whole step kept waiting is raised at a real wait, which a
                # step whose episodes are there already has none of.
                await asyncio.sleep(0)
        except (asyncio.CancelledError, InfrastructureError):
            save_what_is_whole(session, session.reached)
            raise
        return await finish_run(session, state)


async def take_step(session: Session, state: LoopState) -> LoopState:
    """Take one training step and return the state after it."""
    episodes, state = await collect(session, state)  # Task, Env, Turn, Trajectory, Group, Score
    return await uninterrupted(_learn_from(session, state, episodes))


async def _learn_from(session: Session, state: LoopState, episodes: Episodes) -> LoopState:
    """Train on a step's episodes: whole, so that weights and counters never part."""
    batches = await collate_step(session, episodes)  # Sample, Batch
    metrics = await learn(session, batches)  # Advantages, Loss, Update
    state = record_step(session, state, episodes, metrics)
    if state.policy_version > episodes.version:
        await publish(session, state)  # new weights, Policy
    return state
