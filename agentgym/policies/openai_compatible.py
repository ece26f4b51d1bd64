"""`OpenAICompatiblePolicy`: any server with `/chat/completions`, for evaluation.

Such a server gives text, not the ids that it sampled, so nothing it says is trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from agentgym.errors import PolicyError
from agentgym.http import AnswerError, Call, HttpClient, Reply, Retries, excerpt, room_for
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, FinishReason, Sampling

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_SHOWN_CHARACTERS = 200


class OpenAICompatiblePolicy:
    """Asks a server for chat completions.

    A connection that breaks before an answer is tried again here, a few times; an answer that is
    an error is not: it is raised, typed by whether another try may help.

    Args:
        base_url: Up to and with the version, such as `http://localhost:8000/v1`.
        model: Name of the model on that server.
        api_key: Sent as a bearer token; None sends none. It appears in no record or message.
        timeout_s: Longest time for an answer, from the first try to its last byte.
        connections: Requests under way at once; further ones wait here.
        retries: For requests whose connection broke.
        transport: What carries requests in place of connections of its own; it is not closed.
        extra: Further fields of each request's body.

    Raises:
        PolicyError: If `base_url` is not an http or https address, or the key cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        connections: int = 512,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = f"openai:{model}"
        self.renderer = None
        self.version = 0
        self.max_context_tokens: int | None = None
        self._http = HttpClient(
            base_url,
            connections=connections,
            key=api_key,
            retries=retries,
            transport=transport,
            uses_proxy=True,
        )
        self._model = model
        self._timeout_s = timeout_s
        self._extra = dict(extra or {})

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the server's answer.

        Raises:
            InfrastructureError: If the server cannot be reached, gives no whole answer in time, or
                says that it is overloaded.
            PolicyError: If it refuses the request or answers with something else.
        """
        call = Call(
            method="POST",
            path="/chat/completions",
            content=json.dumps(self._body(request)).encode(),
            timeout_s=self._timeout_s,
            most_bytes=room_for(request.sampling.max_new_tokens),
        )
        reply = await self._http.send(call, is_repeatable=True)
        text, reason = _parse(reply, reply.json())
        return Completion(
            text=self._http.hide(text),
            finish_reason=reason,
            sampling=request.sampling,
            policy_id=self.id,
        )

    async def begin_episode(self, episode_id: str) -> None:
        """Do nothing: the whole conversation goes with each call."""

    async def end_episode(self, episode_id: str) -> None:
        """Do nothing: the whole conversation goes with each call."""

    async def aclose(self) -> None:
        """Close the connections, unless they were passed in."""
        await self._http.aclose()

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            **_bounds(sampling),
            **self._extra,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body


def _bounds(sampling: Sampling) -> dict[str, Any]:
    """Return what the interface can carry; a bound that it cannot is refused, not dropped."""
    if sampling.top_k or sampling.min_p:
        raise PolicyError(
            "an OpenAI-compatible server takes 'temperature' and 'top_p' only "
            f"(got top_k={sampling.top_k!r}, min_p={sampling.min_p!r}); pass others by 'extra'"
        )
    bounds: dict[str, Any] = {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
    if sampling.stop:
        # Kept in the text by our rule; servers leave it out unless told.
        bounds |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return bounds


def _parse(reply: Reply, payload: Any) -> tuple[str, FinishReason]:
    """Return text and finish reason; each part may be of any JSON type."""
    try:
        choice = payload["choices"][0]
        content, reason = choice["message"]["content"], choice["finish_reason"]
    except (LookupError, TypeError) as error:
        shown = excerpt(reply.text())
        raise AnswerError(f"{reply.address} answered without a completion: {shown}") from error
    if not isinstance(reason, str) or reason not in _FINISH:
        raise AnswerError(
            f"{reply.address} stopped for a reason other than 'stop' and 'length' "
            f"(got {_shown(reason)})"
        )
    # Nothing at all is what models that only think, or only call tools, have said.
    if content is not None and not isinstance(content, str):
        raise AnswerError(
            f"{reply.address} answered with content that is no text (got {_shown(content)})"
        )
    return content or "", _FINISH[reason]


def _shown(value: object) -> str:
    return excerpt(repr(value))[:_SHOWN_CHARACTERS]


__all__ = ["OpenAICompatiblePolicy"]
