"""The bookkeeping of one live episode: prompts, budgets and the record that grows turn by turn."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym import seeding
from agentgym.env.contract import Action
from agentgym.errors import RecordError
from agentgym.policies.base import GenerateRequest, Policy
from agentgym.records import (
    Completion,
    ErrorKind,
    Failure,
    FinalPrompt,
    FinishReason,
    Json,
    Sampling,
    Span,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from agentgym.records.limits import Limits, shorten_middle
from agentgym.records.messages import Message
from agentgym.records.text import readable
from agentgym.renderer.base import RenderedPrompt, RenderedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """One episode to run. Everything but timings of its record follows from this."""

    id: str
    """Id of the trajectory."""
    group_id: str
    """Id of its group."""
    task: Task
    """What is asked."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of the environment's constructor."""
    seed: int = 0
    """Seed of reset; equal within a group."""
    sampling: Sampling = field(default_factory=Sampling)
    """How each turn is drawn; the seed of a turn derives from `id`."""
    limits: Limits = field(default_factory=Limits)
    """Bounds of the run; the environment's own bounds hold too."""
    attempt: int = 0
    """Which try this is."""


class Episode:
    """What is known of a live episode. The rollout fills it; `finish` turns it into the record."""

    def __init__(self, spec: EpisodeSpec, policy: Policy) -> None:
        self.spec = spec
        self.limits = spec.limits
        self.turns: list[Turn] = []
        self.sampled_tokens = 0
        self.tool_calls = 0
        self.state = "starting"
        self.state_since = time.monotonic()
        self.last_tool = ""
        self.is_finished = False
        self._policy = policy
        self._renderer = policy.renderer
        self._opening: tuple[Message, ...] = ()
        self._messages: list[Message] = []
        self._rendered: list[RenderedTurn] = []
        self._pending: RenderedPrompt | None = None
        self._prompt_ids: tuple[int, ...] | None = None
        self._system_prompt = ""
        self._tools: tuple[str, ...] = ()
        self._first_observation = ""
        self._has_had_its_last_word = False

    def enter(self, state: str) -> None:
        """Note what the episode waits for now, for whoever asks how it does."""
        self.state, self.state_since = state, time.monotonic()

    def open(self, env: Any, observation: str) -> None:
        """Take over the environment's prompt, tools, bounds and first observation."""
        self.limits = self.spec.limits.merged(getattr(env, "limits", self.spec.limits))
        self._system_prompt = readable(getattr(env, "system_prompt", ""))
        self._tools = tuple(tool.name for tool in getattr(env, "tools", ()))
        self._first_observation = self._shown(observation)
        opening = (
            [Message(role="system", content=self._system_prompt)] if self._system_prompt else []
        )
        self._opening = (*opening, Message(role="user", content=self._first_observation))
        self._messages = list(self._opening)
        if self._renderer is not None:
            self._pending = self._renderer.first_prompt(self._opening)
            self._prompt_ids = self._pending.ids

    def limit_reached(self) -> StopReason | None:
        """Return the bound that forbids another turn, if one does."""
        limits = self.limits
        if limits.max_turns is not None and len(self.turns) >= limits.max_turns:
            return StopReason.MAX_TURNS
        if self._has_had_its_last_word:
            return StopReason.MAX_TOOL_CALLS
        if limits.max_tokens is not None and self.sampled_tokens >= limits.max_tokens:
            return StopReason.MAX_TOKENS
        window = self._context_left()
        if window is not None and window < 1:
            return StopReason.MAX_CONTEXT
        return None

    def request(self) -> GenerateRequest:
        """Return the next call of the policy, its length within every budget."""
        sampling = self.spec.sampling
        budgets = [sampling.max_new_tokens, self._context_left()]
        if self.limits.max_tokens is not None:
            budgets.append(self.limits.max_tokens - self.sampled_tokens)
        allowed = min(budget for budget in budgets if budget is not None)
        base = sampling.seed if sampling.seed is not None else 0
        seed = seeding.derive(base, self.spec.id, len(self.turns))
        return GenerateRequest(
            episode_id=self.spec.id,
            turn=len(self.turns),
            messages=tuple(self._messages),
            prompt_ids=self._prompt_ids,
            sampling=replace(sampling, max_new_tokens=allowed, seed=seed),
        )

    def within_tool_budget(self, action: Action) -> Action:
        """Return the action with an error, which the agent reads, in each call beyond the bound."""
        left = self._calls_left()
        if left is None:
            return action
        error = f"not run: limit of {self.limits.max_tool_calls} calls reached"
        calls: list[ToolCall] = []
        for call in action.tool_calls:
            if call.error is None:
                left -= 1
                if left < 0:
                    call = replace(call, error=error, error_kind=ErrorKind.LIMIT)
            calls.append(call)
        parsed = replace(action.parsed, calls=tuple(calls))
        return Action(str(action), finish_reason=action.finish_reason, parsed=parsed)

    def add_turn(
        self,
        completion: Completion,
        action: Action,
        result: Mapping[str, Any],
        timings: Mapping[str, float],
    ) -> None:
        """Append one turn and render the prompt that follows it.

        Args:
            completion: What the policy answered.
            action: The same, parsed.
            result: The environment's observation and info; empty if it did not get to answer.
            timings: Seconds by part.
        """
        info: Mapping[str, Any] = result.get("info", {})
        observation = self._shown(result.get("observation", ""))
        role = str(info.get("role", "user"))
        rendered = self._pending
        self.turns.append(
            Turn(
                index=len(self.turns),
                parent=len(self.turns) - 1 if self.turns else None,
                prefix_length=rendered.prefix_length if rendered is not None else 0,
                prompt_ids=rendered.ids if rendered is not None else None,
                prompt_spans=rendered.spans if rendered is not None else (),
                completion=completion,
                role_spans=self._role_spans(completion, action),
                observation=observation,
                observation_role=role,
                attachments=tuple(info.get("attachments", ())),
                tool_calls=action.tool_calls,
                tool_results=tuple(info.get("tool_results", ())),
                error_kind=_error_kind(completion, info),
                rewards=named_rewards(result),
                timings=timings,
            )
        )
        self.sampled_tokens += len(completion.tokens.ids) if completion.tokens is not None else 0
        # Whoever has used up its calls gets one turn to say what came of them.
        self._has_had_its_last_word = self._calls_left() == 0
        self.tool_calls += len(self.turns[-1].tool_results) - _refused(self.turns[-1])
        self._extend(completion, Message(role=role, content=observation))

    def finish(
        self,
        stop_reason: StopReason,
        *,
        terminated: bool = False,
        outcome: float | None = None,
        failure: Failure | None = None,
    ) -> Trajectory:
        """Return the record. Terminated is stronger than truncated."""
        is_open = failure is not None or stop_reason is StopReason.CANCELLED
        self.is_finished = True
        return Trajectory(
            id=self.spec.id,
            group_id=self.spec.group_id,
            attempt=self.spec.attempt,
            task_id=self.spec.task.id,
            env_id=self.spec.task.env_id,
            env_kwargs=dict(self.spec.env_kwargs),
            limits=self.limits,
            seed=self.spec.seed,
            renderer_id=self._renderer.id if self._renderer is not None else "",
            system_prompt=self._system_prompt,
            tools=self._tools,
            initial_observation=self._first_observation,
            turns=tuple(self.turns),
            final_prompt=self._final_prompt(),
            terminated=terminated,
            truncated=not terminated and not is_open,
            stop_reason=stop_reason,
            outcome=None if is_open else outcome,
            failure=failure,
        )

    def _shown(self, observation: str) -> str:
        """Return an observation as the policy reads it and the record holds it."""
        return shorten_middle(readable(observation), self.limits.max_observation_chars)

    def _calls_left(self) -> int | None:
        bound = self.limits.max_tool_calls
        return None if bound is None else max(bound - self.tool_calls, 0)

    def _context_left(self) -> int | None:
        if self._prompt_ids is None:
            return None
        windows = (self.limits.max_context_tokens, self._policy.max_context_tokens)
        known = [window for window in windows if window is not None]
        return min(known) - len(self._prompt_ids) if known else None

    def _role_spans(self, completion: Completion, action: Action) -> tuple[Span, ...]:
        if self._renderer is None or completion.tokens is None or not action.parsed.spans:
            return ()
        offsets = self._renderer.offsets(completion.tokens.ids)
        starts, stops = [start for start, _ in offsets], [stop for _, stop in offsets]
        return tuple(_token_span(span, starts, stops) for span in action.parsed.spans)

    def _extend(self, completion: Completion, observation: Message) -> None:
        self._messages.append(Message(role="assistant", content=completion.text))
        self._messages.append(observation)
        if self._renderer is None or self._prompt_ids is None:
            return
        sampled = (
            completion.tokens.ids
            if completion.tokens is not None
            else self._renderer.encode_completion(completion.text)
        )
        self._rendered.append(
            RenderedTurn(
                prompt_ids=self._prompt_ids,
                sampled_ids=sampled,
                completion=completion.text,
                observation=observation,
            )
        )
        self._pending = self._renderer.next_prompt(self._opening, self._rendered)
        full = self._prompt_ids + sampled
        self._prompt_ids = full[: self._pending.prefix_length] + self._pending.ids

    def _final_prompt(self) -> FinalPrompt | None:
        if self._pending is None or not self.turns:
            return None
        return FinalPrompt(prefix_length=self._pending.prefix_length, ids=self._pending.ids)


