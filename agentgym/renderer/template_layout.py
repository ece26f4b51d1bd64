"""What a chat template writes around the contents of messages.

Every content is replaced by a sentinel, a word that occurs nowhere else; what stands between the
sentinels is the template's own text for that sequence of roles. From it come the bridge between two
turns, the closing token of a message, and which roles the template takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentgym.errors import RenderError
from agentgym.records.messages import Message
from agentgym.renderer.template import ChatTemplate

_CACHED_SKELETONS = 4_096
"""Role sequences remembered; an episode of n turns uses n of them, shared by all episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    r"""The template's own text for one sequence of roles.

    Example:
        ("user", "assistant") in ChatML: literals=("<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"), order=(0, 1)
    """

    literals: tuple[str, ...]
    """[message + 1] text before, between and after the contents."""
    order: tuple[int, ...]
    """[message] which message stands at each place."""


class Skeletons:
    """Skeletons of one template, remembered by the sequence of roles."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._sentinel = "Xq7Sentinel"
        while self._sentinel in template.source:
            self._sentinel += "Q"
        self.of = lru_cache(maxsize=_CACHED_SKELETONS)(self._skeleton)
        """(roles, add_generation_prompt) to `Skeleton`; raises `RenderError` if a content is
        repeated or left out."""

    def render(
        self, roles: Sequence[str], contents: dict[int, str], *, add_generation_prompt: bool
    ) -> str:
        """Return the template's text with some real contents and sentinels for the others."""
        messages = [
            Message(role=role, content=contents.get(index, self._word(index)))
            for index, role in enumerate(roles)
        ]
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def shown(self, roles: tuple[str, ...], index: int, content: str) -> str:
        """Return what the template makes of one content (it may strip or shorten it).

        Raises:
            RenderError: If that content changes the text around it.
        """
        skeleton = self.of(roles, True)
        place = skeleton.order.index(index)
        rendered = self.render(roles, {index: content}, add_generation_prompt=True)
        before = self._fill(skeleton, range(place)) + skeleton.literals[place]
        after = self._fill(skeleton, range(place + 1, len(roles))) + skeleton.literals[-1]
        has_room = len(rendered) >= len(before) + len(after)
        if not (has_room and rendered.startswith(before) and rendered.endswith(after)):
            raise RenderError(
                f"the chat template changes its own text with the content of message {index} "
                f"({roles[index]!r}); such a template cannot be followed"
            )
        return rendered[len(before) : len(rendered) - len(after)]

    def _fill(self, skeleton: Skeleton, places: range) -> str:
        return "".join(
            skeleton.literals[place] + self._word(skeleton.order[place]) for place in places
        )

    def _word(self, index: int) -> str:
        return f"{self._sentinel}{index:06d}"

    def _skeleton(self, roles: tuple[str, ...], add_generation_prompt: bool) -> Skeleton:
        rest = self.render(roles, {}, add_generation_prompt=add_generation_prompt)
        counts = [rest.count(self._word(index)) for index in range(len(roles))]
        wrong = {f"{i} ({roles[i]})": count for i, count in enumerate(counts) if count != 1}
        if wrong:
            raise RenderError(f"the chat template must show each message once (got {wrong!r})")
        order = tuple(sorted(range(len(roles)), key=lambda index: rest.index(self._word(index))))
        literals: list[str] = []
        for index in order:
            literal, _, rest = rest.partition(self._word(index))
            literals.append(literal)
        return Skeleton(literals=(*literals, rest), order=order)


def takes(skeletons: Skeletons, roles: tuple[str, ...]) -> bool:
    """Return whether the template takes messages of these roles, each shown once and in order."""
    try:
        return skeletons.of(roles, True).order == tuple(range(len(roles)))
    except RenderError:
        return False


__all__ = ["Skeleton", "Skeletons", "takes"]
