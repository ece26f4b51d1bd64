"""What the protocols share: one scan from left to right, think blocks, and who comes first.

A protocol says which openings it knows and reads what follows each; `scan` gives the items in
order, `assemble` makes the `ParsedAction`. Nothing here raises on any text, and none of it looks
twice at what a call or an answer holds, so that a tag inside an argument is never a tag. The time
is linear in the length of the text: what is looked for is looked for through a `Source`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentgym.records import FinishReason, Span, SpanKind, ToolCall
from agentgym.tool_formats import mentions
from agentgym.tool_formats.base import ParsedAction
from agentgym.tool_formats.json_calls import JsonText

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

NOT_CLOSED_THINK = (
    f"The block {THINK_OPEN} was not closed with {THINK_CLOSE}; nothing was executed."
)
ANSWER_AFTER_CALL = (
    "The answer in the same turn was not taken: it was written before the results were read."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing found in a text: a call, an answer, or a mistake in the format."""

    start: int
    """First character, the opening included."""
    inner_start: int
    """First character of the content."""
    inner_stop: int
    """One past the last character of the content."""
    stop: int
    """One past the last character, the closing included."""
    call: ToolCall | None = None
    """Set for a call; a broken one has its `error`."""
    answer: str | None = None
    """Set for an answer."""
    error: str | None = None
    """Set for a mistake that matters only where nothing else is found."""


class Source:
    """A text that is read from left to right, and what was found further on in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.searched = 0
        """Characters looked at by `find`, for tests of what a text costs."""
        self.unclosed: set[str] = set()
        """Closing tags of which it was said that they lack."""
        self._found: dict[str, tuple[int, int]] = {}

    @functools.cached_property
    def json(self) -> JsonText:
        """The text as `read_json` takes it."""
        return JsonText(self.text)

    def find(self, what: str, position: int) -> int:
        """Return where `what` comes next, from `position` on; -1 if nowhere.

        What was found ahead, or not found at all, is not looked for again: a thousand openings
        without a closing take one search and not a thousand.
        """
        since, found = self._found.get(what, (0, -2))
        if found == -2 or position < since or -1 < found < position:
            found = self.text.find(what, position)
            self.searched += (found if found >= 0 else len(self.text)) - position
            self._found[what] = (position, found)
        return found


Reader = Callable[[Source, re.Match[str]], Sequence[Item]]
"""(source, match of an opening) -> items in order; the scan goes on behind the last of them, and
behind the opening where there are none: it was only mentioned."""


def scan(
    source: Source, opening: re.Pattern[str], read: Reader
) -> tuple[list[Item], list[Span], int]:
    """Return the items outside think blocks, the think blocks, and the number of calls in these.

    A closing `</think>` without an opening one makes everything before it a think block: many chat
    templates put the opening into the prompt.
    """
    text = source.text
    either = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}|(?:{opening.pattern})", opening.flags)
    items: list[Item] = []
    thinks: list[Span] = []
    calls_in_think = 0
    position = 0
    while (match := either.search(text, position)) is not None:
        if match[0] == THINK_OPEN:
            stop = source.find(THINK_CLOSE, match.end())
            if stop < 0:
                thinks.append(Span(kind=SpanKind.THINK, start=match.start(), stop=len(text)))
                items.append(_mistake(match, NOT_CLOSED_THINK))
                break
            calls_in_think += _count_calls(Source(text[match.end() : stop]), opening, read)
            position = stop + len(THINK_CLOSE)
            thinks.append(Span(kind=SpanKind.THINK, start=match.start(), stop=position))
        elif match[0] == THINK_CLOSE:
            position = match.end()
            calls_in_think += sum(1 for item in items if _is_whole_call(item))
            items, thinks = [], [Span(kind=SpanKind.THINK, start=0, stop=position)]
        else:
            found = read(source, match)
            items.extend(found)
            position = max(found[-1].stop, match.end()) if found else match.end()
    return items, thinks, calls_in_think


def assemble(
    items: Sequence[Item],
    thinks: Sequence[Span],
    calls_in_think: int,
    *,
    nothing: str | None = None,
) -> ParsedAction:
    """Return what a turn says: what is written first counts, calls or the answer.

    An answer behind a call was written before the call's result was read, and is not taken; a call
    behind an answer is not executed.

    Args:
        items: What was found outside think blocks, in order.
        thinks: Think blocks.
        calls_in_think: Calls found in these.
        nothing: The error where nothing was found and no item says why.
    """
    calls: list[ToolCall] = []
    spans = list(thinks)
    ids = iter(_unique_ids([item.call.id for item in items if item.call is not None]))
    answer: str | None = None
    error: str | None = None
    for item in items:
        if item.call is not None:
            call = replace(item.call, id=next(ids))
            calls.append(call)
            spans.extend(_spans(item, SpanKind.ACTION, call.id))
        elif item.answer is not None:
            if calls:
                error = ANSWER_AFTER_CALL
            else:
                answer = item.answer
                spans.extend(_spans(item, SpanKind.ANSWER, ""))
            break
    if not calls and answer is None:
        error = next((item.error for item in items if item.error is not None), nothing)
    return ParsedAction(
        calls=tuple(calls),
        answer=answer,
        error=error,
        calls_in_think=calls_in_think,
        spans=tuple(sorted(spans, key=lambda span: (span.start, span.stop))),
    )


def truncated(text: str) -> ParsedAction:
    """Return the reading of a text that was cut off by length: nothing in it is executed."""
    start = text.find(THINK_OPEN)
    stop = text.find(THINK_CLOSE)
    is_thinking = stop >= 0 or start >= 0
    end = stop + len(THINK_CLOSE) if stop >= 0 else len(text)
    think = Span(kind=SpanKind.THINK, start=start if 0 <= start < end else 0, stop=end)
    return ParsedAction(is_truncated=True, spans=(think,) if is_thinking else ())


def spoken(text: str) -> str:
    """Return what a text says behind its reasoning; nothing where the reasoning does not end."""
    rest = text.rpartition(THINK_CLOSE)[2]
    return rest if THINK_OPEN not in rest else ""


def is_cut_off(finish_reason: FinishReason) -> bool:
    """Return whether a bound ended the text."""
    return finish_reason is FinishReason.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A stretch from an opening tag to its closing one."""

    inner_start: int
    """First character of the content."""
    inner_stop: int
    """One past the last character of the content."""
    stop: int
    """One past the closing tag; -1 if there is none."""


