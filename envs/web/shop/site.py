"""The shop's server: what a request does to a customer's session, and which page answers it."""

from __future__ import annotations

from agentgym.envs.web.server import Request, Response, redirect
from agentgym.envs.web.shop import pages
from agentgym.envs.web.shop.catalogue import SIZE, SORTS, Filters, catalogue, search
from agentgym.envs.web.shop.state import MOST_LINES, MOST_QUANTITY, Customer, Line

HOST = "shop.test"
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
        case ["product", number] if number.isdigit() and int(number) < SIZE:
            return _page(pages.product(customer, catalogue()[int(number)]))
        case ["basket"]:
            return _page(pages.basket(customer))
        case ["checkout"]:
            return _page(pages.checkout(customer))
        case ["thanks"] if customer.order is not None:
            return _page(pages.thanks(customer))
        case ["account"]:
            return _page(pages.account(customer))
        case ["style.css"]:
            return Response(body=pages.STYLE, content_type="text/css")
        case _:
            return _page(pages.not_found(customer), status=404)


def _changed(request: Request, customer: Customer) -> Response:
    match request.path.strip("/").split("/"):
        case ["product", number] if number.isdigit() and int(number) < SIZE:
            return _add(request, customer, int(number))
        case ["remove", number] if number.isdigit() and int(number) < len(customer.basket):
            del customer.basket[int(number)]
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
            return _page(pages.account(customer, problem="The password is wrong."))
        case _:
            return _page(pages.not_found(customer), status=404)


def _add(request: Request, customer: Customer, number: int) -> Response:
    product, form = catalogue()[number], request.form
    quantity = form.get("quantity", "").strip()
    problem = ""
    if form.get("colour") not in product.colours:
        problem = "Choose a colour."
    elif product.sizes and form.get("size") not in product.sizes:
        problem = "Choose a size."
    elif not (quantity.isascii() and quantity.isdigit() and 1 <= int(quantity) <= MOST_QUANTITY):
        problem = f"The quantity must be a whole number from 1 to {MOST_QUANTITY}."
    elif len(customer.basket) >= MOST_LINES:
        problem = "The basket is full."
    if problem:
        return _page(pages.product(customer, product, problem=problem, form=form))
    size = form["size"] if product.sizes else ""
    line = Line(product=product, colour=form["colour"], size=size, quantity=int(quantity))
    customer.basket.append(line)
    return redirect("/basket")


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
        page=int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 1,
    )
    found = search(wanted.query, filters, wanted.sort)
    return pages.results(customer, wanted, found, problem=problem)


def _page(html: str, status: int = 200) -> Response:
    return Response(status=status, body=html.encode(), headers=_HEADERS)
