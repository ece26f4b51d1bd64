"""Solutions that fill in forms."""

from __future__ import annotations

from agentgym.envs.web.browser.view import View
from agentgym.envs.web.miniwob.solutions.base import (
    Call,
    after,
    choose,
    click,
    fill,
    first_of,
    matched,
    ordinal,
    quoted,
    solves,
    submit,
)


@solves("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def tick_boxes(goal: str, view: View, turn: int) -> Call:
    """Tick the boxes that are named, then submit."""
    wanted = _listed(goal, r"Select (.+) and click Submit")
    for box in view.all("checkbox"):
        if (box.name in wanted) != ("checked" in box.states):
            return click(box)
    return submit(view)


@solves("click-option")
def choose_radio(goal: str, view: View, turn: int) -> Call:
    """Choose the option that is named, then submit."""
    name = matched(r"Select (.+) and click Submit", goal)[0]
    radio = view.first("radio", name=name)
    is_chosen = radio is not None and "checked" in radio.states
    return submit(view) if is_chosen else click(radio)


@solves("choose-list")
def choose_option(goal: str, view: View, turn: int) -> Call:
    """Choose from the list, then submit."""
    name = matched(r"Select (.+) from the list and click Submit", goal)[0]
    return first_of(choose(view.first("combobox"), name), submit(view))


@solves("click-scroll-list")
def choose_options(goal: str, view: View, turn: int) -> Call:
    """Choose several from the list, then submit."""
    names = _listed(goal, r"Select (.+) from the scroll list and click Submit")
    field = view.first("listbox", "combobox")
    return first_of(*(choose(field, name) for name in names), submit(view))


@solves("enter-text", "enter-text-dynamic")
def enter_text(goal: str, view: View, turn: int) -> Call:
    """Type what is quoted, then submit."""
    return first_of(fill(view.first("textbox"), quoted(goal)[0]), submit(view))


@solves("enter-text-2")
def enter_case(goal: str, view: View, turn: int) -> Call:
    """Type what is quoted in upper or lower case, then submit."""
    word = quoted(goal)[0]
    text = word.upper() if "upper case" in goal else word.lower()
    return first_of(fill(view.first("textbox"), text), submit(view))


@solves("enter-password")
def enter_password(goal: str, view: View, turn: int) -> Call:
    """Type the password twice, then submit."""
    fields = list(view.all("textbox"))
    return first_of(*(fill(field, quoted(goal)[0]) for field in fields), submit(view))


@solves("enter-date")
def enter_date(goal: str, view: View, turn: int) -> Call:
    """Type the date as the field takes it, then submit."""
    month, day, year = matched(r"(\d+)/(\d+)/(\d+)", goal)
    return first_of(fill(view.first("textbox"), f"{year}-{month}-{day}"), submit(view))


@solves("enter-time")
def enter_time(goal: str, view: View, turn: int) -> Call:
    """Type the time as the field takes it, then submit."""
    hour, minute, half = matched(r"(\d+):(\d+) (AM|PM)", goal)
    number = int(hour) % 12 + (12 if half == "PM" else 0)
    return first_of(fill(view.first("textbox"), f"{number:02d}:{minute}"), submit(view))


@solves("login-user", "login-user-popup")
def log_in(goal: str, view: View, turn: int) -> Call:
    """Type name and password, then log in; stay if a window asks to leave."""
    cancel = view.first("button", name="Cancel")
    if cancel is not None:
        return click(cancel)
    name, password = quoted(goal)[:2]
    user, secret = list(view.all("textbox"))[:2]
    return first_of(fill(user, name), fill(secret, password), click(view.first("button")))


@solves("form-sequence-2")
def fill_sequence(goal: str, view: View, turn: int) -> Call:
    """Choose the radio button, type the number, submit."""
    one, other = matched(r"Check the (\w+) radio .* into the (\w+) textbox", goal)
    radio = list(view.all("radio"))[ordinal(one) - 1]
    field = list(view.all("textbox"))[ordinal(other) - 1]
    chosen = None if "checked" in radio.states else click(radio)
    return first_of(chosen, fill(field, quoted(goal)[0]), submit(view))


@solves("copy-paste", "copy-paste-2")
def copy_text(goal: str, view: View, turn: int) -> Call:
    """Type what an area holds into the field, then submit."""
    areas = [node for node in view.all("textbox") if "multiline" in node.states]
    field = next((node for node in view.all("textbox") if node not in areas), None)
    number = ordinal(goal) if "text area below" in goal and "text from the" in goal else 1
    return first_of(fill(field, areas[number - 1].value or ""), submit(view))


@solves("use-spinner")
def use_spinner(goal: str, view: View, turn: int) -> Call:
    """Turn the number with the arrow keys, since it takes no digits, then submit."""
    number = int(matched(r"Select (-?\d+) with", goal)[0])
    field = view.first("spinbutton")
    if field is None or view.focus != field.id:
        return click(field)
    away = number - int(field.value or 0)
    if away == 0:
        return submit(view)
    return "press", {"key": "ArrowUp" if away > 0 else "ArrowDown"}


@solves("use-autocomplete", "use-autocomplete-nodelay")
def use_suggestions(goal: str, view: View, turn: int) -> Call:
    """Type the beginning, click a suggestion with the right end, submit."""
    start, *end = quoted(goal)
    field = view.first("textbox")
    held = field.value or "" if field is not None else ""
    if held.startswith(start) and held.endswith(end[0] if end else "") and held != start:
        return submit(view)
    for item in view.all("text"):
        name = item.name
        if name.startswith(start) and name.endswith(end[0] if end else "") and item.depth > 1:
            return click(item)
    return first_of(fill(field, start), submit(view))


@solves("read-table")
def read_table(goal: str, view: View, turn: int) -> Call:
    """Type the value beside the label, then submit."""
    label = matched(r"Enter the value of (.+) into", goal)[0]
    return first_of(fill(view.first("textbox"), _value_of(view, label)), submit(view))


@solves("read-table-2")
def read_two(goal: str, view: View, turn: int) -> Call:
    """Type the value of each label into its field, then submit."""
    labels = [node for node in view.all("text") if node.name.endswith(":")]
    calls = (
        fill(after(view, label, "textbox"), _value_of(view, label.name.rstrip(":")))
        for label in labels
    )
    return first_of(*calls, submit(view))


@solves("search-engine")
def search_results(goal: str, view: View, turn: int) -> Call:
    """Search, turn pages, click the result with the number."""
    per_page = 3
    page, place = divmod(ordinal(goal) - 1, per_page)
    results = [node for node in view.all("link") if len(node.name) > 1]
    filled = fill(view.first("textbox"), quoted(goal)[0])
    if filled is not None or not results:
        return first_of(filled, submit(view, "Search"))
    # Typing and searching are the first two actions, each of the next ones turned a page.
    if turn - 2 < page:
        return click(view.first("link", name=">"))
    return click(results[place])


@solves("phone-book")
def find_contact(goal: str, view: View, turn: int) -> Call:
    """Turn pages to the name, then click the detail."""
    name, detail = matched(r"Find (.+) in the contact book and click on their (\w+)", goal)
    if view.first("heading", name=name) is None:
        return click(view.first("link", name=">"))
    label = view.first("text", name=f"{detail.capitalize()}:")
    return click(after(view, label, "text") if label else None)


def _listed(goal: str, pattern: str) -> list[str]:
    said = matched(pattern, goal)[0]
    return [] if said == "nothing" else said.split(", ")


def _value_of(view: View, label: str) -> str:
    cell = view.first("cell", name=label)
    value = after(view, cell, "cell") if cell is not None else None
    return value.name if value is not None else ""
