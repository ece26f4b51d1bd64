"""Solutions that click what the task names or describes."""

from __future__ import annotations

from agentgym.envs.web.browser.view import Node, View
from agentgym.envs.web.miniwob.solutions.base import (
    WAIT,
    Call,
    after,
    by_hint,
    click,
    first_of,
    matched,
    ordinal,
    quoted,
    solves,
    submit,
)

_SHAPES = ("circle", "rect", "polygon")
_SHAPE_NAMES = {"rectangle": "rect", "triangle": "polygon", "circle": "circle"}
_LARGE_PIXELS = 15
"""Between the two sizes of drawn things, 10 and 20."""
_COLUMNS = 5
"""Points of one column of the grid of coordinates."""


@solves("click-button", "unicode-test")
def click_button(goal: str, view: View, turn: int) -> Call:
    """Click the button that is named."""
    return click(view.first("button", name=quoted(goal)[0]))


@solves("click-test")
def click_only(goal: str, view: View, turn: int) -> Call:
    """Click the only button."""
    return click(view.first("button"))


@solves("click-test-2", "click-test-transfer")
def click_number(goal: str, view: View, turn: int) -> Call:
    """Click the button that is named."""
    return click(view.first("button", name=matched(r"button (\w+)\.", goal)[0]))


@solves("click-button-sequence")
def click_both(goal: str, view: View, turn: int) -> Call:
    """Click the first button, then the second; the one clicked last has the focus."""
    one = view.first("button", name="ONE")
    is_clicked = one is not None and view.focus == one.id
    return click(view.first("button", name="TWO") if is_clicked else one)


@solves("button-delay")
def click_and_wait(goal: str, view: View, turn: int) -> Call:
    """Click, wait, click: each action takes a second."""
    if turn == 0:
        return click(view.first("button", name="ONE"))
    seconds = int(matched(r"wait (\d+) second", goal)[0])
    return WAIT if turn < seconds else click(view.first("button", name="TWO"))


@solves("click-link")
def click_link(goal: str, view: View, turn: int) -> Call:
    """Click the link that is named."""
    return click(_link(view, quoted(goal)[0]))


@solves("click-color")
def click_color(goal: str, view: View, turn: int) -> Call:
    """Click the box of the colour that is named, or shown in a small one."""
    colored = [node for node in view.all("clickable") if "color" in node.looks]
    boxes = [node for node in colored if "query-color" not in node.hint.split()]
    swatches = [node for node in colored if node not in boxes]
    named = goal.replace("Click on the", "").replace("colored box.", "").strip()
    wanted = named or swatches[0].looks["color"]
    return click(next((node for node in boxes if node.looks["color"] == wanted), None))


@solves("click-dialog")
def close_dialog(goal: str, view: View, turn: int) -> Call:
    """Close the dialog."""
    return click(view.first("button", name="Close"))


@solves("click-dialog-2")
def click_in_dialog(goal: str, view: View, turn: int) -> Call:
    """Click the button that is named; `x` is called Close."""
    name = quoted(goal)[0]
    return click(view.first("button", name="Close" if name == "x" else name))


@solves("click-tab")
def click_tab(goal: str, view: View, turn: int) -> Call:
    """Click the tab that is named."""
    return click(view.first("tab", name=matched(r"(Tab #\d+)", goal)[0]))


@solves(
    "click-tab-2",
    "click-tab-2-easy",
    "click-tab-2-medium",
    "click-tab-2-hard",
    "click-collapsible-2",
    "click-collapsible-2-nodelay",
)
def search_tabs(goal: str, view: View, turn: int) -> Call:
    """Open one tab or section after the other until the link is there."""
    link = _link(view, quoted(goal)[0])
    if link is not None:
        return click(link)
    tabs = list(view.all("tab"))
    opened = [number for number, tab in enumerate(tabs) if "selected" in tab.states]
    return click(tabs[opened[-1] + 1 if opened else 0])


@solves("click-collapsible", "click-collapsible-nodelay")
def open_section(goal: str, view: View, turn: int) -> Call:
    """Open the section, then submit."""
    section = view.first("tab")
    if section is not None and "expanded" not in section.states:
        return click(section)
    return submit(view)


@solves("click-menu")
def open_menus(goal: str, view: View, turn: int) -> Call:
    """Go through the menus with the arrow keys: a click would choose what only opens."""
    path = goal.removeprefix("Select ").split(">")
    active = next((node for node in view.all("menuitem") if "active" in node.states), None)
    if active is None:
        return "press", {"key": "Tab"}
    if active.name == path[-1]:
        return "press", {"key": "Enter"}
    return "press", {"key": "ArrowRight" if active.name in path else "ArrowDown"}


@solves("click-shades")
def click_shades(goal: str, view: View, turn: int) -> Call:
    """Click each square whose strongest part is the colour."""
    wanted = {"red": 0, "green": 1, "blue": 2}[matched(r"shades of (\w+)", goal)[0]]
    for node in view.all("clickable"):
        color = node.looks.get("color", "")
        if color.startswith("#") and "selected" not in node.hint.split():
            parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
            if parts[wanted] == max(parts):
                return click(node)
    return submit(view)


