"""What the protocols share: one scan from left to right, think blocks, and who comes first.

A protocol says which openings it knows and reads what follows each; `scan` gives the items in
order, `assemble` makes the `ParsedAction`. Nothing here raises on any text, and none of it looks
twice at what a call or an answer holds, so that a tag inside an argument is never a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentgym.protocols.base import ParsedAction
from agentgym.records import FinishReason, Span, SpanKind, ToolCall

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


Reader = Callable[[str, re.Match[str]], Sequence[Item]]
"""(text, match of an opening) -> items in order; the scan goes on behind the last of them."""


def scan(text: str, opening: re.Pattern[str], read: Reader) -> tuple[list[Item], list[Span], int]:
    """Return the items outside think blocks, the think blocks, and the number of calls in these.

    A closing `</think>` without an opening one makes everything before it a think block: many chat
    templates put the opening into the prompt.
    """
    either = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}|(?:{opening.pattern})", opening.flags)
    items: list[Item] = []
    thinks: list[Span] = []
    calls_in_think = 0
    position = 0
    while (match := either.search(text, position)) is not None:
        if match[0] == THINK_OPEN:
            stop = text.find(THINK_CLOSE, match.end())
            if stop < 0:
                thinks.append(Span(kind=SpanKind.THINK, start=match.start(), stop=len(text)))
                items.append(_mistake(match, NOT_CLOSED_THINK))
                break
            calls_in_think += _count_calls(text[match.end() : stop], opening, read)
            position = stop + len(THINK_CLOSE)
            thinks.append(Span(kind=SpanKind.THINK, start=match.start(), stop=position))
        elif match[0] == THINK_CLOSE:
            position = match.end()
            calls_in_think += sum(1 for item in items if _is_whole_call(item))
            items, thinks = [], [Span(kind=SpanKind.THINK, start=0, stop=position)]
        else:
            found = read(text, match)
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
    answer: str | None = None
    error: str | None = None
    for item in items:
        if item.call is not None:
            call = replace(item.call, id=item.call.id or f"call_{len(calls)}")
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
        calls=tuple(_unique_ids(calls)),
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


def is_cut_off(finish_reason: FinishReason) -> bool:
    """Return whether a bound ended the text."""
    return finish_reason is FinishReason.LENGTH


def read_element(text: str, match: re.Match[str], closing: str) -> tuple[int, int, int]:
    """Return (content start, content stop, stop) up to the first `closing`; stop -1 if none."""
    stop = text.find(closing, match.end())
    if stop < 0:
        return match.end(), len(text), -1
    return match.end(), stop, stop + len(closing)


def answer_item(text: str, match: re.Match[str], closing: str) -> Item:
    """Return the answer that starts at `match`, or the mistake of not closing it."""
    start, inner_stop, stop = read_element(text, match, closing)
    if stop < 0:
        return _mistake(match, f"The answer was not closed with {closing}.")
    content = unescape_closing(text[start:inner_stop], closing)
    return Item(
        start=match.start(),
        inner_start=start,
        inner_stop=inner_stop,
        stop=stop,
        answer=content.strip(),
    )


def escape_closing(content: str, closing: str) -> str:
    r"""Return `content` with each `</name>` as `<\/name>`, so that the element can hold it."""
    name = re.escape(closing[2:])
    return re.sub(rf"<(\\*)/{name}", r"<\\\1/" + closing[2:], content)


def unescape_closing(content: str, closing: str) -> str:
    r"""Return `content` with one backslash less in each `<\/name>`; undoes `escape_closing`."""
    name = re.escape(closing[2:])
    return re.sub(rf"<\\(\\*)/{name}", r"<\1/" + closing[2:], content)


def _mistake(match: re.Match[str], error: str) -> Item:
    end = match.end()
    return Item(start=match.start(), inner_start=end, inner_stop=end, stop=end, error=error)


def _count_calls(text: str, opening: re.Pattern[str], read: Reader) -> int:
    count, position = 0, 0
    while (match := opening.search(text, position)) is not None:
        found = read(text, match)
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


def _unique_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    seen: set[str] = set()
    unique: list[ToolCall] = []
    for position, call in enumerate(calls):
        call_id = call.id if call.id not in seen else f"call_{position}_{call.id}"
        seen.add(call_id)
        unique.append(call if call_id == call.id else replace(call, id=call_id))
    return unique
