"""What a server is asked before the first episode: is it what the client takes it for?

In order: `describe` (model, folder, context), `shake_hands` (tokenizer, end ids, log-probabilities
under the sampling distribution), `probe_ids` and `score` (the fixed text whose log-probabilities
tell weights apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from agentgym.errors import PolicyError
from agentgym.http import room_for
from agentgym.policies.vllm.server import Server
from agentgym.policies.vllm.wire import Ask, parse_scores, reading, score_body
from agentgym.records.messages import Message
from agentgym.renderer.base import Renderer
from agentgym.renderer.tokenizer import ChatTokenizer

TIMEOUT_S = 60.0
"""A server that has just started compiles on its first requests."""
PROBE_TEXT = (
    " What is 37*48? Answer in one line, then stop.\n\tNaïve café: 12,000 + 0.5 = ?  "
    "The quick brown fox jumps over the lazy dog 1776 times. <tool>{'a': [1, 2]}</tool>"
)
"""Leading space, digits, several spaces, accents and punctuation: where tokenizers differ."""
_TOP = 5
_TEMPERATURE = 0.5
_SLACK = 0.1
"""Share by which a measured temperature may be off."""
_SMALLEST_SPREAD = 1e-3
"""Nats between the best and the fifth id below which a distribution says nothing of temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says that it serves.

    Example:
        ServerFacts(model="policy", folder="/models/smol", max_context_tokens=2048)
    """

    model: str
    """Name to ask for."""
    folder: str
    """Folder, or name, that its weights came from, in its own file system."""
    max_context_tokens: int | None
    """Prompt and completion together."""


async def describe(server: Server, *, model: str | None = None) -> ServerFacts:
    """Return what the server serves.

    Args:
        server: Whom to ask.
        model: Which of its models; None takes the only one that is no adapter.

    Raises:
        PolicyError: If it serves no such model, or several and none is named.
    """
    payload: Any = await server.get("/v1/models", timeout_s=TIMEOUT_S)
    with reading(f"{server.url} does not list its models"):
        listed = cast("list[dict[str, Any]]", payload["data"])
        names = [str(entry["id"]) for entry in listed]
        bases = [entry for entry in listed if not entry.get("parent")]
        chosen = [entry for entry in listed if entry["id"] == model] if model else bases
        if len(chosen) != 1:
            wanted = f"a model {model!r}" if model else "one model"
            raise PolicyError(f"{server.url} must serve {wanted} (it serves {names[:_TOP]!r})")
        length = chosen[0].get("max_model_len")
        if length is not None and not int(length) > 0:
            raise ValueError(f"max_model_len {length!r}")
        return ServerFacts(
            model=str(chosen[0]["id"]),
            folder=str(chosen[0].get("root") or chosen[0]["id"]),
            max_context_tokens=int(length) if length is not None else None,
        )


async def shake_hands(server: Server, ask: Ask, renderer: Renderer) -> None:
    """Check that server and renderer mean the same by ids, and that log-probabilities are usable.

    Raises:
        PolicyError: With what differs, and what to do about it.
    """
    tokenizer = getattr(renderer, "tokenizer", None)
    if isinstance(tokenizer, ChatTokenizer):
        await _compare_tokenizers(server, ask, tokenizer)
        await _compare_ends(server, ask, tokenizer)
    await _compare_temperature(server, ask, renderer)


def probe_ids(renderer: Renderer, *, most: int | None = None) -> tuple[int, ...]:
    """Return the ids of the text that tells weights apart, the template's own ids included."""
    return renderer.first_prompt((Message(role="user", content=PROBE_TEXT),)).ids[:most]


async def score(
    server: Server, ask: Ask, ids: Sequence[int], *, timeout_s: float = TIMEOUT_S
) -> tuple[float, ...]:
    """Return the log-probability of each id but the first, at temperature 1."""
    payload = await server.post(
        "/v1/completions",
        score_body(ask, ids),
        timeout_s=timeout_s,
        is_repeatable=True,
        most_bytes=room_for(len(ids)),
    )
    return parse_scores(payload, ids)


