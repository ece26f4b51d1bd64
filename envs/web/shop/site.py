"""The shop's server: what a request does to a customer's session, and which page answers it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from agentgym.envs.web.browser.server import Request, Response, redirect
from agentgym.envs.web.shop import pages
from agentgym.envs.web.shop.catalogue import SIZE, SORTS, Filters, Product, catalogue, search
from agentgym.envs.web.shop.state import MOST_LINES, MOST_QUANTITY, Customer, Line

HOST = "shop.test"
MOST_DIGITS = 5
"""Longer numbers are none."""
MOST_OPTION_CHARS = 40
"""Of what was typed as an option, this much is shown again."""
_OPTIONS = ("colour", "size", "quantity")
_HEADERS = {
    # No page of the shop has script, and none that is typed into it is run.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'",
    "Cache-Control": "no-store",
}


def respond(request: Request) -> Response:
    """Answer one request of a customer."""
    customer: Customer = request.session
    if request.method == "POST":
        return _changed(request, customer)
    match request.path.strip("/").split("/"):
        case [""]:
            return _page(pages.home(customer))
        case ["search"]:
            return _page(_results(request, customer))
        case ["product", number] if _is_number(number) and int(number) < SIZE:
            return _page(_product(request, customer, int(number)))
        case ["basket"]:
            return _page(pages.basket(customer))
        case ["checkout"]:
            return _page(pages.checkout(customer))
        case ["thanks"] if customer.order is not None:
            return _page(pages.thanks(customer))
        case ["account"]:
            problem = "The password is wrong." if "wrong" in request.query else ""
            return _page(pages.account(customer, problem=problem))
        case ["style.css"]:
            return Response(body=pages.STYLE, content_type="text/css")
        case _:
            return _page(pages.not_found(customer), status=404)


def _changed(request: Request, customer: Customer) -> Response:
    # Each answer leads to a page of its own: one that answers a form itself cannot be gone back to.
    match request.path.strip("/").split("/"):
        case ["product", number] if _is_number(number) and int(number) < SIZE:
            return _add(request, customer, int(number))
        case ["remove", number] if _is_number(number) and int(number) < len(customer.basket):
            del customer.basket[int(number)]
            return redirect("/basket")
        case ["remove", _]:
            return redirect("/basket")
        case ["order"] if customer.is_signed_in and customer.basket and customer.order is None:
            customer.order, customer.basket = tuple(customer.basket), []
            return redirect("/thanks")
        case ["order"]:
            return redirect("/checkout")
        case ["signout"]:
            customer.is_signed_in = False
            return redirect("/account")
        case ["signin"]:
            # Nobody was told a password: who signs out stays out until the next episode.
            return redirect("/account?wrong=1")
        case _:
            return redirect("/not-found")


def _product(request: Request, customer: Customer, number: int) -> str:
    """Return a product's page; with options in its address, why they could not be added."""
    product, form = catalogue()[number], request.query
    problem = _problem(product, customer, form) if form else ""
    return pages.product(customer, product, problem=problem, form=form)


def _add(request: Request, customer: Customer, number: int) -> Response:
    product, form = catalogue()[number], request.form
    if _problem(product, customer, form):
        given = {name: form.get(name, "")[:MOST_OPTION_CHARS] for name in _OPTIONS}
        return redirect(f"/product/{number}?{urlencode(given)}")
    quantity = form["quantity"].strip()
    size = form["size"] if product.sizes else ""
    line = Line(product=product, colour=form["colour"], size=size, quantity=int(quantity))
    customer.basket.append(line)
    return redirect("/basket")


def _problem(product: Product, customer: Customer, form: Mapping[str, str]) -> str:
    quantity = form.get("quantity", "").strip()
    if form.get("colour") not in product.colours:
        return "Choose a colour."
    if product.sizes and form.get("size") not in product.sizes:
        return "Choose a size."
    if not (_is_number(quantity) and 1 <= int(quantity) <= MOST_QUANTITY):
        return f"The quantity must be a whole number from 1 to {MOST_QUANTITY}."
    return "The basket is full." if len(customer.basket) >= MOST_LINES else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def _results(request: Request, customer: Customer) -> str:
    asked = request.query
    price = asked.get("price", "").strip().lstrip("$").replace(",", "")
    problem, most = "", None
    if price:
        try:
            most = round(float(price) * 100)
        except (ValueError, OverflowError):
            problem = "The price must be a number."
    filters = Filters(
        department=asked.get("department", ""),
        colour=asked.get("colour", ""),
        size=asked.get("size", ""),
        most_cents=most,
    )
    sort = asked.get("sort", SORTS[0])
    number = asked.get("page", "1")
    wanted = pages.Search(
        query=asked.get("q", ""),
        price=asked.get("price", ""),
        filters=filters,
        sort=sort if sort in SORTS else SORTS[0],
        page=int(number) if _is_number(number) else 1,
    )
    found = search(wanted.query, filters, wanted.sort)
    return pages.results(customer, wanted, found, problem=problem)


def _page(html: str, status: int = 200) -> Response:
    return Response(status=status, body=html.encode(), headers=_HEADERS)
