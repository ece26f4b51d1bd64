"""Solutions of the mailboxes."""

from __future__ import annotations

from agentgym.envs.web.browser.view import View
from agentgym.envs.web.miniwob.solutions.base import (
    Call,
    after,
    by_hint,
    click,
    fill,
    first_of,
    matched,
    quoted,
    solves,
)


@solves(
    "email-inbox",
    "email-inbox-delete",
    "email-inbox-forward",
    "email-inbox-important",
    "email-inbox-noscroll",
    "email-inbox-reply",
    "email-inbox-star-reply",
)
def handle_mail(goal: str, view: View, turn: int) -> Call:
    """Find the mail by its sender, then do what is asked."""
    sender = matched(r"Find the email by (.+?) and", goal)[0]
    for icon in ("trash", "star"):
        if f"click the {icon} icon" in goal:
            mail = view.first("text", name=sender)
            return click(after(view, mail, hint=icon) if mail else None)
    field = view.first("textbox")
    if "reply" in goal:
        return _write(view, "Reply", sender, fill(field, quoted(goal)[0]) if field else None)
    receiver = matched(r"forward that email to (.+)\.$", goal)[0]
    return _write(view, "Forward", sender, fill(field, receiver) if field else None)


def _write(view: View, action: str, sender: str, filled: Call | None) -> Call:
    send = by_hint(view, f"send-{action.lower()}")
    if send is not None:
        return first_of(filled, click(send))
    button = view.first("text", name=action)
    return click(button if button is not None else view.first("text", name=sender))
