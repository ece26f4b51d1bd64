"""The scripted customer: searches by the task's words, narrows down, takes the first that fits.

It uses what the task says and the page shows; of the server's state only which wishes are in the
basket already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agentgym.envs.web.browser.view import Node, View
from agentgym.envs.web.shop.state import Line, Wish
from agentgym.errors import EnvError
from agentgym.records import Json

Call = tuple[str, dict[str, Json]]

_PRICE = re.compile(r"\$([0-9,]+\.[0-9]{2})")


def next_call(
    wishes: Sequence[Wish],
    basket: Sequence[Line],
    view: View,
    *,
    path: str,
    query: Mapping[str, str],
) -> Call:
    """Return the next action of a customer with these wishes."""
    left = [wish for wish in wishes if all(wish.match(line) < 1 for line in basket)]
    spare = [n for n, line in enumerate(basket) if all(wish.match(line) < 1 for wish in wishes)]
    if spare or not left:
        return _to_the_end(view, path, spare)
    wish = left[0]
    if path.startswith("/product/") and _is_meant(wish, view):
        return _choose(wish, view)
    if path == "/search" and query.get("q") == _words(wish):
        return _narrow(wish, view, query)
    box = _found(view, "searchbox")
    if box.value != _words(wish):
        return "type", {"id": box.id, "text": _words(wish)}
    return _click(view, "button", "Search")


def _words(wish: Wish) -> str:
    words = (wish.brand, wish.feature, wish.material, wish.kind)
    return " ".join(word for word in words if word)


def _is_meant(wish: Wish, view: View) -> bool:
    titles = view.all("heading")
    return any(set(_words(wish).split()) <= set(node.name.split()) for node in titles)


def _narrow(wish: Wish, view: View, query: Mapping[str, str]) -> Call:
    """Set the filters one after the other, apply them, open the first result."""
    wanted = {"colour": wish.colour, "size": wish.size}
    for name, text in wanted.items():
        field = _found(view, "combobox", name.capitalize())
        if text and query.get(name) != text and field.value != text:
            return "select", {"id": field.id, "option": text}
    price = f"{wish.most_cents / 100:.2f}" if wish.most_cents is not None else ""
    field = _found(view, "textbox", "Price at most")
    if price and field.value != price:
        return "type", {"id": field.id, "text": price}
    wanted["price"] = price
    if any(text and query.get(name) != text for name, text in wanted.items()):
        return _click(view, "button", "Apply filters")
    words = set(_words(wish).split())
    for link in view.all("link"):
        if words <= set(link.name.split()):
            return "click", {"id": link.id}
    return _click(view, "link", "Next page")


def _choose(wish: Wish, view: View) -> Call:
    """Set the options of the product, then put it into the basket."""
    if wish.colour:
        colour = _found(view, "radio", wish.colour)
        if "checked" not in colour.states:
            return "click", {"id": colour.id}
    if wish.size:
        size = _found(view, "combobox", "Size")
        if size.value != wish.size:
            return "select", {"id": size.id, "option": wish.size}
    quantity = _found(view, "textbox", "Quantity")
    if quantity.value != str(wish.quantity):
        return "type", {"id": quantity.id, "text": str(wish.quantity)}
    return _click(view, "button", "Add to basket")


def _to_the_end(view: View, path: str, spare: Sequence[int]) -> Call:
    if path == "/basket" and spare:
        buttons = list(view.all("button", name="Remove"))
        return "click", {"id": buttons[spare[0]].id}
    if path == "/checkout" and not spare:
        return _click(view, "button", "Place order")
    if path == "/basket":
        return _click(view, "link", "Check out")
    link = next(node for node in view.all("link") if node.name.startswith("Basket ("))
    return "click", {"id": link.id}


def _click(view: View, role: str, name: str) -> Call:
    return "click", {"id": _found(view, role, name).id}


def _found(view: View, role: str, name: str | None = None) -> Node:
    node = view.first(role, name=name)
    if node is None:
        raise EnvError(f"the scripted customer does not find the {role} {name!r} on the page")
    return node