async def _compare_tokenizers(server: Server, ask: Ask, tokenizer: ChatTokenizer) -> None:
    text = PROBE_TEXT + "".join(sorted(tokenizer.special_tokens))
    body = {"model": ask.model, "prompt": text, "add_special_tokens": False}
    payload: Any = await server.post("/tokenize", body, timeout_s=TIMEOUT_S, is_repeatable=True)
    with reading(f"{server.url} gives no ids of a text"):
        theirs = tuple(cast("list[int]", payload["tokens"]))
    ours = tokenizer.encode(text, allow_special=True).ids
    if theirs == ours:
        return
    place = next(
        (i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b),
        min(len(theirs), len(ours)),
    )
    raise PolicyError(
        f"{server.url} has another tokenizer: of the probe text it makes {len(theirs)} ids and "
        f"the renderer {len(ours)}; they part at place {place} "
        f"(got {theirs[place : place + 3]!r} and {ours[place : place + 3]!r}). Serve the folder "
        "that the renderer was loaded from"
    )


async def _compare_ends(server: Server, ask: Ask, tokenizer: ChatTokenizer) -> None:
    """Let the server sample each of the model's own end ids: it must end there."""
    for end in sorted(tokenizer.end_ids):
        body = {
            "model": ask.model,
            "prompt": list(tokenizer.encode("12", allow_special=False).ids),
            "max_tokens": 2,
            "temperature": 1.0,
            "allowed_token_ids": [end],
        }
        payload: Any = await server.post(
            "/v1/completions", body, timeout_s=TIMEOUT_S, is_repeatable=True
        )
        with reading(f"{server.url} gives no completion"):
            reason = payload["choices"][0]["finish_reason"]
        if reason != "stop":
            raise PolicyError(
                f"{server.url} goes on after the end id {end} (finish reason {reason!r}): its end "
                f"ids are not {sorted(tokenizer.end_ids)}; give it the folder's own "
                "generation_config.json"
            )


async def _compare_temperature(server: Server, ask: Ask, renderer: Renderer) -> None:
    """Find out whether reported log-probabilities are those of the distribution sampled from."""
    plain = await _spread(server, ask, renderer, 1.0)
    tempered = await _spread(server, ask, renderer, _TEMPERATURE)
    if plain < _SMALLEST_SPREAD:
        raise PolicyError(
            f"{server.url} gives the five best ids the same probability ({plain:g} nats apart): "
            "its weights are not a model's"
        )
    wanted = plain / _TEMPERATURE
    if abs(tempered - wanted) > _SLACK * wanted:
        raise PolicyError(
            f"{server.url} reports log-probabilities of another distribution than it samples from "
            f"(at temperature {_TEMPERATURE} the best ids are {tempered:.3f} nats apart, wanted "
            f"{wanted:.3f}); start it with --logprobs-mode processed_logprobs"
        )


async def _spread(server: Server, ask: Ask, renderer: Renderer, temperature: float) -> float:
    """Return nats between the most likely id and the fifth."""
    body = {
        "model": ask.model,
        "prompt": list(probe_ids(renderer)),
        "max_tokens": 1,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": _TOP,
        "seed": 0,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }
    payload: Any = await server.post(
        "/v1/completions", body, timeout_s=TIMEOUT_S, is_repeatable=True
    )
    with reading(f"{server.url} gives no log-probabilities"):
        top = cast("dict[str, float]", payload["choices"][0]["logprobs"]["top_logprobs"][0])
        values = sorted((float(value) for value in top.values()), reverse=True)
        return values[0] - values[_TOP - 1]


__all__ = ["PROBE_TEXT", "ServerFacts", "describe", "probe_ids", "score", "shake_hands"]
