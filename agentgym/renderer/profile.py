"""What is found out about a chat template by trying it: roles, closing tokens, opened reasoning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentgym.errors import RenderError
from agentgym.records.messages import Message
from agentgym.renderer.template_layout import Skeletons, takes
from agentgym.renderer.tokenizer import ChatTokenizer

_STRIPPED: dict[tuple[bool, bool], Callable[[str], str]] = {
    (False, False): lambda text: text,
    (True, False): str.lstrip,
    (False, True): str.rstrip,
    (True, True): str.strip,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateProfile:
    """Findings about one template with one tokenizer.

    Example:
        ChatML: control holds <|im_start|> and <|im_end|>, closing={"<|im_end|>": 2}, opener="",
        has_system and has_tool are True.
    """

    has_system: bool
    """True if the template takes a system message; else it goes before the first user message."""
    has_tool: bool
    """True if the template takes the role `tool`; else it becomes `user`."""
    opener: str
    """What the generation prompt has beyond an assistant's header, such as `<think>`."""
    control: frozenset[str]
    """Texts of the tokens that steer: special ones, and those that the template itself writes."""
    closing: dict[str, int]
    """Text to id of the tokens that close an assistant's message, in last or in earlier place."""
    final_id: int
    """Id that closes the last message of a conversation."""
    end_texts: dict[int, str]
    """Id to text of every end id."""
    stripped: dict[str, tuple[bool, bool]]
    """Role to whether the template strips its content on the left and on the right."""

    @property
    def closing_ids(self) -> frozenset[int]:
        """Ids of the closing tokens."""
        return frozenset(self.closing.values())

    def adapt(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the opening messages in roles that the template takes."""
        adapted = [self.adapt_role(message) for message in messages]
        if self.has_system or not adapted or adapted[0].role != "system":
            return tuple(adapted)
        system, *rest = adapted
        if not rest or rest[0].role != "user":
            return (replace(system, role="user"), *rest)
        merged = f"{system.content}\n\n{rest[0].content}"
        return (replace(rest[0], content=merged), *rest[1:])

    def adapt_role(self, message: Message) -> Message:
        """Return the message in a role that the template takes."""
        is_refused = message.role == "tool" and not self.has_tool
        return replace(message, role="user") if is_refused else message

    def strip(self, message: Message) -> str:
        """Return the content as the template strips it."""
        return _STRIPPED[self.stripped.get(message.role, (False, False))](message.content)

    def without_closing(self, text: str, *, sampled_end: int) -> str:
        """Return what follows an assistant's text, less the token that closes its message.

        The sampled end id closes the message already, whichever of the end ids it is.
        """
        closers = {*self.closing, self.end_texts.get(sampled_end, "")} - {""}
        for closer in sorted(closers, key=len, reverse=True):
            head = re.match(r"\s*" + re.escape(closer), text)
            if head:
                return text[head.end() :]
        return text


def profile_template(skeletons: Skeletons, tokenizer: ChatTokenizer) -> TemplateProfile:
    """Return what a template does, found by rendering short conversations.

    Raises:
        RenderError: If it cannot show a user and an assistant message, or its generation prompt
            does not begin as an assistant's message does.
    """
    literals = [
        skeletons.of(roles, has_prompt).literals
        for roles, has_prompt in (
            (("user",), True),
            (("user", "assistant"), False),
            (("user", "assistant", "user"), True),
        )
    ]
    has_system = takes(skeletons, ("system", "user"))
    has_tool = takes(skeletons, ("user", "assistant", "tool"))
    if has_system:
        literals.append(skeletons.of(("system", "user"), True).literals)
    if has_tool:
        literals.append(skeletons.of(("user", "assistant", "tool"), True).literals)
    own_text = "".join(literal for row in literals for literal in row)
    ends = {
        index: text for text, index in tokenizer.added_tokens.items() if index in tokenizer.end_ids
    }
    written = {text for text in tokenizer.added_tokens if text in own_text}
    control = tokenizer.special_tokens | written | set(ends.values())
    last = _leading_token(literals[1][-1], tokenizer, control)
    # Without a token after the last message, what follows an earlier one belongs to the next.
    earlier = _leading_token(literals[2][2], tokenizer, control) if last else None
    closing = {text: tokenizer.added_tokens[text] for text in (last, earlier) if text}
    eos = tokenizer.template_names.get("eos_token", "")
    fallback = tokenizer.added_tokens.get(eos, min(tokenizer.end_ids))
    return TemplateProfile(
        has_system=has_system,
        has_tool=has_tool,
        opener=_opener(prompt=literals[0][1], header=literals[2][1]),
        control=frozenset(control),
        closing=closing,
        final_id=closing[last] if last else fallback,
        end_texts=ends,
        stripped=_stripped(skeletons, has_system=has_system, has_tool=has_tool),
    )


def _leading_token(
    text: str, tokenizer: ChatTokenizer, control: set[str] | frozenset[str]
) -> str | None:
    start = text.lstrip()
    found = [token for token in control if token and start.startswith(token)]
    return max(found, key=len, default=None)


def _opener(*, prompt: str, header: str) -> str:
    if prompt.startswith(header):
        return prompt[len(header) :]
    if header.startswith(prompt):
        return ""
    raise RenderError(
        f"the generation prompt {prompt!r} does not begin as an assistant's message {header!r}"
    )


def _stripped(
    skeletons: Skeletons, *, has_system: bool, has_tool: bool
) -> dict[str, tuple[bool, bool]]:
    probes: dict[str, tuple[str, ...]] = {
        "user": ("user",),
        "assistant": ("user", "assistant", "user"),
    }
    if has_system:
        probes["system"] = ("system", "user")
    if has_tool:
        probes["tool"] = ("user", "assistant", "tool")
    found: dict[str, tuple[bool, bool]] = {}
    for role, roles in probes.items():
        try:
            shown = skeletons.shown(roles, roles.index(role), " \nword\n ")
        except RenderError:
            continue
        found[role] = (not shown.startswith(" \n"), not shown.endswith("\n "))
    return found


__all__ = ["TemplateProfile", "profile_template"]
