"""What goes over the wire to `/v1/completions`: `completion_body`, and `Answer` that comes back.

Ids go in and come out. Text is neither sent nor read.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from agentgym.errors import PolicyError
from agentgym.policies.completions import check_logprobs
from agentgym.records import Sampling

_ID_MARK = "token_id:"
"""How a server writes an id where it would write a token's text."""
CUT = "abort"
"""Finish reason of a request that the server gave back unfinished, with what it had."""
_REASONS = frozenset({"stop", "length", CUT})
_NO_SCORE = -9999.0
"""What servers write for the log-probability of an id that cannot be."""
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request of a server came to.

    Example:
        Answer(ids=(5, 6, 9), logprobs=(-0.5, -1.25, -0.1), reason="stop")
    """

    ids: tuple[int, ...]
    """[time] sampled ids, the end id included where it was sampled."""
    logprobs: tuple[float, ...]
    """[time] log-probability of each under the sampling distribution, in nats."""
    reason: str
    """`stop`, `length`, or `abort` where the request was cut at a change of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is the same in all requests of a policy."""

    model: str
    """Name of the model, or of the adapter, on the server."""
    end_ids: Sequence[int]
    """Ids that end a completion."""
    cache_salt: str
    """Separates the cached prefixes of one version of the weights from those of others."""


def completion_body(
    ask: Ask, prompt: Sequence[int], sampling: Sampling, *, max_tokens: int, seed: int | None
) -> dict[str, Any]:
    """Return the body of a request.

    Every bound is sent, neutral ones too: a server takes what is missing from the model's own
    generation config. The server's own end ids are switched off, so that those of the renderer
    decide, and they alone.
    """
    body: dict[str, Any] = {
        "model": ask.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "stop_token_ids": list(ask.end_ids),
        "skip_special_tokens": False,
        "cache_salt": ask.cache_salt,
    }
    if sampling.stop:
        body |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    if seed is not None:
        body["seed"] = seed
    return body


def parse_completion(payload: Any, *, is_greedy: bool) -> Answer:
    """Return the one completion of a reply.

    Raises:
        PolicyError: If the reply has no usable completion.
    """
    with reading("the server's reply has no completion with ids"):
        choice = cast("dict[str, Any]", payload["choices"][0])
        reason = choice["finish_reason"]
        part = cast("dict[str, Any]", choice["logprobs"] or {})
        ids = tuple(parse_id(token) for token in part.get("tokens", ()))
        logprobs = tuple(cast("list[float]", part.get("token_logprobs", ())))
        counted = payload["usage"]["completion_tokens"]
        is_known = reason in _REASONS
    if not is_known:
        shown = f"{reason!r}"[:_SHOWN_CHARACTERS]
        raise PolicyError(f"a completion ends by one of {sorted(_REASONS)} (got {shown})")
    if not len(ids) == len(logprobs) == counted:
        raise PolicyError(
            "ids, log-probabilities and the server's count must agree "
            f"(got {len(ids)}, {len(logprobs)}, {f'{counted!r}'[:_SHOWN_CHARACTERS]})"
        )
    # Here too, where JSON's types are still there: `true` would count as a number later.
    check_logprobs(logprobs)
    # Greedy choice is certain; servers report the distribution that it was chosen from.
    return Answer(ids=ids, logprobs=(0.0,) * len(ids) if is_greedy else logprobs, reason=reason)


def parse_id(token: str) -> int:
    """Return the id that a server wrote as `token_id:17`."""
    if not token.startswith(_ID_MARK):
        raise ValueError(f"a token is written {_ID_MARK}N (got {token!r})")
    return int(token.removeprefix(_ID_MARK))


def score_body(ask: Ask, ids: Sequence[int], *, temperature: float = 1.0) -> dict[str, Any]:
    """Return a request that asks for the log-probabilities of the ids of a prompt."""
    return {
        "model": ask.model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": temperature,
        "prompt_logprobs": 0,
        "ignore_eos": True,
        "cache_salt": ask.cache_salt,
    }


def parse_scores(payload: Any, ids: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probability of each id of a prompt but the first.

    The entry of an id is looked up by the id: a server adds the most likely one beside it.

    Raises:
        PolicyError: If an entry is missing.
    """
    with reading("the server's reply does not score the prompt"):
        entries = cast(
            "list[Mapping[str, Mapping[str, float]]]", payload["choices"][0]["prompt_logprobs"]
        )
        if len(entries) != len(ids):
            raise ValueError(f"{len(entries)} entries for {len(ids)} ids")
        scores = tuple(
            entry[str(token)]["logprob"] for entry, token in zip(entries[1:], ids[1:], strict=True)
        )
    # Any id may be asked for, so that what nobody samples is a score too.
    check_logprobs(scores, least=_NO_SCORE)
    return scores


@contextmanager
def reading(what: str) -> Generator[None]:
    """Type what goes wrong when a reply is taken apart: a server may send any JSON.

    Args:
        what: What is wrong with the reply then.

    Raises:
        PolicyError: For whatever wrong types and missing parts raise.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PolicyError(f"{what}: {error!r}"[:_SHOWN_CHARACTERS]) from error


__all__ = [
    "CUT",
    "Answer",
    "Ask",
    "completion_body",
    "parse_completion",
    "parse_id",
    "parse_scores",
    "reading",
    "score_body",
]