@solves("click-widget")
def click_widget(goal: str, view: View, turn: int) -> Call:
    """Click some widget of the kind that is named."""
    kind = quoted(goal)[0]
    if kind in {"text", "textarea"}:
        fields = view.all("textbox")
        is_meant = kind == "textarea"
        return click(next((f for f in fields if ("multiline" in f.states) == is_meant), None))
    return click(view.first(kind))


@solves("click-shape")
def click_shape(goal: str, view: View, turn: int) -> Call:
    """Click a thing that fits the description."""
    words = matched(r"Click on an? (.+)", goal)[0].split()
    return click(next((node for node in _drawn(view) if _fits(node, words)), None))


@solves("count-shape")
def count_shapes(goal: str, view: View, turn: int) -> Call:
    """Count the things that fit, and click the number."""
    words = matched(r"How many (.+)s are there", goal)[0].split()
    count = sum(_fits(node, words) for node in _drawn(view))
    return click(view.first("button", name=str(count)))


@solves("identify-shape")
def identify_shape(goal: str, view: View, turn: int) -> Call:
    """Click the word for what is drawn."""
    drawn = _drawn(view)[0]
    names = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    name = names.get(drawn.role) or ("Number" if drawn.name.isdigit() else "Letter")
    return click(view.first("button", name=name))


@solves("ascending-numbers")
def click_ascending(goal: str, view: View, turn: int) -> Call:
    """Click the 1, which turns the others into squares, in their order; each goes when clicked."""
    return click(view.first("text", name="1") or view.first("rect"))


@solves("grid-coordinate")
def click_coordinate(goal: str, view: View, turn: int) -> Call:
    """Click a point: they are listed by columns, from -2 on, each from the top."""
    x, y = (int(part) for part in matched(r"\((-?\d+),(-?\d+)\)", goal))
    points = list(view.all("circle"))
    return click(points[(x + 2) * _COLUMNS + (2 - y)])


@solves("navigate-tree")
def navigate_tree(goal: str, view: View, turn: int) -> Call:
    """Click the name once it is seen; until then open folders."""
    name = quoted(goal)[0]
    found = next((node for node in view.all("text") if node.name == name), None)
    if found is not None:
        return click(found)
    folder = by_hint(view, "expandable")
    return click(after(view, folder, "text") if folder else None)


@solves("focus-text")
def focus_field(goal: str, view: View, turn: int) -> Call:
    """Click the field."""
    return click(view.first("textbox"))


@solves("focus-text-2")
def focus_numbered_field(goal: str, view: View, turn: int) -> Call:
    """Click the field with a number."""
    return click(list(view.all("textbox"))[ordinal(goal) - 1])


@solves("social-media")
def act_on_post(goal: str, view: View, turn: int) -> Call:
    """Click the button of the user's post, or open the menu that holds it."""
    user, action = matched(r"For the user (@\w+), click on the \"(.+)\" button", goal)
    # Some name the user too: `Mute @sit`.
    named = [item for item in view.all("listitem") if item.name in {action, f"{action} {user}"}]
    if named:
        return click(named[0])
    post = view.first("text", name=user)
    icons = {"Reply": "reply", "Retweet": "retweet", "Like": "like"}
    return click(after(view, post, hint=icons.get(action, "more")) if post else None)


@solves("social-media-all", "social-media-some")
def act_on_posts(goal: str, view: View, turn: int) -> Call:
    """Click the button of all the user's posts, or of some, then submit."""
    action, count, user = matched(r'Click the "(\w+)" button on (all|\d+) posts? by (@\w+)', goal)
    posts = list(view.all("text", name=user))
    icons = [after(view, post, hint=action.lower()) for post in posts]
    wanted = icons if count == "all" else icons[: int(count)]
    left = [icon for icon in wanted if icon is not None and "active" not in icon.hint.split()]
    return first_of(click(left[0]) if left else None, submit(view))


def _link(view: View, name: str) -> Node | None:
    return next((node for node in view.all("text", "link") if node.name == name), None)


def _drawn(view: View) -> list[Node]:
    return [node for node in view.all("text", *_SHAPES) if "size" in node.looks]


def _fits(node: Node, words: list[str]) -> bool:
    """Return whether a drawn thing fits a description: size, colour, kind, each if given."""
    *adjectives, noun = words
    height = int(node.looks["size"].split("x")[1])
    has_adjectives = all(
        word == ("large" if height >= _LARGE_PIXELS else "small")
        if word in {"large", "small"}
        else {"aqua": "cyan"}.get(word, word) == node.looks.get("color")
        for word in adjectives
    )
    is_shape = node.role in _SHAPES
    kinds = {
        "item": True,
        "shape": is_shape,
        "digit": not is_shape and node.name.isdigit(),
        "letter": not is_shape and node.name.isalpha(),
    }
    if noun in kinds:
        return has_adjectives and kinds[noun]
    is_meant = node.role == _SHAPE_NAMES.get(noun) if is_shape else node.name == noun
    return has_adjectives and is_meant
