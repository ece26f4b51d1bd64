"""What an agent reads of a page: `Node`, `View`, and their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.web.browser.browser import driver_error
from agentgym.envs.web.browser.settings import Settings

MOST_NODES = 400
"""Elements of a page that are listed."""
MOST_NAME_CHARS = 300
_MOST_OPTIONS = 60
_COLORS = {
    (255, 0, 0): "red",
    (0, 128, 0): "green",
    (0, 255, 0): "lime",
    (0, 0, 255): "blue",
    (255, 255, 0): "yellow",
    (255, 165, 0): "orange",
    (128, 0, 128): "purple",
    (255, 192, 203): "pink",
    (0, 255, 255): "cyan",
    (255, 0, 255): "magenta",
    (165, 42, 42): "brown",
    (128, 128, 128): "grey",
    (0, 0, 0): "black",
    (255, 255, 255): "white",
}
"""Colours that have a plain name; others are shown as hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One line of the tree.

    Example:
        Node(id=4, role="checkbox", name="Newsletter", states=("checked",))
    """

    id: int | None
    """Number to act on; None for text between elements."""
    role: str
    """ARIA role, the name of a drawn shape, `text`, or `clickable`; empty without an id."""
    name: str = ""
    """Accessible name or text."""
    value: str | None = None
    """What a field holds."""
    depth: int = 0
    """Listed elements that it lies in."""
    states: tuple[str, ...] = ()
    """`checked`, `disabled` and so on."""
    options: tuple[str, ...] = ()
    """Choices of a list."""
    looks: Mapping[str, str] = field(default_factory=dict[str, str])
    """`color`, `size`, `at`: of what has no text."""
    hint: str = ""
    """Class or id of an icon."""
    is_clickable: bool = False
    """Whether the page listens for clicks on it, as far as that can be told."""

    def line(self) -> str:
        """Return the line without its indentation."""
        if self.id is None:
            return _quoted(self.name)
        parts = [f"[{self.id}] {self.role}"]
        if self.name:
            parts.append(_quoted(self.name))
        if self.value is not None:
            parts.append(f"value={_quoted(self.value)}")
        if self.options:
            shown = " | ".join(self.options[:_MOST_OPTIONS])
            parts.append(f"options={_quoted(shown)}")
        if self.hint:
            parts.append(f"hint={_quoted(self.hint)}")
        parts += [f"{key}={text}" for key, text in self.looks.items()]
        parts += self.states
        if self.is_clickable and self.role not in _ACTIVE:
            parts.append("clickable" if self.role != "clickable" else "")
        return " ".join(part for part in parts if part)


_ACTIVE = frozenset({"button", "link", "checkbox", "radio", "tab", "textbox", "combobox", "option"})
"""Roles that say by themselves that a click does something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page as the agent sees it.

    Example:
        View(url="http://shop.test/", tabs=("Shop",), tab=0, nodes=(node,))
    """

    url: str
    """Address of the tab in front."""
    tabs: tuple[str, ...]
    """Title of each tab."""
    tab: int
    """Position of the one in front."""
    nodes: tuple[Node, ...]
    """Its elements in reading order."""
    focus: int | None = None
    """Element that has the keyboard; None if none has."""
    error: str = ""
    """Why the last action had no effect; empty if it had."""
    notices: tuple[str, ...] = ()
    """What the page said or asked in dialogs, and what it wanted to download; a line each."""
    is_cut: bool = False
    """Whether there are more elements than are listed."""

    def node(self, node_id: int) -> Node | None:
        """Return the element with a number; None if there is none."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def all(self, *roles: str, name: str | None = None) -> Iterator[Node]:
        """Yield the elements of some roles (of any, without one), with a name if one is given."""
        for node in self.nodes:
            is_meant = (not roles or node.role in roles) and name in {None, node.name}
            if node.id is not None and is_meant:
                yield node

    def first(self, *roles: str, name: str | None = None) -> Node | None:
        """Return the first such element; None if there is none."""
        return next(self.all(*roles, name=name), None)

    def text(self) -> str:
        """Return the page as text: address, tabs, focus, error, elements."""
        lines = [f"URL: {self.url}"]
        if len(self.tabs) == 1:
            lines.append(f"Tab 1 of 1: {self.tabs[0]}")
        else:
            lines.append(f"Tab {self.tab + 1} of {len(self.tabs)}:")
            for number, title in enumerate(self.tabs):
                mark = " (in front)" if number == self.tab else ""
                lines.append(f"  {number + 1}: {title}{mark}")
        focused = self.node(self.focus) if self.focus is not None else None
        lines.append(f"Focus: {f'[{focused.id}] {focused.role}' if focused else 'none'}")
        lines += self.notices
        if self.error:
            lines.append(f"Error: {self.error}")
        lines += [" " * min(node.depth, 8) + node.line() for node in self.nodes]
        if self.is_cut:
            lines.append(f"[only the first {MOST_NODES} elements are listed]")
        return "\n".join(lines)


async def look(page: Any, settings: Settings) -> dict[str, Any]:
    """Return what the page's script sees of a page, and the value of the probe.

    Args:
        page: Playwright's page.
        settings: What is shown, and the probe.
    """
    options = {"most": MOST_NODES, "skip": settings.skip, "at": settings.shows_places}
    # Pictures that a page's script has just made have no size before they are loaded, and what
    # has no size is not seen: without waiting, two equal starts would differ by chance.
    script = (
        "async options => { await window.__agentgym.pictures();"
        " const seen = window.__agentgym.snapshot(options);"
        f" seen.probed = ({settings.probe})(); return seen; }}"
    )
    try:
        return await page.evaluate(script, options)
    except driver_error() as error:
        if "context was destroyed" not in str(error):
            raise
        # The document went while it was looked at: the next one is on its way.
        return {"isLeaving": True, "opened": 0}


def read_nodes(items: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the elements that the page's script lists."""
    return tuple(
        Node(
            id=item.get("id"),
            role=item["role"],
            name=_cut(item.get("name") or ""),
            value=_cut(item["value"]) if item.get("value") is not None else None,
            depth=item["depth"],
            states=(*item.get("states", ()), *([item["type"]] if item.get("type") else ())),
            options=tuple(item.get("options", ())),
            looks={key: color_name(text) for key, text in (item.get("looks") or {}).items()},
            hint=item.get("hint", ""),
            is_clickable=bool(item.get("clickable")),
        )
        for item in items
    )


def color_name(text: str) -> str:
    """Return `rgb(255, 0, 0)` as `red`, other colours as `#rrggbb`, and all else as it is."""
    if not text.startswith("rgb"):
        return text
    numbers = [float(part) for part in text[text.index("(") + 1 : -1].replace("/", ",").split(",")]
    red, green, blue = (round(number) for number in numbers[:3])
    return _COLORS.get((red, green, blue), f"#{red:02x}{green:02x}{blue:02x}")


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n").replace('"', "'") + '"'


def _cut(text: str) -> str:
    if len(text) <= MOST_NAME_CHARS:
        return text
    half = MOST_NAME_CHARS // 2
    return f"{text[:half]} [...] {text[-half:]}"
