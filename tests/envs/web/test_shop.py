"""The shop: catalogue, search, scores by hand, pages without a browser; the whole with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from agentgym.env import registry
from agentgym.env.suites import check_leaks, load_suite
from agentgym.envs.web.browser.server import Request
from agentgym.envs.web.shop.catalogue import (
    KINDS,
    SIZE,
    SORTS,
    Filters,
    catalogue,
    dollars,
    search,
)
from agentgym.envs.web.shop.site import HOST, respond
from agentgym.envs.web.shop.state import Customer, Line, Wish, score
from agentgym.envs.web.shop.tasks import ENV_ID, LEVELS, generate_task, is_held_out
from agentgym.errors import EnvError

JACKET = next(
    product
    for product in catalogue()
    if (product.kind.name, product.material, product.feature) == ("jacket", "wool", "hooded")
)
OTHER = next(
    product
    for product in catalogue()
    if (product.kind.name, product.material, product.feature) == ("jacket", "wool", "striped")
)
BOWL = next(product for product in catalogue() if product.kind.name == "bowl")


def line(product: Any = JACKET, **changes: Any) -> Line:
    given = {"colour": product.colours[0], "size": "", "quantity": 1, **changes}
    return Line(product=product, **given)


# -- catalogue ---------------------------------------------------------------------------------


def test_catalogue_has_ten_products_of_each_combination() -> None:
    """40 kinds x 4 materials x 5 features = 800 combinations; 10,000 / 800 = 12.5."""
    assert len(catalogue()) == SIZE == 10_000
    assert len(KINDS) == 40
    counts: dict[tuple[str, str, str], int] = {}
    for product in catalogue():
        key = (product.kind.name, product.material, product.feature)
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 800
    assert set(counts.values()) == {12, 13}


def test_products_are_well_formed() -> None:
    for product in catalogue()[:2000]:
        low, high = product.kind.price
        assert 100 * low - 100 <= product.cents <= 100 * high
        assert 3 <= len(set(product.colours)) <= 6
        assert bool(product.sizes) == bool(product.kind.sizes)


def test_search_puts_most_words_first_then_the_lower_number() -> None:
    found = search("hooded wool jacket", Filters())
    titles = [set(product.title.split()) for product in found]
    full = [number for number, words in enumerate(titles) if {"hooded", "wool", "jacket"} <= words]
    assert full == list(range(len(full)))
    assert len(full) >= 12
    numbers = [product.id for product in found[: len(full)]]
    assert numbers == sorted(numbers)


def test_search_filters_and_sorts() -> None:
    filters = Filters(colour="red", size="M", most_cents=3000, department="Clothing")
    found = search("wool", filters, SORTS[1])
    assert found
    assert all("red" in p.colours and "M" in p.sizes and p.cents <= 3000 for p in found)
    assert [p.cents for p in found] == sorted(p.cents for p in found)
    assert search("zzz", Filters()) == ()
    assert len(search("", Filters())) == SIZE


def test_prices_are_written_with_cents() -> None:
    assert dollars(4905) == "$49.05"
    assert dollars(123400) == "$1,234.00"


# -- scores ------------------------------------------------------------------------------------

WISH = Wish(
    kind="jacket",
    material="wool",
    feature="hooded",
    colour=JACKET.colours[0],
    most_cents=JACKET.cents,
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((line(),), 1.0),
        ((line(colour=JACKET.colours[1]),), 0.8),  # 4 of 5: material, feature, number, price
        ((line(quantity=3),), 0.8),
        ((line(BOWL),), 0.0),  # another kind of thing
        ((line(), line(BOWL)), 0.5),  # the wish is fulfilled, half of the lines are not wished for
        ((line(BOWL), line()), 0.5),  # whatever their order
        ((), 0.0),
        (None, 0.0),
    ],
)
def test_score_of_one_wish(lines: Any, expected: float) -> None:
    assert score((WISH,), lines) == pytest.approx(expected)


def test_score_of_another_feature_and_a_higher_price() -> None:
    wish = Wish(kind="jacket", material="wool", feature="hooded", most_cents=OTHER.cents - 1)
    # material and number fit, feature and price do not: 2 of 4.
    assert score((wish,), (line(OTHER),)) == pytest.approx(0.5)


def test_score_of_two_wishes_takes_the_better_assignment() -> None:
    second = Wish(kind="jacket", material="wool", feature="striped")
    both = (line(OTHER), line())
    assert score((WISH, second), both) == pytest.approx(1.0)
    # One of two wishes fulfilled by the one line.
    assert score((WISH, second), (line(),)) == pytest.approx(0.5)


def test_a_line_serves_one_wish_only() -> None:
    twice = (WISH, WISH)
    assert score(twice, (line(),)) == pytest.approx(0.5)
    assert score(twice, (line(), line())) == pytest.approx(1.0)


# -- tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_goals_can_be_fulfilled_and_say_what_counts(level: int) -> None:
    for index in range(40):
        task = generate_task(index, levels=[level])
        fields: Any = task.payload["wishes"]
        for wish in map(Wish.from_json, fields):
            assert any(map(wish.accepts, catalogue()))
            said = [wish.kind, wish.material, wish.feature, wish.brand, wish.colour, wish.size]
            said += [dollars(wish.most_cents)] if wish.most_cents is not None else []
            assert all(word in task.prompt for word in said)
            assert not is_held_out(wish.kind, wish.material, wish.feature)


def test_splits_share_no_combination_m6() -> None:
    suite = load_suite("web/shop")
    train, held_out = suite.tasks("train", limit=500), suite.tasks("held_out", limit=500)
    check_leaks(train, held_out)

    def combinations(tasks: Any) -> set[tuple[str, str, str]]:
        wishes = [wish for task in tasks for wish in task.payload["wishes"]]
        return {(wish["kind"], wish["material"], wish["feature"]) for wish in wishes}

    assert combinations(train).isdisjoint(combinations(held_out))


def test_wrong_levels_are_named() -> None:
    with pytest.raises(EnvError, match="'levels' must be some of"):
        generate_task(0, levels=[6])


# -- the server, without a browser -------------------------------------------------------------


def get(customer: Customer, path: str, **query: str) -> str:
    request = Request(method="GET", host=HOST, path=path, query=query, session=customer)
    answer: Any = respond(request)
    return answer.body.decode()


def post(customer: Customer, path: str, **form: str) -> Any:
    request = Request(method="POST", host=HOST, path=path, form=form, session=customer)
    return respond(request)


def followed(customer: Customer, answer: Any) -> str:
    """Return the page that the answer to a form leads to: none is a page itself."""
    assert answer.status == 303
    url = urlsplit(answer.headers["Location"])
    return get(customer, url.path, **dict(parse_qsl(url.query, keep_blank_values=True)))


def test_order_is_what_lay_in_the_basket() -> None:
    customer = Customer()
    added = {"colour": JACKET.colours[0], "quantity": "2"}
    size = {"size": JACKET.sizes[0]}
    assert post(customer, f"/product/{JACKET.id}", **added, **size).status == 303
    assert len(customer.basket) == 1
    assert customer.basket[0].quantity == 2
    assert post(customer, "/order").headers["Location"] == "/thanks"
    assert customer.order == (line(size=JACKET.sizes[0], quantity=2),)
    # The first order counts.
    post(customer, f"/product/{BOWL.id}", colour=BOWL.colours[0], quantity="1")
    assert post(customer, "/order").headers["Location"] == "/checkout"
    assert customer.order == (line(size=JACKET.sizes[0], quantity=2),)


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"colour": "mauve", "quantity": "1"}, "Choose a colour."),
        ({"colour": BOWL.colours[0], "quantity": "0"}, "The quantity must be"),
        ({"colour": BOWL.colours[0], "quantity": "-1"}, "The quantity must be"),
        ({"colour": BOWL.colours[0], "quantity": "100"}, "The quantity must be"),
        ({"colour": BOWL.colours[0], "quantity": "٣"}, "The quantity must be"),
    ],
)
def test_wrong_choices_are_told(form: dict[str, str], problem: str) -> None:
    customer = Customer()
    assert problem in followed(customer, post(customer, f"/product/{BOWL.id}", **form))
    assert customer.basket == []


def test_removed_line_is_gone() -> None:
    customer = Customer(basket=[line(), line(BOWL)])
    post(customer, "/remove/0")
    assert customer.basket == [line(BOWL)]
    for number in ("7", "x", "²"):
        assert post(customer, f"/remove/{number}").headers["Location"] == "/basket"
    assert customer.basket == [line(BOWL)]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_what_is_typed_is_escaped(text: str) -> None:
    customer = Customer()
    page = get(customer, "/search", q=text, price=text)
    answer = post(customer, f"/product/{BOWL.id}", colour=BOWL.colours[0], quantity=text)
    page += followed(customer, answer)
    assert text not in page
    assert "<script" not in page
    assert "<img" not in page


def test_pages_have_no_script() -> None:
    request = Request(method="GET", host=HOST, path="/", session=Customer())
    response: Any = respond(request)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


def test_signed_out_customer_cannot_order() -> None:
    customer = Customer(basket=[line()])
    post(customer, "/signout")
    assert "Place order" not in get(customer, "/checkout")
    post(customer, "/order")
    assert customer.order is None
    assert "The password is wrong." in followed(customer, post(customer, "/signin", password="x"))


@pytest.mark.parametrize(
    "path", ["/product/10000", "/product/x", "/product/²", "/nope", "/thanks", "/order"]
)
def test_no_such_page(path: str) -> None:
    assert "There is no such page." in get(Customer(), path)


# -- with a browser ----------------------------------------------------------------------------


@pytest.fixture
def env(chromium: str) -> Iterator[Any]:
    env = registry.make(ENV_ID)
    yield env
    env.close()


def play_expert(env: Any, task: Any) -> tuple[float, int]:
    env.reset(seed=0, options={"task": task})
    for turn in range(env.limits.max_turns):
        _, _, terminated, _, info = env.step(env.expert())
        if terminated:
            return info["outcome"], turn + 1
    raise AssertionError(f"{task.id} has no end")


def solve_held_out(env: Any, count: int) -> None:
    for index in range(count):
        task = generate_task(index, split="held_out")
        assert play_expert(env, task)[0] == 1.0, task.id


@pytest.mark.service
def test_expert_orders_ten_held_out_tasks(env: Any) -> None:
    solve_held_out(env, 10)


@pytest.mark.service
@pytest.mark.soak
def test_expert_orders_200_held_out_tasks(env: Any) -> None:
    solve_held_out(env, 200)


@pytest.mark.service
def test_next_customer_is_signed_in_again_k2(env: Any) -> None:
    task = generate_task(0)
    env.reset(seed=0, options={"task": task})
    button = env.view.first("button", name="Sign out")
    observation, *_ = env.step(f"<click>{button.id}</click>")
    assert "Sign in" in observation
    assert not env.customer.is_signed_in
    observation, _ = env.reset(seed=0, options={"task": task})
    assert "Robin Vale" in observation
    assert env.customer.is_signed_in
    assert play_expert(env, task)[0] == 1.0


@pytest.mark.service
def test_page_that_answered_a_form_can_be_gone_back_to(env: Any) -> None:
    """A wrong quantity, then the basket, then back."""
    env.reset(seed=0, options={"task": generate_task(0)})
    env.session.evaluate(f"() => {{ location.href = '/product/{BOWL.id}'; }}")
    env.step("<press>Escape</press>")
    box = env.view.first("textbox", name="Quantity")
    env.step(f"<type><id>{box.id}</id><text>abc</text></type>")
    observation, *_ = env.step(
        f"<click>{env.view.first('button', name='Add to basket').id}</click>"
    )
    assert "The quantity must be a whole number" in observation
    basket = next(n for n in env.view.nodes if n.role == "link" and n.name.startswith("Basket"))
    env.step(f"<click>{basket.id}</click>")
    observation, *_ = env.step("<back></back>")
    assert "The quantity must be a whole number" in observation
    assert 'value="abc"' in observation


@pytest.mark.service
def test_score_touches_no_page_and_no_page_is_the_score_k3(env: Any) -> None:
    """The outcome is asked for with a half-filled form; then the page of thanks is opened."""
    env.reset(seed=0, options={"task": generate_task(1)})
    box = env.view.first("searchbox")
    env.step(f"<type><id>{box.id}</id><text>half</text></type>")
    before = (env.view.url, env.session.evaluate("() => document.querySelector('input').value"))
    assert env.outcome() == 0.0
    value = env.session.evaluate("() => document.querySelector('input').value")
    assert (env.session.evaluate("() => location.href"), value) == before
    env.session.evaluate("() => { location.href = '/thanks'; }")
    _, _, terminated, _, info = env.step("<press>Escape</press>")
    assert not terminated
    assert env.outcome() == 0.0
    assert "outcome" not in info


@pytest.mark.service
def test_full_basket_without_an_order_is_nothing(env: Any) -> None:
    env.reset(seed=0, options={"task": generate_task(0, levels=[1])})
    for _ in range(env.limits.max_turns):
        action = env.expert()
        if env.view.url.endswith("/checkout"):
            break
        env.step(action)
    assert len(env.customer.basket) == 1
    _, reward, terminated, _, info = env.step("<answer>I ordered it.</answer>")
    assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)
