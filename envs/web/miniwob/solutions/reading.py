"""Solutions that read, count and reckon."""

from __future__ import annotations

import re

from agentgym.envs.web.browser.view import View
from agentgym.envs.web.miniwob.solutions.base import (
    Call,
    click,
    fill,
    first_of,
    matched,
    ordinal,
    solves,
    submit,
)


@solves("find-word")
def find_word(goal: str, view: View, turn: int) -> Call:
    """Type the word with the number, then submit."""
    paragraph = view.first("text")
    words = paragraph.name.split() if paragraph is not None else []
    word = re.sub(r"[^a-zA-Z]", "", words[ordinal(goal) - 1])
    return first_of(fill(view.first("textbox"), word), submit(view))


@solves("simple-arithmetic")
def reckon(goal: str, view: View, turn: int) -> Call:
    """Type the result, then submit."""
    text = next(node.name for node in view.all("text") if node.name.endswith("="))
    one, sign, other = matched(r"(\d+) ([x+-]) (\d+)", text)
    return first_of(
        fill(view.first("textbox"), str(_apply(int(one), sign, int(other)))), submit(view)
    )


@solves("simple-algebra")
def solve_equation(goal: str, view: View, turn: int) -> Call:
    """Type the unknown, then submit."""
    text = next(node.name for node in view.all("text") if re.search(r"= -?\d", node.name))
    one, sign, other, result = matched(r"(\w+) ([+-]) (\w+) = (-?\d+)", text)
    if one == "x":
        unknown = _apply(int(result), "-" if sign == "+" else "+", int(other))
    else:
        unknown = int(result) - int(one) if sign == "+" else int(one) - int(result)
    return first_of(fill(view.first("textbox"), str(unknown)), submit(view))


@solves("odd-or-even")
def mark_parity(goal: str, view: View, turn: int) -> Call:
    """Mark one number after the other, then submit."""
    numbers = [int(node.name) for node in view.all("text") if node.name.lstrip("-").isdigit()]
    if turn == len(numbers):
        return submit(view)
    buttons = list(view.all("button", name="Odd" if numbers[turn] % 2 else "Even"))
    return click(buttons[turn])


@solves("generate-number")
def generate_number(goal: str, view: View, turn: int) -> Call:
    """Generate until the number will do, then submit."""
    shown = view.first("text")
    text = shown.name if shown is not None else ""
    is_right = text.isdigit() and _is_wanted(goal, int(text))
    return submit(view) if is_right else click(view.first("button", name="Generate"))


@solves("guess-number")
def guess_number(goal: str, view: View, turn: int) -> Call:
    """Guess from the middle on, one step in the direction that the page tells."""
    field = view.first("spinbutton")
    held = field.value or "" if field is not None else ""
    told = " ".join(node.name for node in view.nodes if node.role in {"text", ""})
    hint = re.search(r"(lower|higher) than (\d)", told)
    wanted = 5
    if hint is not None:
        wanted = int(hint[2]) + (1 if hint[1] == "higher" else -1)
    elif held:
        wanted = int(held)
    return first_of(fill(field, str(wanted)), submit(view))


@solves("buy-ticket")
def buy_ticket(goal: str, view: View, turn: int) -> Call:
    """Compare durations or prices, and book."""
    buttons = [node for node in view.all("button") if node.name.startswith("Book")]
    times = [_minutes(node.name) for node in view.all("text") if re.match(r"\d+h", node.name)]
    prices = [int(matched(r"\$(\d+)", node.name)[0]) for node in buttons]
    values = times if "duration" in goal else prices
    is_most = any(word in goal for word in ("longest", "highest", "expensive"))
    best = max(values) if is_most else min(values)
    return click(buttons[values.index(best)])


def _minutes(text: str) -> int:
    hours, minutes = matched(r"(\d+)h (\d+)m", text)
    return 60 * int(hours) + int(minutes)


def _is_wanted(goal: str, number: int) -> bool:
    if "even" in goal:
        return number % 2 == 0
    if "odd" in goal:
        return number % 2 == 1
    bound = int(matched(r"(\d+)", goal)[0])
    return number < bound if "less" in goal else number > bound


def _apply(one: int, sign: str, other: int) -> int:
    match sign:
        case "+":
            return one + other
        case "-":
            return one - other
        case _:
            return one * other
