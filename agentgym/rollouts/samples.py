"""From trajectories to training rows: `to_samples`, and `with_ids` for text-only trajectories.

A row is a segment: turns whose prompts only grow. Where a prompt does not extend the turn before
it, a new row starts, with its own true prompt; sampled ids that it carries are context there. So
every sampled id is trained in exactly one row, after exactly the ids it was sampled from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgym.records import (
    FinalPrompt,
    FinishReason,
    Sample,
    Span,
    SpanKind,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.records.messages import Message
from agentgym.renderer.base import RenderedTurn, Renderer

ROLE_KINDS: tuple[SpanKind, ...] = tuple(SpanKind)
"""`Sample.role_ids` are positions in this tuple."""

_NOT_TRAINED = -1


def to_samples(trajectory: Trajectory) -> tuple[Sample, ...]:
    """Return the rows of a trajectory with ids, none for a failed or cancelled one.

    Raises:
        RecordError: If a turn has no ids: `with_ids` gives them to text.

    Example:
        Two turns in one segment: prompt 7 8, sampled 1 9, observation 4, sampled 2 9
        give one row with ids 7 8 1 9 4 2 9 and loss mask F F T T F T T.
    """
    if trajectory.failure is not None or not (trajectory.terminated or trajectory.truncated):
        return ()
    segments: list[list[Turn]] = []
    for turn in trajectory.turns:
        if segments and _extends(turn, segments[-1][-1]):
            segments[-1].append(turn)
        else:
            segments.append([turn])
    return tuple(
        _row(trajectory, turns, segment) for segment, turns in enumerate(segments) if turns
    )


def _extends(turn: Turn, last: Turn) -> bool:
    """Whether a turn's prompt keeps every id of the turn before it, in one agent's hand."""
    trace = last.completion.tokens
    length = last.prefix_length + len(last.prompt_ids or ()) + (len(trace.ids) if trace else 0)
    return (
        turn.parent == last.index
        and turn.agent_id == last.agent_id
        and turn.prefix_length == length
    )


class _RowBuilder:
    """Grows the per-token lists of a row together, so that they cannot differ in length."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] | None = []
        self.versions: list[int] = []
        self.turn_ids: list[int] = []
        self.roles: list[int] = []

    def context(self, ids: tuple[int, ...], roles: list[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)
        self._say([0.0] * len(ids))
        self.versions += [_NOT_TRAINED] * len(ids)
        self.turn_ids += [_NOT_TRAINED] * len(ids)
        self.roles += roles

    def trained(self, trace: TokenTrace, turn: int, roles: list[int]) -> None:
        count = len(trace.ids)
        self.ids += trace.ids
        self.mask += [True] * count
        self._say(trace.behavior_logprobs if count else ())
        self.versions += [run.version for run in trace.versions for _ in range(run.count)]
        self.turn_ids += [turn] * count
        self.roles += roles

    def _say(self, logprobs: Sequence[float] | None) -> None:
        """Add log-probabilities; a row of which some are not known has none."""
        if self.logprobs is None or logprobs is None:
            self.logprobs = None
        else:
            self.logprobs += logprobs


def _row(trajectory: Trajectory, turns: list[Turn], segment: int) -> Sample:
    builder = _RowBuilder()
    template = ROLE_KINDS.index(SpanKind.TEMPLATE)
    for position, turn in enumerate(turns):
        context = trajectory.context_ids(turn.index) if position == 0 else turn.prompt_ids or ()
        carried = len(context) - len(turn.prompt_ids or ())
        roles = [template] * carried + _roles(turn.prompt_spans, len(context) - carried, template)
        builder.context(context, roles)
        trace = turn.completion.tokens or TokenTrace(ids=())
        action = ROLE_KINDS.index(SpanKind.ACTION)
        builder.trained(trace, turn.index, _roles(turn.role_spans, len(trace.ids), action))
    return Sample(
        id=f"{trajectory.id}-s{segment}",
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        agent_id=turns[0].agent_id,
        source=turns[0].completion.source,
        segment=segment,
        ids=tuple(builder.ids),
        loss_mask=tuple(builder.mask),
        behavior_logprobs=tuple(builder.logprobs) if builder.logprobs is not None else None,
        versions=tuple(builder.versions),
        turn_ids=tuple(builder.turn_ids),
        role_ids=tuple(builder.roles),
    )


def _roles(spans: tuple[Span, ...], count: int, default: int) -> list[int]:
    roles = [default] * count
    for span in spans:
        start, stop = span.start, min(span.stop, count)
        roles[start:stop] = [ROLE_KINDS.index(span.kind)] * max(stop - start, 0)
    return roles


def with_ids(trajectory: Trajectory, renderer: Renderer) -> Trajectory:
    """Return a text trajectory (expert, API, human) with the ids of `renderer`, tokenised once.

    Completions that were cut off by length get no end token.
    """
    opening = [Message(role="user", content=trajectory.initial_observation)]
    if trajectory.system_prompt:
        opening.insert(0, Message(role="system", content=trajectory.system_prompt))
    pending = renderer.first_prompt(opening)
    prompt = pending.ids
    rendered: list[RenderedTurn] = []
    turns: list[Turn] = []
    for turn in trajectory.turns:
        ids = _completion_ids(turn, renderer)
        trace = TokenTrace(
            ids=ids, versions=(VersionRun(version=0, count=len(ids)),) if ids else ()
        )
        turns.append(
            replace(
                turn,
                parent=turn.index - 1 if turn.index else None,
                prefix_length=pending.prefix_length,
                prompt_ids=pending.ids,
                prompt_spans=pending.spans,
                completion=replace(turn.completion, tokens=trace),
            )
        )
        observation = Message(role=turn.observation_role, content=turn.observation)
        rendered.append(
            RenderedTurn(
                prompt_ids=prompt,
                sampled_ids=ids,
                completion=turn.completion.text,
                observation=observation,
            )
        )
        pending = renderer.next_prompt(opening, rendered)
        prompt = (prompt + ids)[: pending.prefix_length] + pending.ids
    final = FinalPrompt(prefix_length=pending.prefix_length, ids=pending.ids) if turns else None
    return replace(trajectory, turns=tuple(turns), final_prompt=final, renderer_id=renderer.id)


def _completion_ids(turn: Turn, renderer: Renderer) -> tuple[int, ...]:
    ids = renderer.encode_completion(turn.completion.text)
    if turn.completion.finish_reason is FinishReason.LENGTH and ids and ids[-1] in renderer.end_ids:
        return ids[:-1]
    return ids
