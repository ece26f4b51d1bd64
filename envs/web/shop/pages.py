"""The shop's pages, as HTML without script. Everything that was typed is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import urlencode

from agentgym.envs.web.shop.catalogue import (
    COLOURS,
    DEPARTMENTS,
    KINDS,
    SORTS,
    Filters,
    Product,
    dollars,
)
from agentgym.envs.web.shop.state import Customer, Line

RESULTS_EACH = 10
"""Results of one page."""
STYLE = b"""body { font: 15px sans-serif; margin: 12px; max-width: 900px }
header, nav { display: flex; gap: 12px; align-items: center; margin-bottom: 10px }
td, th { padding: 4px 10px 4px 0; text-align: left }
fieldset { border: 0; padding: 4px 0 }"""
_SIZES = tuple(dict.fromkeys(size for kind in KINDS for size in kind.sizes))
_NAME = "Robin Vale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was searched for."""

    query: str
    """Words."""
    price: str
    """Highest price as it was typed."""
    filters: Filters
    """What is kept."""
    sort: str
    """Order of the results."""
    page: int
    """Which ten, from 1."""


def home(customer: Customer) -> str:
    """Return the first page: the departments."""
    links = "".join(
        f'<li><a href="/search?{urlencode({"department": name})}">{name}</a></li>'
        for name in DEPARTMENTS
    )
    return _document(customer, "Shop", f"<h1>Departments</h1><ul>{links}</ul>")


