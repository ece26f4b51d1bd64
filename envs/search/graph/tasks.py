"""The generator of `search/graph-v0`: levels 1 to 5, train and held-out splits, one task an index.

| level | steps | questions | documents |
|---|---|---|---|
| 1 | 1 | chains | a world of its own of 30 plain documents |
| 2 | 2 | chains | as level 1 |
| 3 | 2 to 3 | chains, comparisons of two | one world for all tasks, of 10,000 in prose |
| 4 | 3 to 4 | also comparisons of three, intersections, and some without an answer | as level 3 |
| 5 | 4 to 5 | as level 4 | as level 3 |

Whether a task is held out depends on the names in its question alone.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym import seeding
from agentgym.envs import splits
from agentgym.envs.search.graph.knowledge_graph import OBJECT, SUBJECT, Kind, Relation, Thing, World
from agentgym.envs.search.graph.questions import (
    BOTH,
    UNKNOWN,
    YEAR_OF,
    Form,
    Program,
    Proof,
    ask,
    prove,
)
from agentgym.envs.search.graph.rendering import PLAIN_RELATIONS
from agentgym.errors import EnvError
from agentgym.records import Task

ENV_ID = "search/graph-v0"
SPLITS = splits.SPLITS
HELD_OUT_SHARE = 8
"""One set of names in so many is held out."""
SHARED_SEED = 0
"""Seed of the world that the levels from 3 on share."""
UNKNOWN_SHARE = 0.12
"""Part of the questions without an answer, from level 4 on: what always answering so may get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How hard questions are."""

    steps: tuple[int, ...]
    """Numbers of steps from the start to the answer."""
    style: str
    """Style of the documents."""
    documents: int
    """How many there are."""
    is_shared: bool
    """Whether all tasks are about one world."""
    compared: int = 0
    """Things in a comparison; 0 for none."""
    shares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Parts of comparisons, of intersections, and of questions without an answer."""


LEVEL_TABLE = {
    1: Level(steps=(1,), style="plain", documents=30, is_shared=False),
    2: Level(steps=(2,), style="plain", documents=30, is_shared=False),
    3: Level(
        steps=(2, 3),
        style="prose",
        documents=10_000,
        is_shared=True,
        compared=2,
        shares=(0.2, 0.0, 0.0),
    ),
    4: Level(
        steps=(3, 4),
        style="prose",
        documents=10_000,
        is_shared=True,
        compared=3,
        shares=(0.2, 0.2, UNKNOWN_SHARE),
    ),
    5: Level(
        steps=(4, 5),
        style="prose",
        documents=10_000,
        is_shared=True,
        compared=3,
        shares=(0.2, 0.2, UNKNOWN_SHARE),
    ),
}
LEVELS = tuple(LEVEL_TABLE)
MOST_STEPS = 5
_TRIES_A_FORM, _MOST_TRIES = 2_000, 40_000
"""Draws before another form is tried, and in all. Worlds of the usual sizes take at most some
hundred; a world of a few dozen documents may have no question of a form in a split, or none."""

_OPEN_ENDED = (Relation.MOTHER, Relation.MENTOR, Relation.EMPLOYER)
"""Relations that the people of the first generation lack."""
_OF_KIND = {kind: tuple(r for r in Relation if SUBJECT[r] is kind) for kind in Kind}


def is_held_out(names: Sequence[str]) -> bool:
    """Return whether a question with these names belongs to the held-out split."""
    return seeding.derive("graph", *sorted(names)) % HELD_OUT_SHARE == 0


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels in order.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    return splits.check_levels(levels, LEVELS)


# By type too: 300.0 is 300 to a dictionary, but no number of documents.
@functools.lru_cache(maxsize=64, typed=True)
def world_of(*, seed: int, documents: int, style: str) -> World:
    """Return a world; the ones used last are kept."""
    return World(seed=seed, size=documents, style=style)


