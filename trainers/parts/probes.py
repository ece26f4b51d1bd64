"""Probes: what must be scored with the model before the rewards, as data, and how it comes back.

In order: `ScoringRequest`, the part `gold_answer`, `belief_fields`. The learner runs all requests
of a batch in one pass: for each it takes the mean log-probability of the scored target ids after
the prefix, and hands the numbers to `belief_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from agentgym.records import Trajectory
from agentgym.trainers.parts.registry import Need, part

Encode = Callable[[str], Sequence[int]]
"""Text of a target to token ids, without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """One stretch of ids to be scored after a prefix.

    Example:
        `<answer>` (ids 60, 61) before the answer 1776 (ids 17, 76), which alone is scored:
        `target=(60, 61, 17, 76)`, `scored=(2, 4)`.
    """

    trajectory: int
    """Position of the trajectory in the batch."""
    column: int
    """Turn before which the target is scored; the number of turns for the final prompt."""
    prefix: tuple[int, ...]
    """[time] context ids, as the policy saw them."""
    target: tuple[int, ...]
    """[time] ids that follow the prefix."""
    scored: tuple[int, int]
    """First and past-the-last position in `target` of the ids whose mean is wanted; one or more."""

    def __post_init__(self) -> None:
        """Check that the window is not empty and lies within the target."""
        start, stop = self.scored
        if not 0 <= start < stop <= len(self.target):
            raise ValueError(
                f"'scored' must be a stretch of the {len(self.target)} target ids "
                f"(got {self.scored!r})"
            )


def _template_problem(parameters: Mapping[str, Any]) -> str | None:
    template = parameters["template"]
    if template.count("{answer}") == 1:
        return None
    return f"key 'template' must contain '{{answer}}' once (got {template!r})"


@part("probe", needs=(Need.BELIEF,), problem_of=_template_problem)
def gold_answer(
    trajectories: Sequence[Trajectory],
    answers: Mapping[str, Sequence[str]],
    encode: Encode,
    *,
    template: str,
    final_prompt: bool,
) -> tuple[ScoringRequest, ...]:
    """Return one request for each turn and gold answer: the answer after the turn's prompt.

    What stands before `{answer}` in the template is context, as the prompt is: the mean is over
    the answer's own ids. What stands after it cannot change their log-probabilities and is left
    out. A turn without ids, and a task without an answer, asks for nothing; failed trajectories
    neither.

    Args:
        trajectories: The trajectories of the batch, in its order.
        answers: Gold answers by task id; any of them is right.
        encode: Tokenizer of the policy.
        template: What the model would write to answer, with `{answer}` in it once.
        final_prompt: Whether the belief after the last observation is asked for too.

    Raises:
        ValueError: If the template does not have `{answer}` once.

    Source: Wang et al. 2025 (IGPO), arXiv:2510.14967.
    """
    if template.count("{answer}") != 1:
        raise ValueError(f"'template' must contain '{{answer}}' once (got {template!r})")
    # Head and answer are encoded apart, so that no id belongs to both. A tokenizer that would merge
    # them in running text (`>1` as one id) thus gives ids that the policy may write less often, but
    # they are the same ones before every turn, and a belief is read against the one before it.
    head = tuple(encode(template.partition("{answer}")[0]))
    requests: list[ScoringRequest] = []
    for position, trajectory in enumerate(trajectories):
        if trajectory.failure is not None:
            continue
        prefixes = _prefixes(trajectory, final_prompt=final_prompt)
        for answer in answers.get(trajectory.task_id, ()):
            target = (*head, *encode(answer))
            if len(target) == len(head):
                continue
            window = (len(head), len(target))
            requests.extend(
                ScoringRequest(
                    trajectory=position, column=column, prefix=prefix, target=target, scored=window
                )
                for column, prefix in prefixes.items()
            )
    return tuple(requests)


def _prefixes(trajectory: Trajectory, *, final_prompt: bool) -> dict[int, tuple[int, ...]]:
    """Return the ids before each turn that has ids, by turn."""
    prefixes = {
        turn.index: trajectory.context_ids(turn.index)
        for turn in trajectory.turns
        if turn.prompt_ids is not None
    }
    if final_prompt and trajectory.turns:
        ids = final_prompt_ids(trajectory)
        if ids is not None:
            prefixes[len(trajectory.turns)] = ids
    return prefixes


def final_prompt_ids(trajectory: Trajectory) -> tuple[int, ...] | None:
    """Return the ids that the policy would have read next, or None for text policies."""
    final, turns = trajectory.final_prompt, trajectory.turns
    if final is None or not turns or turns[-1].prompt_ids is None:
        return None
    return trajectory.full_ids(turns[-1].index)[: final.prefix_length] + final.ids


def belief_fields(
    requests: Sequence[ScoringRequest],
    mean_logprobs: Sequence[float],
    *,
    trajectories: int,
    turns: int,
) -> Float[Tensor, "trajectory turn_and_final"]:
    """Return `belief_logprobs [trajectory, turn + 1]`, NaN where nothing was scored.

    Of several gold answers of a task the likeliest counts.

    Args:
        requests: The requests, in any order.
        mean_logprobs: Mean log-probability of each request's scored ids, in the same order.
        trajectories: Number of trajectories of the batch.
        turns: Largest number of turns of the batch.

    Raises:
        ValueError: If there is not one number for each request.
    """
    if len(requests) != len(mean_logprobs):
        raise ValueError(f"{len(requests)} requests, but {len(mean_logprobs)} results")
    beliefs = torch.full((trajectories, turns + 1), torch.nan, dtype=torch.float64)
    for request, value in zip(requests, mean_logprobs, strict=True):
        old = float(beliefs[request.trajectory, request.column])
        if old != old or value > old:
            beliefs[request.trajectory, request.column] = value
    return beliefs
