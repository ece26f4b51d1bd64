"""Episodes and what is said of them: `Failure`, `Trajectory`, `Score`, `Group`, `Sample`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agentgym.errors import RecordError
from agentgym.records.limits import Limits
from agentgym.records.task import Json
from agentgym.records.turn import ErrorKind, Source, Turn


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    ENV_TRUNCATED = "env_truncated"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_CONTEXT = "max_context"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"


_FROM_OUTSIDE = frozenset({StopReason.MAX_SECONDS, StopReason.MAX_CONTEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode has no outcome. Not a reward, not in a baseline, not trained on."""

    kind: ErrorKind
    """`infrastructure` or `timeout`."""
    where: str
    """The part that failed: env, policy, tool or engine."""
    message: str
    """One line for a person."""
    exception: str = ""
    """Name of the exception's type."""
    is_retryable: bool = False
    """True if the same attempt may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Where a trajectory leaves the one that it shares a beginning with."""

    trajectory_id: str
    """The other trajectory."""
    turn: int
    """Turn of the fork."""
    token: int
    """Position of the fork in that turn's full ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalPrompt:
    """The ids after the last observation: for bootstrap values and the last belief."""

    prefix_length: int
    """Ids of the last turn (prompt and completion) that it keeps."""
    ids: tuple[int, ...]
    """[time] ids after that prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, with what is needed to repeat it."""

    id: str
    """Derived from run seed, task and attempt: a repeated run gives the same id."""
    group_id: str
    """Trajectories of one task that were sampled together share it."""
    attempt: int = 0
    """Which try this is; infrastructure failures are tried again."""
    task_id: str
    """`Task.id`."""
    env_id: str
    """Registered id of the environment."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments the environment was made with."""
    limits: Limits = field(default_factory=Limits)
    """Bounds that held."""
    seed: int = 0
    """Seed given to reset; equal for all trajectories of a group."""
    renderer_id: str = ""
    """Which renderer made the ids; empty for text policies."""
    system_prompt: str = ""
    """As the policy read it."""
    tools: tuple[str, ...] = ()
    """Names of the tools on offer."""
    initial_observation: str = ""
    """What the policy read first."""
    turns: tuple[Turn, ...] = ()
    """In order."""
    final_prompt: FinalPrompt | None = None
    """Ids after the last observation; None for text policies and empty episodes."""
    terminated: bool = False
    """The environment ended the episode."""
    truncated: bool = False
    """A limit ended the episode. Never together with `terminated`."""
    stop_reason: StopReason = StopReason.UNFINISHED
    """Which end it was."""
    outcome: float | None = None
    """How far the task was solved, in [0, 1], as the environment said; None if it could not."""
    failure: Failure | None = None
    """Set if the episode has no outcome for a reason that is not the agent's."""
    forked_from: ForkPoint | None = None
    """Set for a branch of a tree."""

    def __post_init__(self) -> None:
        if self.terminated and self.truncated:
            raise RecordError(
                "a trajectory is terminated or truncated, not both: terminated is stronger"
            )
        if self.failure is not None and self.outcome is not None:
            raise RecordError(f"a failed trajectory has no outcome (got {self.outcome!r})")
        if self.outcome is not None and not 0 <= self.outcome <= 1:
            raise RecordError(f"'outcome' must be in [0, 1] (got {self.outcome!r})")
        for position, turn in enumerate(self.turns):
            if turn.index != position:
                raise RecordError(f"turn {position} has index {turn.index!r}")

    @property
    def is_cut_short(self) -> bool:
        """True if a limit from outside the task (time, the model's window) ended the episode.

        Such an episode could have gone on. A bound on turns, tokens or tool calls is part of the
        task: the outcome at that point is the task's own verdict.
        """
        return self.truncated and self.stop_reason in _FROM_OUTSIDE

    def full_ids(self, turn_index: int) -> tuple[int, ...]:
        """Return [time] ids of a turn's whole prompt and completion, as the policy saw them.

        Raises:
            RecordError: If the turn has no ids.
        """
        completion = self.turns[turn_index].completion
        sampled = completion.tokens.ids if completion.tokens is not None else ()
        return self.context_ids(turn_index) + sampled

    def context_ids(self, turn_index: int) -> tuple[int, ...]:
        """Return [time] ids of a turn's whole prompt: its parent's full ids cut at
        `prefix_length`, then `prompt_ids`.
        """
        line = [self.turns[turn_index]]
        while (parent := line[-1].parent) is not None:
            line.append(self.turns[parent])
        ids: list[int] = []
        for turn in reversed(line):
            if turn.prompt_ids is None:
                raise RecordError(
                    f"turn {turn.index} of {self.id} has no ids: its policy works on text"
                )
            ids[turn.prefix_length :] = turn.prompt_ids
            if turn.index != turn_index and turn.completion.tokens is not None:
                ids += turn.completion.tokens.ids
        return tuple(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one scorer says of one trajectory. Scoring again appends, never edits."""

    trajectory_id: str
    """`Trajectory.id`."""
    scorer_id: str
    """Name and version of the scorer."""
    outcome: float
    """How far the task was solved, in [0, 1]."""
    is_success: bool
    """Whether that counts as solved."""
    turn_rewards: Mapping[str, tuple[float | None, ...]] = field(
        default_factory=dict[str, tuple[float | None, ...]]
    )
    """name -> [turn] reward of each turn; None where the name says nothing of the turn, which
    differs from 0."""

    def __post_init__(self) -> None:
        if not 0 <= self.outcome <= 1:
            raise RecordError(f"'outcome' must be in [0, 1] (got {self.outcome!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task from one start state."""

    id: str
    """Unique in the run."""
    task_id: str
    """Their task."""
    requested_size: int
    """How many were asked for."""
    trajectories: tuple[Trajectory, ...]
    """One record for each started episode, failed ones too."""
    drawn_rewards: tuple[float, ...] = ()
    """Outcomes of all samples drawn, where more were drawn than kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training row: ids in order, which of them are trained, and whose they are.

    Example:
        prompt 7 8, sampled 1 9, observation 4, sampled 2 9:
        ids=(7, 8, 1, 9, 4, 2, 9), loss_mask=(F, F, T, T, F, T, T),
        turn_ids=(-1, -1, 0, 0, -1, 1, 1)
    """

    id: str
    """Derived from trajectory and segment."""
    trajectory_id: str
    """`Trajectory.id`."""
    group_id: str
    """`Group.id`."""
    agent_id: str = "default"
    """Who acted."""
    source: Source = Source.POLICY
    """Who wrote the trained tokens."""
    segment: int = 0
    """Which segment of the trajectory the row is."""
    ids: tuple[int, ...]
    """[time] token ids."""
    loss_mask: tuple[bool, ...]
    """[time] True on tokens that are trained."""
    behavior_logprobs: tuple[float, ...] | None
    """[time] log-probability under the sampling policy, 0 off the mask; None for expert rows."""
    versions: tuple[int, ...]
    """[time] policy version of each trained token, -1 elsewhere."""
    turn_ids: tuple[int, ...]
    """[time] turn of each trained token, -1 elsewhere."""
    role_ids: tuple[int, ...] = ()
    """[time] position in `SpanKind` of each token's kind; empty if not known."""

    def __post_init__(self) -> None:
        size = len(self.ids)
        lengths = {
            "loss_mask": len(self.loss_mask),
            "versions": len(self.versions),
            "turn_ids": len(self.turn_ids),
        }
        if self.behavior_logprobs is not None:
            lengths["behavior_logprobs"] = len(self.behavior_logprobs)
        if self.role_ids:
            lengths["role_ids"] = len(self.role_ids)
        wrong = {name: length for name, length in lengths.items() if length != size}
        if wrong:
            raise RecordError(f"every per-token list must have {size} entries (got {wrong!r})")
