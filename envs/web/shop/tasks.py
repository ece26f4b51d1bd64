"""Tasks of `web/shop-v0`: levels 1 to 5, train and held-out splits, one task an index.

| level | what is asked |
|---|---|
| 1 | one product by its full name |
| 2 | by what it is like and made of, in a colour |
| 3 | also at a price |
| 4 | also in a size where it has sizes, and several pieces |
| 5 | two products as in level 3, in one order |

Whether a task is held out depends on the kinds, materials and features alone: no combination of a
held-out task is ever asked for in training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.web.shop.catalogue import Product, catalogue, dollars
from agentgym.envs.web.shop.state import Wish
from agentgym.records import Task

ENV_ID = "web/shop-v0"
SPLITS = splits.SPLITS
LEVELS = (1, 2, 3, 4, 5)
HELD_OUT_SHARE = 4
"""One combination of kind, material and feature in so many is held out."""
_WORDS = {2: "two", 3: "three", 4: "four"}
_PLURAL = frozenset({"boots", "sneakers", "sandals", "slippers", "loafers"})


def is_held_out(kind: str, material: str, feature: str) -> bool:
    """Return whether a combination belongs to the held-out split."""
    return seeding.derive("shop", kind, material, feature) % HELD_OUT_SHARE == 0


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels in order.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    return splits.check_levels(levels, LEVELS)


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; levels take turns.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    rng = seeding.rng("shop", level, split, number)
    wishes = _draw(rng, level, split)
    return Task(
        id=f"shop-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=_goal(rng, wishes),
        payload={"level": level, "wishes": [wish.to_json() for wish in wishes]},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def draw_task(rng: random.Random, *, levels: Sequence[int] = LEVELS) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(2**31), levels=levels)


def _draw(rng: random.Random, level: int, split: str) -> tuple[Wish, ...]:
    wishes: list[Wish] = []
    while len(wishes) < (2 if level == 5 else 1):
        product = rng.choice(catalogue())
        names = (product.kind.name, product.material, product.feature)
        is_new = all(wish.kind != product.kind.name for wish in wishes)
        if is_new and is_held_out(*names) == (split == "held_out"):
            wishes.append(_wish(rng, product, level))
    return tuple(wishes)


def _wish(rng: random.Random, product: Product, level: int) -> Wish:
    """Return a wish that this product fulfils."""
    has_size = level == 4 and bool(product.sizes)
    return Wish(
        kind=product.kind.name,
        material=product.material,
        feature=product.feature,
        brand=product.brand if level == 1 else "",
        colour=rng.choice(product.colours) if level > 1 else "",
        size=rng.choice(product.sizes) if has_size else "",
        most_cents=100 * (product.cents // 100 + rng.randint(1, 3)) if level > 2 else None,
        quantity=rng.randint(2, 4) if level == 4 else 1,
    )


def _goal(rng: random.Random, wishes: Sequence[Wish]) -> str:
    said = " and ".join(_said(rng, wish) for wish in wishes)
    frame = rng.choice(
        ("Buy {}.", "Order {} from the shop.", "I need {}. Please order it.", "Get me {}.")
    )
    return frame.format(said)


def _said(rng: random.Random, wish: Wish) -> str:
    what = f"{wish.feature} {wish.material} {wish.kind}"
    if wish.brand:
        return f"the {wish.brand} {what}"
    pair = "pairs of " if wish.quantity > 1 else "a pair of "
    if wish.kind in _PLURAL:
        said = f"{pair}{what}"
        said = f"{_WORDS[wish.quantity]} {said}" if wish.quantity > 1 else said
    elif wish.quantity > 1:
        said = f"{_WORDS[wish.quantity]} pieces of a {what}"
    else:
        said = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
    said += rng.choice((f" in {wish.colour}", f", colour {wish.colour}"))
    if wish.size:
        said += f", size {wish.size}"
    if wish.most_cents is not None:
        price = dollars(wish.most_cents)
        said += rng.choice((f", for at most {price}", f", not more than {price}"))
        said += " each" if wish.quantity > 1 else ""
    return said