def read_element(source: Source, match: re.Match[str], closing: str) -> Element | None:
    """Return the element that begins at `match`; None where the tag is only mentioned.

    Another opening of the same tag before the closing one makes this one a mention; the others are
    in `agentgym.tool_formats.mentions`. Of openings that nothing closes the first one is told.
    """
    if closing in source.unclosed:
        return None
    start = match.end()
    stop = source.find(closing, start)
    is_closed = stop >= 0
    if is_closed and start <= source.find(match[0], start) < stop:
        return None
    element = Element(
        inner_start=start,
        inner_stop=stop if is_closed else len(source.text),
        stop=stop + len(closing) if is_closed else -1,
    )
    if mentions.is_quoted(source.text, match.start(), start):
        return None
    if is_closed:
        return None if mentions.is_no_content(source.text, start, stop) else element
    if mentions.is_in_prose(source.text, match.start(), start):
        return None
    source.unclosed.add(closing)
    return element


def answer_items(source: Source, match: re.Match[str], closing: str) -> Sequence[Item]:
    """Return the answer that starts at `match`, or the mistake of not closing it."""
    element = read_element(source, match, closing)
    if element is None:
        return ()
    if element.stop < 0:
        return (_mistake(match, f"The answer was not closed with {closing}."),)
    content = unescape_tags(source.text[element.inner_start : element.inner_stop], closing)
    return (
        Item(
            start=match.start(),
            inner_start=element.inner_start,
            inner_stop=element.inner_stop,
            stop=element.stop,
            answer=content.strip(),
        ),
    )


def escape_tags(content: str, closing: str) -> str:
    r"""Return `content` with `</name` as `<\/name` and `<name>` as `<\name>`, so that the element
    can hold it.
    """
    name = re.escape(closing[2:-1])
    return re.sub(rf"<(\\*)(/{name}|{name}>)", r"<\\\1\2", content)


def unescape_tags(content: str, closing: str) -> str:
    r"""Return `content` with one backslash less in each `<\/name` and `<\name>`."""
    name = re.escape(closing[2:-1])
    return re.sub(rf"<\\(\\*)(/{name}|{name}>)", r"<\1\2", content)


def _mistake(match: re.Match[str], error: str) -> Item:
    end = match.end()
    return Item(start=match.start(), inner_start=end, inner_stop=end, stop=end, error=error)


def _count_calls(source: Source, opening: re.Pattern[str], read: Reader) -> int:
    count, position = 0, 0
    while (match := opening.search(source.text, position)) is not None:
        found = read(source, match)
        count += sum(1 for item in found if _is_whole_call(item))
        position = max(found[-1].stop, match.end()) if found else match.end()
    return count


def _is_whole_call(item: Item) -> bool:
    return item.call is not None and item.call.error is None


def _spans(item: Item, kind: SpanKind, ref: str) -> list[Span]:
    parts = [
        (SpanKind.FORMAT, item.start, item.inner_start),
        (kind, item.inner_start, item.inner_stop),
        (SpanKind.FORMAT, item.inner_stop, item.stop),
    ]
    return [Span(kind=k, start=a, stop=b, ref=ref) for k, a, b in parts if b > a]


def _unique_ids(written: Sequence[str]) -> list[str]:
    """Return an id for each call: as it was written where it is the first of that name."""
    wanted = [call_id or f"call_{position}" for position, call_id in enumerate(written)]
    given, taken = set(wanted), set[str]()
    numbers = itertools.count()
    for position, call_id in enumerate(wanted):
        if call_id in taken:
            ways = itertools.chain([call_id], map(str, numbers))
            names = (f"call_{position}_{way}" for way in ways)
            call_id = next(name for name in names if name not in given and name not in taken)
        wanted[position] = call_id
        taken.add(call_id)
    return wanted
