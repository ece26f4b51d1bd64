"""`ChatRenderer`: conversations to ids through the model's own chat template.

`verbatim`: the next prompt is the previous ids, as sampled, and a bridge: what the template writes
between an assistant's text and its next one. `template`: the whole conversation is rendered again;
completions that the template shows unchanged keep their sampled ids, and where the new ids leave
those of the last turn, `prefix_length` says so. Neither encodes sampled text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentgym.errors import RenderError
from agentgym.records import SpanKind
from agentgym.records.messages import Message
from agentgym.renderer.base import History, RenderedPrompt, RenderedTurn
from agentgym.renderer.profile import TemplateProfile, profile_template
from agentgym.renderer.segments import Piece, PieceEncoder, cut_spans
from agentgym.renderer.template import ChatTemplate
from agentgym.renderer.template_layout import Skeletons
from agentgym.renderer.tokenizer import ChatTokenizer

_KINDS = {
    "system": SpanKind.SYSTEM,
    "user": SpanKind.OBSERVATION,
    "tool": SpanKind.TOOL_RESULT,
    "assistant": SpanKind.TEXT,
}
_CACHED_BRIDGES = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bridge:
    """The template's own text around the observation of one turn."""

    before: str
    after: str


class ChatRenderer:
    """Renders conversations with one tokenizer and one chat template.

    What a template does not take is decided when the renderer is made, by trying: a refused role
    `tool` becomes `user`, and a refused system message is put before the first user message.

    Args:
        tokenizer: Text to ids and back.
        template: The compiled chat template.
        history: How earlier turns enter the next prompt.
        vocabulary_size: Number of ids that the model can sample; None takes the tokenizer's, if it
            knows it.

    Raises:
        RenderError: If the template cannot show a user and an assistant message.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        *,
        history: History = History.VERBATIM,
        vocabulary_size: int | None = None,
    ) -> None:
        known: int | None = getattr(tokenizer, "vocabulary_size", None)
        self.vocabulary_size = vocabulary_size if vocabulary_size is not None else known
        """Number of ids that the model can sample; None if nobody says."""
        self.tokenizer = tokenizer
        self.template = template
        self._history = History(history)
        self._skeletons = Skeletons(template)
        self.profile: TemplateProfile = profile_template(self._skeletons, tokenizer)
        """What was found out about the template."""
        self._encoder = PieceEncoder(tokenizer, control=self.profile.control)
        self._bridge = lru_cache(maxsize=_CACHED_BRIDGES)(self._make_bridge)
        self._end_ids = tokenizer.end_ids | self.profile.closing_ids

    @property
    def id(self) -> str:
        """Name which changes when tokenizer, template or history mode change."""
        return f"chat-{self.tokenizer.id}-{self.template.digest}-{self._history}"

    @property
    def history(self) -> History:
        """How earlier turns enter the next prompt."""
        return self._history

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a completion: the model's own, and those that close its messages."""
        return self._end_ids

    @property
    def pad_id(self) -> int:
        """Id for padding; it may equal an end id, so masks never come from its value."""
        return self.tokenizer.pad_id

    def first_prompt(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Return the prompt of the first turn.

        Raises:
            RenderError: If the template cannot show `messages`.
        """
        opening = self.profile.adapt(messages)
        encoded = self._encoder.encode(self._pieces(opening, {}))
        return RenderedPrompt(prefix_length=0, ids=encoded.ids, spans=encoded.spans)

    def next_prompt(
        self, messages: Sequence[Message], turns: Sequence[RenderedTurn]
    ) -> RenderedPrompt:
        """Return the prompt after the last of `turns`, relative to that turn's full ids.

        Raises:
            RenderError: If `turns` is empty, or the template cannot show the conversation.
        """
        if not turns:
            raise RenderError("next_prompt needs at least one earlier turn (got none)")
        opening = self.profile.adapt(messages)
        if self._history is History.VERBATIM:
            return self._extend(opening, turns)
        return self._render_again(opening, turns)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Return ids of a completion known as text only, with the id that ends a message."""
        return (*self._encoder.encode_untrusted(text).ids, self.profile.final_id)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return ids of plain text, none of which steers."""
        return self._encoder.encode_untrusted(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; an end id in the last place is left out, all others are shown."""
        return self.tokenizer.decode(self._without_end(ids))

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return [time] character stretch of each id in `decode(ids)`, empty for the end id."""
        stretches = self.tokenizer.offsets(self._without_end(ids))
        end = stretches[-1][1] if stretches else 0
        return (*stretches, *([(end, end)] * (len(ids) - len(stretches))))

    # -- verbatim --------------------------------------------------------------------------

    def _extend(
        self, opening: tuple[Message, ...], turns: Sequence[RenderedTurn]
    ) -> RenderedPrompt:
        roles = self._roles(opening, turns)
        bridge = self._bridge(roles)
        last = turns[-1]
        index = len(roles) - 1
        shown = self._skeletons.shown(roles, index, last.observation.content)
        before = bridge.before
        if last.sampled_ids and last.sampled_ids[-1] in self._end_ids:
            before = self.profile.without_closing(before, sampled_end=last.sampled_ids[-1])
        encoded = self._encoder.encode(
            (
                Piece(kind=SpanKind.TEMPLATE, text=before),
                Piece(kind=_KINDS[roles[index]], text=shown),
                Piece(kind=SpanKind.TEMPLATE, text=bridge.after),
            )
        )
        kept = len(last.prompt_ids) + len(last.sampled_ids)
        return RenderedPrompt(prefix_length=kept, ids=encoded.ids, spans=encoded.spans)

    def _make_bridge(self, roles: tuple[str, ...]) -> _Bridge:
        """Return the text around the last observation; it must extend the last prompt."""
        longer = self._skeletons.of(roles, True)
        shorter = self._skeletons.of(roles[:-2], True)
        size = len(roles)
        header, prompt = longer.literals[size - 2], shorter.literals[-1]
        is_extended = (
            longer.order[:-2] == shorter.order
            and longer.order[-2:] == (size - 2, size - 1)
            and longer.literals[: size - 2] == shorter.literals[:-1]
            # They differ by what opens the reasoning, which only one of the two may have.
            and (header.startswith(prompt) or prompt.startswith(header))
        )
        if not is_extended:
            raise RenderError(
                "the chat template rewrites earlier messages when the conversation grows, so its "
                f"text cannot be continued (roles {roles!r}); use history='template'"
            )
        return _Bridge(before=longer.literals[size - 1], after=longer.literals[size])

    # -- template --------------------------------------------------------------------------

    def _render_again(
        self, opening: tuple[Message, ...], turns: Sequence[RenderedTurn]
    ) -> RenderedPrompt:
        conversation = list(opening)
        carried: dict[int, RenderedTurn] = {}
        for turn in turns:
            carried[len(conversation)] = turn
            text = self.profile.opener + self.decode(turn.sampled_ids)
            conversation.append(Message(role="assistant", content=text))
            conversation.append(self.profile.adapt_role(turn.observation))
        encoded = self._encoder.encode(self._pieces(tuple(conversation), carried))
        last = turns[-1]
        kept = common_prefix(encoded.ids, (*last.prompt_ids, *last.sampled_ids))
        return RenderedPrompt(
            prefix_length=kept, ids=encoded.ids[kept:], spans=cut_spans(encoded.spans, kept)
        )

    def _pieces(
        self, messages: tuple[Message, ...], carried: dict[int, RenderedTurn]
    ) -> list[Piece]:
        """Return the rendered conversation as pieces, sampled ids in their places."""
        roles = tuple(message.role for message in messages)
        skeleton = self._skeletons.of(roles, True)
        shown = self._shown(messages, roles)
        pieces: list[Piece] = []
        for literal, index in zip(skeleton.literals, skeleton.order, strict=False):
            pieces.append(Piece(kind=SpanKind.TEMPLATE, text=literal))
            if index in carried:
                pieces += self._carry(carried[index], messages[index].content, shown[index])
            else:
                pieces.append(Piece(kind=_KINDS[roles[index]], text=shown[index]))
        return [*pieces, Piece(kind=SpanKind.TEMPLATE, text=skeleton.literals[-1])]

    def _shown(self, messages: tuple[Message, ...], roles: tuple[str, ...]) -> list[str]:
        """Return what the template makes of each content, checked against the whole rendering."""
        skeleton = self._skeletons.of(roles, True)
        whole = self.template.render(messages, add_generation_prompt=True)

        def is_whole(contents: Sequence[str]) -> bool:
            filled = [
                literal + contents[index]
                for literal, index in zip(skeleton.literals, skeleton.order, strict=False)
            ]
            return "".join(filled) + skeleton.literals[-1] == whole

        guess = [self.profile.strip(message) for message in messages]
        if is_whole(guess):
            return guess
        shown = [
            self._skeletons.shown(roles, index, message.content)
            for index, message in enumerate(messages)
        ]
        if is_whole(shown):
            return shown
        raise RenderError(
            "the chat template shows messages differently together than one by one; "
            "such a template cannot be followed"
        )

    def _carry(self, turn: RenderedTurn, content: str, shown: str) -> list[Piece]:
        """Return the pieces of an earlier completion: its sampled ids where they still stand."""
        opener = self.profile.opener
        ids = self._without_end(turn.sampled_ids)
        if shown == content:
            text = content[len(opener) :]
            return [
                Piece(kind=SpanKind.TEMPLATE, text=opener),
                Piece(kind=SpanKind.TEXT, text=text, ids=ids),
            ]
        start = content.rfind(shown) - len(opener) if shown else -1
        part = self._ids_between(ids, start, start + len(shown)) if start >= 0 else None
        return [Piece(kind=SpanKind.TEXT, text=shown, ids=part)]

    def _ids_between(self, ids: Sequence[int], start: int, stop: int) -> tuple[int, ...] | None:
        """Return the ids whose text is [start, stop); None if a token lies across a border."""
        stretches = self.tokenizer.offsets(ids)
        inside = [i for i, (a, b) in enumerate(stretches) if start <= a and b <= stop]
        if not inside or (stretches[inside[0]][0], stretches[inside[-1]][1]) != (start, stop):
            return None
        return tuple(ids[inside[0] : inside[-1] + 1])

    def _roles(
        self, opening: tuple[Message, ...], turns: Sequence[RenderedTurn]
    ) -> tuple[str, ...]:
        roles = [message.role for message in opening]
        for turn in turns:
            roles += ["assistant", self.profile.adapt_role(turn.observation).role]
        return tuple(roles)

    def _without_end(self, ids: Sequence[int]) -> tuple[int, ...]:
        has_end = bool(ids) and ids[-1] in self._end_ids
        return tuple(ids[:-1] if has_end else ids)


def with_history(renderer: ChatRenderer, history: History) -> ChatRenderer:
    """Return the same renderer in the other mode."""
    return ChatRenderer(
        renderer.tokenizer,
        renderer.template,
        history=history,
        vocabulary_size=renderer.vocabulary_size,
    )


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first ids of two sequences are the same."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


__all__ = ["ChatRenderer", "common_prefix", "with_history"]
