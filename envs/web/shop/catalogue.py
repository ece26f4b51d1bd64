"""The shop's 10,000 products, generated: the same ones in every process, with a search over them.

In order: kinds of products, `Product`, `catalogue`, `search`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym import seeding

SIZE = 10_000
COLOURS = (
    "black",
    "white",
    "grey",
    "red",
    "blue",
    "green",
    "yellow",
    "brown",
    "purple",
    "orange",
)
_CLOTHES_SIZES = ("S", "M", "L", "XL")
_SHOE_SIZES = ("38", "40", "42", "44")
_BED_SIZES = ("single", "double", "king")
_BRANDS_HEAD = ("Hal", "Bro", "Ves", "Nor", "Tam", "Lin", "Ker", "Ost", "Mar", "Quil")
_BRANDS_TAIL = ("den", "wick", "tra", "mont", "ley", "ford")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What kind of thing products are."""

    name: str
    """`wool scarf` without the wool."""
    department: str
    """Where it is listed."""
    materials: tuple[str, ...]
    """What it may be made of."""
    features: tuple[str, ...]
    """What it may be like."""
    price: tuple[int, int]
    """Lowest and highest price, in whole dollars."""
    sizes: tuple[str, ...] = ()
    """Sizes it may come in; none where it has no size."""


_CLOTH = ("cotton", "linen", "wool", "fleece")
_HARD = ("steel", "oak", "bamboo", "glass")
_SOFT = ("leather", "canvas", "nylon", "suede")
_ROWS = (
    ("Clothing", "jacket sweater shirt vest scarf", _CLOTH, (12, 90), _CLOTHES_SIZES),
    ("Shoes", "boots sneakers sandals slippers loafers", _SOFT, (25, 160), _SHOE_SIZES),
    ("Bedding", "blanket duvet pillowcase bedspread sheet", _CLOTH, (15, 140), _BED_SIZES),
    ("Bags", "backpack suitcase briefcase handbag satchel", _SOFT, (18, 150), ()),
    ("Kitchen", "bowl tray canister pitcher jar", _HARD, (6, 80), ()),
    ("Furniture", "table chair shelf stool bench", _HARD, (30, 400), ()),
    ("Lighting", "lantern floorlamp nightlight spotlight chandelier", _HARD, (14, 120), ()),
    ("Garden", "planter trellis birdhouse fountain windchime", _HARD, (10, 200), ()),
)
"""Department, kinds, materials, range of prices, sizes."""
_FEATURES = {
    "Clothing": "hooded striped slim padded quilted",
    "Shoes": "laced padded waterproof slim lined",
    "Bedding": "striped quilted plain washed fitted",
    "Bags": "rolling padded waterproof slim expandable",
    "Kitchen": "stackable lidded compact engraved nonslip",
    "Furniture": "folding compact stackable adjustable portable",
    "Lighting": "dimmable folding adjustable rotating wireless",
    "Garden": "hanging folding raised portable rounded",
}
"""Department -> what its products may be like."""

KINDS = tuple(
    Kind(
        name=name,
        department=department,
        materials=materials,
        features=tuple(_FEATURES[department].split()),
        price=price,
        sizes=sizes,
    )
    for department, names, materials, price, sizes in _ROWS
    for name in names.split()
)
DEPARTMENTS = tuple(dict.fromkeys(kind.department for kind in KINDS))
BRANDS = tuple(head + tail for head in _BRANDS_HEAD for tail in _BRANDS_TAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product.

    Example:
        Product(id=17, kind=jacket, brand="Halden", material="wool", feature="hooded", cents=4950,
                rating=4.2, colours=("red", "blue"), sizes=("M", "L"))
    """

    id: int
    """Number in the catalogue."""
    kind: Kind
    """What it is."""
    brand: str
    """Who makes it."""
    material: str
    """What it is made of."""
    feature: str
    """What it is like."""
    cents: int
    """Price."""
    rating: float
    """Mean of its reviews, from 1 to 5."""
    colours: tuple[str, ...]
    """Colours on offer."""
    sizes: tuple[str, ...]
    """Sizes on offer; none where it has no size."""

    @property
    def title(self) -> str:
        """Its name: `Halden hooded wool jacket`."""
        return f"{self.brand} {self.feature} {self.material} {self.kind.name}"


@functools.cache
def catalogue() -> tuple[Product, ...]:
    """Return every product, by id."""
    return tuple(_product(number) for number in range(SIZE))


def _product(number: int) -> Product:
    # Kind, material and feature in turn, so that each of the combinations has ten products.
    kind = KINDS[number % len(KINDS)]
    turn = number // len(KINDS)
    material = kind.materials[turn % len(kind.materials)]
    feature = kind.features[turn // len(kind.materials) % len(kind.features)]
    rng = seeding.rng("shop catalogue", number)
    low, high = kind.price
    colours = sorted(rng.sample(COLOURS, rng.randint(3, 6)))
    sizes = (
        sorted(rng.sample(range(len(kind.sizes)), rng.randint(2, len(kind.sizes))))
        if (kind.sizes)
        else []
    )
    return Product(
        id=number,
        kind=kind,
        brand=rng.choice(BRANDS),
        material=material,
        feature=feature,
        cents=100 * rng.randint(low, high) - rng.choice((1, 5, 50, 100)),
        rating=rng.randint(20, 50) / 10,
        colours=tuple(colours),
        sizes=tuple(kind.sizes[index] for index in sizes),
    )


# -- search ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What results are narrowed to."""

    department: str = ""
    """Only of it; all if empty."""
    colour: str = ""
    """Only with it; any if empty."""
    size: str = ""
    """Only with it; any if empty."""
    most_cents: int | None = None
    """Price at most."""

    def keeps(self, product: Product) -> bool:
        """Return whether a product passes."""
        return (
            self.department in {"", product.kind.department}
            and (not self.colour or self.colour in product.colours)
            and (not self.size or self.size in product.sizes)
            and (self.most_cents is None or product.cents <= self.most_cents)
        )


SORTS = ("best match", "price, low to high", "price, high to low", "rating")


def search(query: str, filters: Filters, sort: str = SORTS[0]) -> tuple[Product, ...]:
    """Return products that share a word with the query, most words first, then by number.

    Without a word in the query every product counts as found.
    """
    products = catalogue()
    words = set(words_of(query))
    if words:
        postings = _postings()
        counts: dict[int, int] = {}
        for word in words:
            for number in postings.get(word, ()):
                counts[number] = counts.get(number, 0) + 1
        order: Sequence[int] = sorted(counts, key=lambda number: (-counts[number], number))
    else:
        order = range(len(products))
    found = [products[number] for number in order if filters.keeps(products[number])]
    if sort == SORTS[1]:
        found.sort(key=lambda product: product.cents)
    elif sort == SORTS[2]:
        found.sort(key=lambda product: -product.cents)
    elif sort == SORTS[3]:
        found.sort(key=lambda product: -product.rating)
    return tuple(found)


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded."""
    return re.findall(r"[a-z0-9]+", text.lower())


@functools.cache
def _postings() -> Mapping[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for product in catalogue():
        for word in dict.fromkeys(words_of(product.title)):
            found.setdefault(word, []).append(product.id)
    return {word: tuple(numbers) for word, numbers in found.items()}


def dollars(cents: int) -> str:
    """Return a price as it is written."""
    return f"${cents / 100:,.2f}"
