"""What the shop's server keeps of one customer, and what an order is worth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.web.shop.catalogue import Product

MOST_LINES = 20
MOST_QUANTITY = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a basket."""

    product: Product
    """What."""
    colour: str
    """In which colour."""
    size: str
    """In which size; empty where it has none."""
    quantity: int
    """How many."""


@dataclass(slots=True, kw_only=True)
class Customer:
    """One customer's session, on the server. It changes as pages are used."""

    basket: list[Line] = field(default_factory=list[Line])
    """What lies in the basket."""
    order: tuple[Line, ...] | None = None
    """What was ordered; None before that."""
    is_signed_in: bool = True
    """Whether the stored account is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One thing that is to be ordered. What is empty or None does not matter.

    Example:
        Wish(kind="jacket", material="wool", feature="hooded", colour="red", most_cents=6000)
    """

    kind: str
    """Kind of the product."""
    material: str
    """Its material."""
    feature: str
    """Its feature."""
    brand: str = ""
    """Its maker."""
    colour: str = ""
    """In which colour."""
    size: str = ""
    """In which size."""
    most_cents: int | None = None
    """Price at most, of one piece."""
    quantity: int = 1
    """How many pieces."""

    def accepts(self, product: Product) -> bool:
        """Return whether a product can fulfil the wish."""
        return (
            (self.kind, self.material, self.feature)
            == (product.kind.name, product.material, product.feature)
            and self.brand in {"", product.brand}
            and (not self.colour or self.colour in product.colours)
            and (not self.size or self.size in product.sizes)
            and (self.most_cents is None or product.cents <= self.most_cents)
        )

    def match(self, line: Line) -> float:
        """Return the share of what was wished that a line has; 0 for another kind of thing."""
        product = line.product
        if product.kind.name != self.kind:
            return 0.0
        parts = [
            product.material == self.material,
            product.feature == self.feature,
            line.quantity == self.quantity,
        ]
        if self.brand:
            parts.append(product.brand == self.brand)
        if self.colour:
            parts.append(line.colour == self.colour)
        if self.size:
            parts.append(line.size == self.size)
        if self.most_cents is not None:
            parts.append(product.cents <= self.most_cents)
        return sum(parts) / len(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a task's payload holds them."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Wish:
        """Return the wish of a payload."""
        return cls(**fields)


def score(wishes: Sequence[Wish], lines: Sequence[Line] | None) -> float:
    """Return how well an order fulfils the wishes, in [0, 1]; 0 without an order.

    Each wish takes the line that fits it best, each line serves one wish; the mean over the wishes
    is lowered by lines that nobody wished for.
    """
    if not lines:
        return 0.0
    padded = [*lines, *([None] * (len(wishes) - len(lines)))]
    best = max(
        sum(wish.match(line) for wish, line in zip(wishes, chosen, strict=True) if line is not None)
        for chosen in itertools.permutations(padded, len(wishes))
    )
    return best / max(len(wishes), len(lines))
