"""Everything that a run holds while it runs: `Session`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from agentgym.config import RunConfig
from agentgym.policies.base import TrainablePolicy
from agentgym.records import Task
from agentgym.renderer.base import Renderer
from agentgym.rollouts.engine import Engine
from agentgym.rollouts.scoring import Rubric
from agentgym.runs.folder import RunFolder
from agentgym.runs.progress import ProgressSink
from agentgym.runs.status import LiveRun, LiveWriter, dump_on_signal, live_episodes, snapshot_head
from agentgym.trainers.learner.checkpoint import LoopState
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.thread import LearnerThread
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.rollout.buffer import Rollouts
from agentgym.trainers.rollout.task_stream import TaskStream

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Session:
    """The parts of one run, made by `agentgym.trainers.loop.setup.open_session`.

    Only rank 0 has an engine, a policy and a run folder that it writes to.
    """

    config: RunConfig
    """Resolved settings."""
    world: World
    """This process's place."""
    preset: Preset
    """The objective."""
    learner: Learner
    """Owner of the weights."""
    renderer: Renderer
    """The model's tokenizer and chat template."""
    base: Path
    """Model folder that the run began from; its tokenizer goes into every saved policy."""
    policy: TrainablePolicy
    """Samples with the learner's weights."""
    has_copy: bool = False
    """Whether those are a copy, which every update must be sent to."""
    engine: Engine
    """Runs the episodes."""
    rollouts: Rollouts
    """Training episodes, ahead of learning."""
    stream: TaskStream
    """Training tasks by number."""
    eval_tasks: tuple[Task, ...]
    """Held-out tasks, the same for every evaluation of the run."""
    folder: RunFolder
    """Where everything is written."""
    progress: ProgressSink
    """Who is told how it goes."""
    rubric: Rubric = field(default_factory=Rubric)
    """What scores the episodes."""
    state: LoopState
    """Where the run begins: fresh, or from a checkpoint."""
    reached: LoopState = field(init=False)
    """The state after the last whole step."""
    thread: LearnerThread
    """Where the learner computes."""
    phase: str = "start"
    """What the loop does now."""
    phase_since: float = field(default_factory=time.monotonic)
    """Clock when it began."""
    step: int = 0
    """Steps taken."""
    has_warned_of_length: bool = False
    """Whether it was said that the length limit decides the outcomes."""
    began: float = field(default_factory=time.monotonic)
    """Clock at the start of this process's share of the run."""
    clock: Stopwatch = field(default_factory=Stopwatch)
    """Where the time of the step goes."""
    _exits: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.reached = self.state

    async def __aenter__(self) -> Self:
        self.step = self.state.next_step
        if self.world.is_main:
            writer = LiveWriter(self.folder.path, self.snapshot)
            await self._exits.enter_async_context(writer)
            self._exits.enter_context(dump_on_signal(writer.now))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async with self._exits:
            await self.engine.aclose()
            await self.policy.aclose()
            self.thread.close()
        self.world.close()

    def enter(self, phase: str) -> None:
        """Note what the loop does now, for whoever asks how the run does."""
        self.phase, self.phase_since = phase, time.monotonic()

    def snapshot(self, loop_late_s: float) -> LiveRun:
        """Return what the run does now. May be called from any thread, also while it is stuck."""
        engine, rollouts = self.engine, self.rollouts
        load = rollouts.load
        return LiveRun(
            **snapshot_head(),
            phase=self.phase,
            phase_s=round(time.monotonic() - self.phase_since, 3),
            loop_late_s=loop_late_s,
            step=self.step,
            steps=self.config.steps,
            policy_version=self.policy.version,
            queues={
                "groups under way": len(rollouts.outstanding),
                "groups ended": rollouts.waiting,
                "live episodes": len(engine.live),
                "live at most": engine.slots.limit,
                "episodes waiting": engine.slots.waiting,
            },
            policy=dataclasses.asdict(load) if load is not None else {},
            episodes=live_episodes(engine.live),
        )

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`, computed in the learner's thread."""
        return await self.thread.call(function, *args, **kwargs)

    def elapsed_s(self) -> float:
        """Return seconds of training so far, earlier processes counted."""
        return self.state.elapsed_s + time.monotonic() - self.began

    def is_finished(self, state: LoopState) -> bool:
        """Return whether the last step is taken or a budget is used up; equal in all ranks."""
        budget = self.config.budget
        over = state.next_step >= self.config.steps
        if budget.minutes is not None:
            over = over or self.elapsed_s() >= budget.minutes * 60
        if budget.tokens is not None:
            over = over or state.sampled_tokens >= budget.tokens
        return bool(self.world.broadcast(over))