def named_rewards(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the named parts of a step's reward; `{"reward": r}` for an env without names.

    Raises:
        RecordError: If one is no finite number: a mean over it would be none either.
    """
    info = result.get("info", {})
    parts = {"reward": result["reward"]} if "reward" in result else {}
    rewards = {str(name): float(value) for name, value in info.get("rewards", parts).items()}
    for name, value in rewards.items():
        if not math.isfinite(value):
            raise RecordError(f"the reward {name!r} must be a finite number (got {value!r})")
    return rewards


def _error_kind(completion: Completion, info: Mapping[str, Any]) -> ErrorKind | None:
    if completion.finish_reason is FinishReason.LENGTH:
        return ErrorKind.TRUNCATED
    return info.get("error_kind")


def _refused(turn: Turn) -> int:
    """Return how many results of a turn are of calls that were not run."""
    unread = {call.id for call in turn.tool_calls if call.error is not None}
    return sum(result.call_id in unread for result in turn.tool_results)


def _token_span(span: Span, starts: Sequence[int], stops: Sequence[int]) -> Span:
    """Return the tokens that overlap a stretch of characters; both lists ascend."""
    first = bisect.bisect_right(stops, span.start)
    last = bisect.bisect_left(starts, span.stop)
    if first >= last:
        return Span(kind=span.kind, start=0, stop=0, ref=span.ref)
    return Span(kind=span.kind, start=first, stop=last, ref=span.ref)
