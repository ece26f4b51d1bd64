"""`checked`: a completion is held against what was asked for, where it enters an episode.

Every policy's answer passes here, whoever wrote the policy. What cannot be an answer to the request
raises `PolicyError`, which the rollout records as a failure of the policy: it is never scored and
never trained on. In order: `checked`, its parts for ids, log-probabilities and text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, FinishReason, TokenTrace
from agentgym.renderer.base import Renderer

LOGPROB_SLACK = 1e-4
"""Float error by which a log-probability may be above 0, in nats."""
LEAST_LOGPROB = -100.0
"""Nats from which on nothing is sampled: e^-100 is 0 in float32. Sentinels, such as vLLM's -9999,
lie below."""
_SHOWN = 3


def checked(
    completion: object,
    request: GenerateRequest,
    *,
    policy_id: str,
    renderer: Renderer | None,
    max_context_tokens: int | None = None,
) -> Completion:
    """Return a policy's completion, known to be one that the request can have.

    Args:
        completion: What the policy returned.
        request: What it was asked.
        policy_id: Whose answer it is, for messages.
        renderer: The policy's renderer: its end ids and its vocabulary bound the ids.
        max_context_tokens: Prompt and completion together, where the policy knows it.

    Raises:
        PolicyError: If it is no completion, or one that nobody can have sampled.
    """
    try:
        if not isinstance(completion, Completion):
            raise PolicyError(f"'generate' must return a Completion (got {_shown(completion)})")
        _check_fields(completion)
        if completion.tokens is None:
            return replace(completion, text=whole_characters(completion.text))
        check_ids(completion.tokens.ids, vocabulary_size=_vocabulary_size(renderer))
        logprobs = completion.tokens.behavior_logprobs
        if logprobs is not None:
            check_logprobs(logprobs)
        ends = renderer.end_ids if renderer is not None else frozenset[int]()
        _check_end(completion, completion.tokens, request, ends, max_context_tokens)
    except PolicyError as error:
        raise PolicyError(
            f"the policy {policy_id!r} gave what cannot be an answer: {error}"
        ) from error
    return completion


def check_ids(ids: Sequence[int], *, vocabulary_size: int | None) -> None:
    """Check ids that a policy says it sampled.

    Raises:
        PolicyError: If one is not in the vocabulary.
    """
    if kinds := {type(token) for token in ids} - {int}:
        names = sorted(kind.__name__ for kind in kinds)
        raise PolicyError(f"ids must be whole numbers of type int (got {', '.join(names)})")
    if not ids:
        return
    if min(ids) < 0 or (vocabulary_size is not None and max(ids) >= vocabulary_size):
        bound = f"in [0, {vocabulary_size})" if vocabulary_size is not None else "at least 0"
        wrong = [t for t in ids if t < 0 or (vocabulary_size is not None and t >= vocabulary_size)]
        raise PolicyError(f"ids must be {bound} (got {wrong[:_SHOWN]!r})")


def check_logprobs(logprobs: Sequence[float], *, least: float = LEAST_LOGPROB) -> None:
    """Check log-probabilities of ids.

    Args:
        logprobs: In nats.
        least: The largest value that is a sentinel for "none", and no log-probability.

    Raises:
        PolicyError: If one is no number, or none that a log-probability can have.
    """
    # A bool is an int to Python, and `true` would count as 1 nat.
    wrong = [
        value
        for value in logprobs
        if type(value) not in (float, int)
        or not math.isfinite(value)
        or not least < value <= LOGPROB_SLACK
    ]
    if wrong:
        raise PolicyError(
            f"log-probabilities must be finite, at most 0 and above {least:g} nats "
            f"(got {wrong[:_SHOWN]!r})"
        )


def whole_characters(text: str) -> str:
    """Return `text` with each half of a surrogate pair that stands alone as U+FFFD.

    A model that is cut inside a character writes such halves; they are its mistake, and no file
    takes them.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_fields(completion: Completion) -> None:
    # Python callers hand over anything, whatever the annotations say.
    text, reason, tokens = _untyped(completion)
    if not isinstance(text, str):
        raise PolicyError(f"'text' must be a string (got {_shown(text)})")
    if not isinstance(reason, FinishReason):
        raise PolicyError(f"'finish_reason' must be a FinishReason (got {_shown(reason)})")
    if tokens is not None and not isinstance(tokens, TokenTrace):
        raise PolicyError(f"'tokens' must be a TokenTrace or None (got {_shown(tokens)})")


def _untyped(completion: Completion) -> tuple[object, object, object]:
    return completion.text, completion.finish_reason, completion.tokens


def _check_end(
    completion: Completion,
    tokens: TokenTrace,
    request: GenerateRequest,
    end_ids: frozenset[int],
    max_context_tokens: int | None,
) -> None:
    """Check that the completion is as long as it may be, and ends for the reason that it names."""
    bound = request.sampling.max_new_tokens
    if max_context_tokens is not None and request.prompt_ids is not None:
        bound = min(bound, max_context_tokens - len(request.prompt_ids))
    ids = tokens.ids
    if len(ids) > bound:
        raise PolicyError(f"at most {bound} ids were asked for (got {len(ids)})")
    if not end_ids.isdisjoint(ids[:-1]):
        place = next(i for i, token in enumerate(ids) if token in end_ids)
        raise PolicyError(
            f"nothing follows an end id (got {ids[place]} at place {place} of {len(ids)} ids)"
        )
    is_stop = completion.finish_reason is FinishReason.STOP
    if not is_stop and len(ids) < bound:
        raise PolicyError(
            f"a completion that ends by 'length' has all {bound} ids (got {len(ids)})"
        )
    has_end = bool(ids) and ids[-1] in end_ids
    has_stop = any(string in completion.text for string in request.sampling.stop)
    if is_stop and end_ids and not (has_end or has_stop):
        raise PolicyError(
            f"a completion that ends by 'stop' has one of the end ids {sorted(end_ids)} last, or "
            f"a stop string (got {list(ids[-1:])!r} last)"
        )


def _vocabulary_size(renderer: Renderer | None) -> int | None:
    # Not in the protocol: a renderer of one's own need not know it.
    size = getattr(renderer, "vocabulary_size", None)
    return size if isinstance(size, int) else None


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]


__all__ = ["check_ids", "check_logprobs", "checked", "whole_characters"]
