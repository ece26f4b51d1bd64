"""`HumanPolicy`: a person at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.records import Completion, Source

_PROMPT = "> "
_RULES = "An answer is one line. Ctrl-C ends everything."
_CONTROL = {
    code: "\ufffd" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"
}
"""Characters that a terminal obeys; text of an environment must not move the cursor."""


class HumanPolicy:
    """Shows what the environment says and reads one line as the answer.

    One person answers one question at a time, so episodes that run together take turns.

    Args:
        ask: Returns the next line; raises `EOFError` at the end of input.
        show: Prints a text.
    """

    def __init__(
        self,
        *,
        ask: Callable[[str], str] = input,
        show: Callable[[str], object] = sys.stdout.write,
    ) -> None:
        self.id = "human"
        self.renderer = None
        self.version = 0
        self.max_context_tokens: int | None = None
        self._ask = ask
        self._show = show
        self._turn_taking = asyncio.Lock()
        self._seen: dict[str, int] = {}
        self._episodes = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the line that the person typed.

        Raises:
            PolicyError: If the input ended.
        """
        async with self._turn_taking:
            if request.episode_id not in self._seen:
                self._episodes += 1
                rules = f" {_RULES}" if self._episodes == 1 else ""
                self._show(f"\n--- episode {self._episodes}.{rules}\n")
            for message in request.messages[self._seen.get(request.episode_id, 0) :]:
                self._show(f"[{message.role}] {message.content.translate(_CONTROL)}\n")
            # The person's own line comes back as the next assistant message: skip it.
            self._seen[request.episode_id] = len(request.messages) + 1
            try:
                text = await asyncio.to_thread(self._ask, _PROMPT)
            except EOFError as error:
                raise PolicyError("the input ended before the episode did") from error
        return Completion(text=text, source=Source.HUMAN, policy_id=self.id)

    async def begin_episode(self, episode_id: str) -> None:
        """Show an episode from its start."""
        self._seen.pop(episode_id, None)

    async def end_episode(self, episode_id: str) -> None:
        """Forget what was shown of an episode."""
        self._seen.pop(episode_id, None)

    async def aclose(self) -> None:
        """Do nothing: the terminal is not ours."""


__all__ = ["HumanPolicy"]
