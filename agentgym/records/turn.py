"""One call of the policy and what the environment made of it: tokens, completion, tools, `Turn`."""

from __future__ import annotations

import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agentgym.errors import RecordError
from agentgym.records.task import Json
from agentgym.records.text import readable


class FinishReason(StrEnum):
    """Why the policy stopped writing."""

    STOP = "stop"
    LENGTH = "length"


class Source(StrEnum):
    """Who wrote a completion."""

    POLICY = "policy"
    EXPERT = "expert"
    TEACHER = "teacher"
    HUMAN = "human"


class ErrorKind(StrEnum):
    """What kind of mistake or failure happened (DESIGN: typed data, never a reward)."""

    MODEL = "model"
    FORMAT = "format"
    TRUNCATED = "truncated"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"


class SpanKind(StrEnum):
    """What a stretch of tokens or characters is."""

    TEMPLATE = "template"
    SYSTEM = "system"
    OBSERVATION = "observation"
    TOOL_RESULT = "tool_result"
    HINT = "hint"
    THINK = "think"
    SUBGOAL = "subgoal"
    ACTION = "action"
    FORMAT = "format"
    ANSWER = "answer"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a completion was, or is to be, drawn.

    Example:
        Sampling(temperature=1.0, max_new_tokens=64, seed=7)
    """

    temperature: float = 1.0
    """Divides the logits before the softmax; 0 takes the most likely token."""
    top_p: float = 1.0
    """Nucleus bound in (0, 1]; 1 keeps every token."""
    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps every token."""
    min_p: float = 0.0
    """Tokens below this share of the largest probability are left out; 0 keeps every token."""
    max_new_tokens: int = 256
    """Sampled tokens of one call at most, the end token included."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion; the string itself is kept."""
    seed: int | None = None
    """Seed of this call; None takes the policy's own stream."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise RecordError(f"'temperature' must be >= 0 (got {self.temperature!r})")
        if not 0 < self.top_p <= 1:
            raise RecordError(f"'top_p' must be in (0, 1] (got {self.top_p!r})")
        if self.top_k < 0:
            raise RecordError(f"'top_k' must be >= 0, 0 for no bound (got {self.top_k!r})")
        if not 0 <= self.min_p < 1:
            raise RecordError(f"'min_p' must be in [0, 1) (got {self.min_p!r})")
        if self.max_new_tokens < 1:
            raise RecordError(f"'max_new_tokens' must be >= 1 (got {self.max_new_tokens!r})")

    @property
    def keeps_full_support(self) -> bool:
        """True if every token keeps its probability, so that a ratio over them is exact."""
        return self.top_p == 1 and self.top_k == 0 and self.min_p == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRun:
    """`count` tokens in a row that were sampled under one policy version."""

    version: int
    """Learner updates behind the weights that sampled."""
    count: int
    """Length of the run, at least 1."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.version < 0:
            raise RecordError(
                "a version run needs version >= 0 and count >= 1 "
                f"(got {self.version!r}, {self.count!r})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """The sampled ids of one completion with what the sampler said of them.

    Example:
        TokenTrace(ids=(1, 2, 9), behavior_logprobs=(-0.5, -1.25, 0.0),
                   versions=(VersionRun(version=3, count=3),))
    """

    ids: tuple[int, ...]
    """[time] sampled ids, the end token included where it was sampled."""
    behavior_logprobs: tuple[float, ...] | None = None
    """[time] log-probability of each id under the sampling distribution, in nats, as float32."""
    versions: tuple[VersionRun, ...] = ()
    """Policy version of each id, as runs in order."""

    def __post_init__(self) -> None:
        if self.behavior_logprobs is not None:
            if len(self.behavior_logprobs) != len(self.ids):
                raise RecordError(
                    f"'behavior_logprobs' must have one entry an id ({len(self.ids)}) "
                    f"(got {len(self.behavior_logprobs)})"
                )
            # Samplers return float32 and float32 is stored: a round trip must keep equality.
            rounded = tuple(array.array("f", self.behavior_logprobs))
            object.__setattr__(self, "behavior_logprobs", rounded)
        counted = sum(run.count for run in self.versions)
        if counted != len(self.ids):
            raise RecordError(f"'versions' must cover {len(self.ids)} ids (got {counted})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a policy answered in one call."""

    text: str
    """Decoded text without the end token; a derived value where `tokens` is there."""
    finish_reason: FinishReason = FinishReason.STOP
    """`length` if a bound cut it off: then nothing in it is executed."""
    sampling: Sampling | None = None
    """How it was drawn; None for scripted, API and human text."""
    source: Source = Source.POLICY
    """Who wrote it."""
    policy_id: str = ""
    """Name of the policy that wrote it."""
    tokens: TokenTrace | None = None
    """The sampled ids; None for scripted, API and human text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch [start, stop) of tokens or characters with its meaning."""

    kind: SpanKind
    """What the stretch is."""
    start: int
    """First position."""
    stop: int
    """One past the last position."""
    ref: str = ""
    """Id of what it belongs to, such as a tool call's."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise RecordError(
                f"a span needs 0 <= start <= stop (got {self.start!r}, {self.stop!r})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as the model wrote it."""

    id: str
    """Unique within its turn."""
    name: str
    """Name of the tool as written; it may be unknown."""
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments as parsed, before they are checked against the tool's schema."""
    raw: str = ""
    """The text of the whole call, verbatim."""
    error: str | None = None
    """Why the call is not run: it could not be parsed, or a limit was reached; None if it is."""
    error_kind: ErrorKind = ErrorKind.FORMAT
    """Kind of that error, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of one call."""

    call_id: str
    """`ToolCall.id` that it answers."""
    text: str
    """What the agent reads; halves of surrogate pairs are replaced."""
    error_kind: ErrorKind | None = None
    """Kind of the mistake or failure; None if the tool ran."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", readable(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with an observation."""

    media_type: str
    """MIME type."""
    sha256: str
    """Hash of the content, in hex."""
    path: str
    """Where it lies, relative to the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy call: its prompt, its completion, the environment's answer."""

    index: int
    """Position in the episode, from 0."""
    agent_id: str = "default"
    """Who acted."""
    parent: int | None = None
    """Index of the turn whose ids the prompt continues; None if it starts from nothing."""
    prefix_length: int = 0
    """Ids of the parent (its prompt and completion) that the prompt keeps. Less than all of them
    starts a new segment."""
    prompt_ids: tuple[int, ...] | None = None
    """[time] ids of the prompt after that prefix; None if the policy works on text."""
    prompt_spans: tuple[Span, ...] = ()
    """What each stretch of `prompt_ids` is."""
    completion: Completion
    """What the policy answered."""
    role_spans: tuple[Span, ...] = ()
    """What each stretch of the completion's ids is (think, action, answer, ...)."""
    observation: str = ""
    """What the environment answered; empty where a limit ended the episode before it could."""
    observation_role: str = "user"
    """Role under which the policy reads the observation."""
    attachments: tuple[Attachment, ...] = ()
    """Files that came with the observation."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls found in the completion by the environment's protocol."""
    tool_results: tuple[ToolResult, ...] = ()
    """Their results, in order."""
    error_kind: ErrorKind | None = None
    """Kind of the agent's mistake in this turn, such as `format` or `truncated`; None if none."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the turn's reward, as the environment gave them, unweighted."""
    timings: Mapping[str, float] = field(default_factory=dict[str, float], compare=False)
    """Seconds spent in the policy and the environment; the only field that may differ between
    equal runs."""

    def __post_init__(self) -> None:
        if self.index < 0 or self.prefix_length < 0:
            raise RecordError(
                "a turn needs index >= 0 and prefix_length >= 0 "
                f"(got {self.index!r}, {self.prefix_length!r})"
            )
        if self.parent is None and self.prefix_length:
            raise RecordError(f"a turn without parent has no prefix (got {self.prefix_length!r})")
        if self.parent is not None and not 0 <= self.parent < self.index:
            raise RecordError(
                f"'parent' must be an earlier turn than {self.index} (got {self.parent!r})"
            )
        if self.completion.tokens is not None and self.prompt_ids is None:
            raise RecordError("a turn whose completion has ids needs 'prompt_ids' (got None)")
