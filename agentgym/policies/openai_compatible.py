"""`OpenAICompatiblePolicy`: any server with `/chat/completions`, for evaluation.

Such a server gives text, not the ids that it sampled, so nothing it says is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import httpx
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policy import GenerateRequest
from agentgym.records import Completion, FinishReason, Sampling
from agentgym.redaction import remember

_ATTEMPTS = 4
_LONGEST_WAIT_S = 4.0
_SHOWN_CHARACTERS = 200
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed later; the engine decides whether to try."""
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class OpenAICompatiblePolicy:
    """Asks a server for chat completions.

    A connection that breaks before an answer is tried again here, a few times; an answer that is
    an error is not: it is raised, typed by whether another try may help.

    Args:
        base_url: Up to and with the version, such as `http://localhost:8000/v1`.
        model: Name of the model on that server.
        api_key: Sent as a bearer token; None sends none. It appears in no record or message.
        timeout_s: Longest wait for an answer.
        client: HTTP client to use in place of one of its own; it is not closed.
        extra: Further fields of each request's body.
        first_wait_s: Pause after the first broken connection; doubled with each further one.

    Raises:
        PolicyError: If `base_url` is not an http or https address.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        client: httpx.AsyncClient | None = None,
        extra: Mapping[str, Any] | None = None,
        first_wait_s: float = 0.25,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise PolicyError(f"'base_url' must begin with http:// or https:// (got {base_url!r})")
        remember({"base_url": base_url, "api_key": api_key})
        self.id = f"openai:{model}"
        self.renderer = None
        self.version = 0
        self.max_context_tokens: int | None = None
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._owns_client = client is None
        self._client = client if client is not None else httpx.AsyncClient(timeout=timeout_s)
        self._extra = dict(extra or {})
        self._first_wait_s = first_wait_s

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the server's answer.

        Raises:
            InfrastructureError: If the server cannot be reached or says that it is overloaded.
            PolicyError: If it refuses the request or answers with something else.
        """
        body = self._body(request)
        response = await self._post(body)
        if response.status_code in _TRANSIENT:
            raise InfrastructureError(f"{self.id} answered {_status(response)}")
        if response.is_error:
            raise PolicyError(f"{self.id} refused the request: {_status(response)}")
        text, reason = _parse(response, self.id)
        return Completion(
            text=text, finish_reason=reason, sampling=request.sampling, policy_id=self.id
        )

    async def begin_episode(self, episode_id: str) -> None:
        """Do nothing: the whole conversation goes with each call."""

    async def end_episode(self, episode_id: str) -> None:
        """Do nothing: the whole conversation goes with each call."""

    async def aclose(self) -> None:
        """Close the connections, unless the client was passed in."""
        if self._owns_client:
            await self._client.aclose()

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((httpx.ConnectError, httpx.RemoteProtocolError)),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential(multiplier=self._first_wait_s, max=_LONGEST_WAIT_S)
            + wait_random(0, self._first_wait_s),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._client.post(self._url, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise InfrastructureError(f"{self.id} cannot be reached: {reason}") from error
        raise AssertionError("the last attempt returns or raises")

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


def _parse(response: httpx.Response, policy_id: str) -> tuple[str, FinishReason]:
    try:
        choice = cast("dict[str, Any]", response.json()["choices"][0])
        content, reason = choice["message"]["content"], choice["finish_reason"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise PolicyError(
            f"{policy_id} answered without a completion: {_body(response)}"
        ) from error
    if reason not in _FINISH:
        raise PolicyError(
            f"{policy_id} stopped for 'stop' or 'length' only in what can be used (got {reason!r})"
        )
    return content or "", _FINISH[reason]


def _status(response: httpx.Response) -> str:
    return f"{response.status_code}: {_body(response)}"


def _body(response: httpx.Response) -> str:
    return " ".join(response.text[:_SHOWN_CHARACTERS].split())


__all__ = ["OpenAICompatiblePolicy"]