def results(
    customer: Customer, wanted: Search, found: Sequence[Product], *, problem: str = ""
) -> str:
    """Return a page of results with the filters."""
    pages = max(1, -(-len(found) // RESULTS_EACH))
    number = min(max(wanted.page, 1), pages)
    shown = found[(number - 1) * RESULTS_EACH : number * RESULTS_EACH]
    items = "".join(
        f'<li><a href="/product/{one.id}">{escape(one.title)}</a> '
        f"<span>{dollars(one.cents)}</span></li>"
        for one in shown
    )
    turns = "".join(
        f'<a href="/search?{escape(_address(wanted, number + step))}">{text}</a> '
        for text, step in (("Previous page", -1), ("Next page", 1))
        if 1 <= number + step <= pages
    )
    body = (
        f"<h1>{len(found)} results, page {number} of {pages}</h1>{_problem(problem)}"
        f"{_filters(wanted)}<ol>{items}</ol><p>{turns}</p>"
    )
    return _document(customer, "Results", body, query=wanted.query)


def product(
    customer: Customer,
    shown: Product,
    *,
    problem: str = "",
    form: Mapping[str, str] | None = None,
) -> str:
    """Return the page of a product with its options."""
    given = form or {}
    colours = "".join(
        f'<label><input type="radio" name="colour" value="{colour}"'
        f"{_if(given.get('colour', shown.colours[0]) == colour, ' checked')}> {colour}</label> "
        for colour in shown.colours
    )
    sizes = ""
    if shown.sizes:
        chosen = given.get("size", shown.sizes[0])
        sizes = f"<p><label>Size {_choice('size', shown.sizes, chosen)}</label></p>"
    quantity = escape(given.get("quantity", "1"), quote=True)
    body = (
        f"<h1>{escape(shown.title)}</h1><p>{dollars(shown.cents)}</p>"
        f"<p>{shown.kind.department}, rated {shown.rating} of 5</p>{_problem(problem)}"
        f'<form method="post" action="/product/{shown.id}">'
        f"<fieldset>{colours}</fieldset>{sizes}"
        f'<p><label>Quantity <input name="quantity" size="3" value="{quantity}"></label></p>'
        "<button>Add to basket</button></form>"
    )
    return _document(customer, shown.title, body)


def basket(customer: Customer) -> str:
    """Return the basket."""
    if not customer.basket:
        return _document(customer, "Basket", "<h1>Basket</h1><p>The basket is empty.</p>")
    rows = "".join(
        f"<tr>{_cells(line)}<td><form method='post' action='/remove/{number}'>"
        "<button>Remove</button></form></td></tr>"
        for number, line in enumerate(customer.basket)
    )
    body = (
        f"<h1>Basket</h1><table>{rows}</table><p>Total {_total(customer.basket)}</p>"
        '<p><a href="/checkout">Check out</a></p>'
    )
    return _document(customer, "Basket", body)


def checkout(customer: Customer) -> str:
    """Return the page that places the order."""
    if not customer.is_signed_in:
        body = '<h1>Check out</h1><p>Sign in to order. <a href="/account">Sign in</a></p>'
    elif not customer.basket:
        body = "<h1>Check out</h1><p>The basket is empty.</p>"
    else:
        rows = "".join(f"<tr>{_cells(line)}</tr>" for line in customer.basket)
        body = (
            f"<h1>Check out</h1><table>{rows}</table><p>Total {_total(customer.basket)}</p>"
            f"<p>Deliver to {_NAME}, 4 Mill Lane</p>"
            '<form method="post" action="/order"><button>Place order</button></form>'
        )
    return _document(customer, "Check out", body)


def thanks(customer: Customer) -> str:
    """Return what is read after the order."""
    return _document(customer, "Thank you", "<h1>Thank you. The order is placed.</h1>")


def account(customer: Customer, *, problem: str = "") -> str:
    """Return the account, or the form to sign in."""
    if customer.is_signed_in:
        body = f"<h1>Account</h1><p>{_NAME}, 4 Mill Lane</p>"
    else:
        body = (
            f"<h1>Sign in</h1>{_problem(problem)}<form method='post' action='/signin'>"
            '<p><label>Password <input type="password" name="password"></label></p>'
            "<button>Sign in</button></form>"
        )
    return _document(customer, "Account", body)


def not_found(customer: Customer) -> str:
    """Return the page for an address that leads nowhere."""
    return _document(customer, "Not found", "<h1>There is no such page.</h1>")


# -- pieces ------------------------------------------------------------------------------------


def _document(customer: Customer, title: str, body: str, *, query: str = "") -> str:
    signed = (
        f'<a href="/account">{_NAME}</a><form method="post" action="/signout">'
        "<button>Sign out</button></form>"
        if customer.is_signed_in
        else '<a href="/account">Sign in</a>'
    )
    return (
        f"<!DOCTYPE html><html lang='en'><head><title>{escape(title)}</title>"
        "<link rel='stylesheet' href='/style.css'></head><body><header><a href='/'>Shop</a>"
        "<form action='/search'><input name='q' type='search' aria-label='Search products' "
        f'value="{escape(query, quote=True)}"><button>Search</button></form>'
        f'<a href="/basket">Basket ({len(customer.basket)})</a>{signed}</header>'
        f"<main>{body}</main></body></html>"
    )


def _filters(wanted: Search) -> str:
    kept = wanted.filters
    query, price = escape(wanted.query, quote=True), escape(wanted.price, quote=True)
    any_department = ("", *DEPARTMENTS)
    return (
        f"<form action='/search'><input type='hidden' name='q' value=\"{query}\">"
        f"<label>Department {_choice('department', any_department, kept.department)}</label> "
        f"<label>Colour {_choice('colour', ('', *COLOURS), kept.colour)}</label> "
        f"<label>Size {_choice('size', ('', *_SIZES), kept.size)}</label> "
        f"<label>Price at most <input name='price' size='6' value=\"{price}\"></label> "
        f"<label>Order {_choice('sort', SORTS, wanted.sort)}</label> "
        "<button>Apply filters</button></form>"
    )


def _choice(name: str, options: Iterable[str], chosen: str) -> str:
    items = "".join(
        f'<option value="{option}"{_if(option == chosen, " selected")}>{option or "any"}</option>'
        for option in options
    )
    return f'<select name="{name}">{items}</select>'


def _cells(line: Line) -> str:
    options = ", ".join(part for part in (line.colour, line.size) if part)
    return (
        f"<td>{escape(line.product.title)}</td><td>{options}</td>"
        f"<td>{line.quantity} x {dollars(line.product.cents)}</td>"
    )


def _total(lines: Sequence[Line]) -> str:
    return dollars(sum(line.quantity * line.product.cents for line in lines))


def _address(wanted: Search, page: int) -> str:
    kept = wanted.filters
    fields = {
        "q": wanted.query,
        "department": kept.department,
        "colour": kept.colour,
        "size": kept.size,
        "price": wanted.price,
        "sort": wanted.sort,
        "page": str(page),
    }
    return urlencode({name: text for name, text in fields.items() if text})


def _problem(text: str) -> str:
    return f'<p role="alert">{escape(text)}</p>' if text else ""


def _if(condition: bool, text: str) -> str:
    return text if condition else ""