def generate_task(
    index: int,
    *,
    split: str = "train",
    levels: Sequence[int] = LEVELS,
    documents: int | None = None,
    world_seed: int = SHARED_SEED,
) -> Task:
    """Return task number `index` of a split; levels take turns.

    Args:
        index: Position from 0, without an upper bound.
        split: `train` or `held_out`.
        levels: Levels to draw from.
        documents: Size of the worlds; by default as the level says.
        world_seed: Seed of the world that the levels from 3 on share.

    Raises:
        EnvError: If the split, a level, the index or the size is not one, or if the world is too
            small to have such a question.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    number, level = index // len(levels), levels[index % len(levels)]
    rng = seeding.rng("graph", level, split, number, documents or 0)
    spec = LEVEL_TABLE[level]
    size = spec.documents if documents is None else documents
    form = _draw_form(rng, spec)
    for attempt in range(_MOST_TRIES):
        if attempt and attempt % _TRIES_A_FORM == 0:
            form = _draw_form(rng, spec)
        seed = world_seed if spec.is_shared else rng.getrandbits(48)
        world = world_of(seed=seed, documents=size, style=spec.style)
        drawn = _draw(rng, world, spec, form, split)
        if drawn is not None:
            return _task(rng, world, drawn, level=level, split=split, number=number)
    raise EnvError(
        f"no {split} question of level {level} was found in a world of {size} documents: "
        "ask for more 'documents'"
    )


def draw_task(
    rng: random.Random, *, levels: Sequence[int] = LEVELS, documents: int | None = None
) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(2**31), levels=levels, documents=documents)


def _task(
    rng: random.Random,
    world: World,
    drawn: tuple[Program, Proof],
    *,
    level: int,
    split: str,
    number: int,
) -> Task:
    program, proof = drawn
    tags = (f"level-{level}", f"steps-{len(program.steps)}", str(program.form))
    return Task(
        id=f"graph-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=ask(program, style=world.style, chance=rng.getrandbits(64)),
        answers=(proof.answer,),
        payload={
            "level": level,
            "world": {"seed": world.seed, "documents": world.size, "style": world.style},
            "program": program.to_json(),
            "lookups": [[lookup.query, lookup.position] for lookup in proof.lookups],
        },
        difficulty=float(level),
        tags=(*tags, UNKNOWN) if proof.answer == UNKNOWN else tags,
        split=split,
    )


def _draw_form(rng: random.Random, spec: Level) -> str:
    """Return `compared`, `both`, `unknown` or `chain`."""
    rest = 1 - sum(spec.shares)
    return rng.choices(("compared", "both", UNKNOWN, "chain"), (*spec.shares, rest))[0]


def _draw(
    rng: random.Random, world: World, spec: Level, drawn: str, split: str
) -> tuple[Program, Proof] | None:
    """Return a question with its proof, or None where the draw breaks a rule."""
    steps = rng.choice(spec.steps)
    is_unknown = drawn == UNKNOWN
    if drawn == "compared":
        form, named = _draw_compared(rng, world, spec.compared)
    elif drawn == "both":
        form, named = Form.BOTH, _draw_both(rng, world)
        steps -= 1  # finding the thing is a step of its own
    else:
        form, named = Form.CHAIN, (_draw_thing(rng, world, tuple(world.counts)),)
    if named is None:
        return None
    start, *starts = named
    path = _draw_path(rng, world, start, steps, is_unknown=is_unknown)
    if path is None:
        return None
    things = tuple(starts) if form is Form.BOTH else tuple(rng.sample(named, len(named)))
    names = tuple(world.name(thing) for thing in things)
    if is_held_out(names) != (split == "held_out"):
        return None
    program = Program(form=form, kind=start.kind, starts=names, steps=path)
    proof = prove(world, program, things)
    if proof is None or (proof.answer == UNKNOWN) != is_unknown:
        return None
    return program, proof


def _draw_thing(rng: random.Random, world: World, kinds: Sequence[Kind]) -> Thing:
    kind = rng.choice(kinds)
    return Thing(kind, rng.randrange(world.counts[kind]))


def _draw_compared(rng: random.Random, world: World, count: int) -> tuple[Form, tuple[Thing, ...]]:
    kind = rng.choice(tuple(kind for kind in YEAR_OF if kind in world.counts))
    numbers = rng.sample(range(world.counts[kind]), count)
    form = rng.choice((Form.FIRST, Form.LAST))
    things = tuple(Thing(kind, number) for number in numbers)
    # The path is drawn from the thing that is meant, which then stands anywhere in the question.
    years = {thing: world.year(thing, YEAR_OF[kind]) or 0 for thing in things}
    meant = (min if form is Form.FIRST else max)(things, key=lambda thing: years[thing])
    return form, (meant, *(thing for thing in things if thing != meant))


def _draw_both(rng: random.Random, world: World) -> tuple[Thing, ...] | None:
    """Return a thing with the two that describe it."""
    kinds = tuple(kind for kind in BOTH if kind in world.counts)
    member = _draw_thing(rng, world, kinds)
    others = [world.related(member, relation) for relation in BOTH[member.kind]]
    things = [thing for thing in others if thing is not None]
    return (member, *things) if len(things) == len(others) else None


def _draw_path(
    rng: random.Random, world: World, start: Thing, steps: int, *, is_unknown: bool
) -> tuple[Relation, ...] | None:
    """Return relations that lead on from `start`; None where they end too early, or lead back.

    A proof would find that out too, but reads documents for it.
    """
    passed = [start]
    path: list[Relation] = []
    for number in range(steps):
        is_last = number == steps - 1
        choices = _choices(world, passed[-1], is_last=is_last, is_unknown=is_unknown)
        if not choices:
            return None
        path.append(rng.choice(choices))
        if path[-1] not in OBJECT:
            return tuple(path)
        other = world.related(passed[-1], path[-1])
        if other in passed or (other is None) != (is_last and is_unknown):
            return None
        if other is not None:
            passed.append(other)
    return tuple(path)


def _choices(
    world: World, thing: Thing, *, is_last: bool, is_unknown: bool
) -> tuple[Relation, ...]:
    is_plain = world.style == "plain"
    if is_last and is_unknown:
        return _OPEN_ENDED if thing.kind is Kind.PERSON else ()
    return tuple(
        relation
        for relation in _OF_KIND[thing.kind]
        if (relation in PLAIN_RELATIONS if is_plain else is_last or relation in OBJECT)
    )
