"""`ScriptedPolicy`: answers that were written before, or that a function writes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.records import (
    Completion,
    FinishReason,
    Sampling,
    Source,
    TokenTrace,
    VersionRun,
)
from agentgym.renderer.base import Renderer

Answer: TypeAlias = str | Completion
Script: TypeAlias = (
    Sequence[str]
    | Mapping[str, Sequence[str]]
    | Callable[[GenerateRequest], Answer | Awaitable[Answer]]
)


class ScriptedPolicy:
    """Plays a script; the same script gives the same records for any interleaving.

    With a renderer its completions have ids, as a model's would: the end id follows a text that
    was not cut off, each with log-probability 0.

    Args:
        script: Texts by turn, for every episode or by episode id; or a function of the request,
            sync or async, that returns a text or a whole `Completion`.
        renderer: Turns texts into ids; None works on text alone.
        policy_id: Name, for records.
        version: Learner updates that its ids are said to come from.

    Example:
        ScriptedPolicy(["<calculator>37*48</calculator>", "<answer>1776</answer>"])
        ScriptedPolicy(lambda request: f"turn {request.turn}")
    """

    def __init__(
        self,
        script: Script,
        *,
        renderer: Renderer | None = None,
        policy_id: str = "scripted",
        version: int = 0,
    ) -> None:
        self.id = policy_id
        self.renderer = renderer
        self.version = version
        self.max_context_tokens: int | None = None
        self._script = script

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the script's answer to this turn.

        Raises:
            PolicyError: If the script has no text for the turn or the episode, or there is a
                renderer and the prompt has no ids.
        """
        if self.renderer is not None and request.prompt_ids is None:
            raise PolicyError(f"{self.id!r} has a renderer, so its prompts need ids (got None)")
        answer = await self._answer(request)
        if isinstance(answer, Completion):
            return answer
        if self.renderer is None:
            return Completion(text=answer, sampling=request.sampling, policy_id=self.id)
        return self._with_ids(answer, request.sampling, self.renderer)

    async def begin_episode(self, episode_id: str) -> None:
        """Do nothing: a script keeps nothing."""

    async def end_episode(self, episode_id: str) -> None:
        """Do nothing: a script keeps nothing."""

    async def aclose(self) -> None:
        """Do nothing: a script keeps nothing."""

    async def _answer(self, request: GenerateRequest) -> Answer:
        if callable(self._script):
            answer = self._script(request)
            return await answer if inspect.isawaitable(answer) else answer
        script = self._script
        texts = script.get(request.episode_id, ()) if isinstance(script, Mapping) else script
        if request.turn >= len(texts):
            raise PolicyError(
                f"the script of {self.id!r} has {len(texts)} texts for episode "
                f"{request.episode_id!r} (got a call for turn {request.turn})"
            )
        return texts[request.turn]

    def _with_ids(self, text: str, sampling: Sampling, renderer: Renderer) -> Completion:
        ids = renderer.encode_completion(text)
        is_cut = len(ids) > sampling.max_new_tokens
        ids = ids[: sampling.max_new_tokens]
        return Completion(
            text=renderer.decode(ids),
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            sampling=sampling,
            source=Source.POLICY,
            policy_id=self.id,
            tokens=TokenTrace(
                ids=ids,
                behavior_logprobs=(0.0,) * len(ids),
                versions=(VersionRun(version=self.version, count=len(ids)),) if ids else (),
            ),
        )


__all__ = ["ScriptedPolicy"]
