"""Questions about a world, each with a proof from its documents.

In order: `Program` (what a question asks), `Proof`, `prove`, `ask`. A proof walks from document to
document and takes each step from what the text says, not from the world. It also holds that

- the answer stands in no document before the last one, and not in the question;
- no shorter way gives it: leaving out any steps leads elsewhere or nowhere, and no thing that the
  question names is passed on the way;
- no other way gives it: with one relation taken for another the steps lead elsewhere or nowhere;
- of compared things the others lead to other answers; an intersection has one member.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from agentgym.envs.search.graph.knowledge_graph import OBJECT, SUBJECT, Kind, Relation, Thing, World
from agentgym.envs.search.graph.rendering import read_facts, render
from agentgym.envs.search.retrieval.documents import Document
from agentgym.errors import EnvError
from agentgym.records import Json

UNKNOWN = "unknown"
"""The answer where the documents do not say it."""


class Form(StrEnum):
    """How the thing at which a question starts is described."""

    CHAIN = "chain"
    FIRST = "first"
    LAST = "last"
    BOTH = "both"


YEAR_OF = {
    Kind.PERSON: Relation.BORN,
    Kind.ORGANISATION: Relation.FOUNDED,
    Kind.WORK: Relation.PUBLISHED,
    Kind.EVENT: Relation.HELD,
}
"""Kind -> the year by which things of it are compared."""
BOTH = {
    Kind.WORK: (Relation.AUTHOR, Relation.PUBLISHER),
    Kind.EVENT: (Relation.WINNER, Relation.HOST),
}
"""Kind -> the two relations that describe one thing of it together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a question asks: where to start, and the steps from there.

    Example:
        Program(form=Form.CHAIN, kind=Kind.PERSON, starts=("Ana Halberg",),
                steps=(Relation.MOTHER, Relation.BIRTHPLACE))
    """

    form: Form
    """`chain`: the named thing; `first`, `last`: of the named things; `both`: the one thing that
    has both relations of `BOTH` to the two named ones."""
    kind: Kind
    """What the thing at the start is."""
    starts: tuple[str, ...]
    """Names in the question."""
    steps: tuple[Relation, ...]
    """Relations from the start to the answer, in order."""

    def to_json(self) -> dict[str, Json]:
        """Return the program as it lies in a task's payload."""
        return {
            "form": str(self.form),
            "kind": str(self.kind),
            "starts": list(self.starts),
            "steps": [str(step) for step in self.steps],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Json]) -> Program:
        """Return the program of a task's payload.

        Raises:
            EnvError: If it is none.
        """
        try:
            return cls(
                form=Form(str(fields["form"])),
                kind=Kind(str(fields["kind"])),
                starts=tuple(str(name) for name in cast("Sequence[str]", fields["starts"])),
                steps=tuple(Relation(str(step)) for step in cast("Sequence[str]", fields["steps"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"not the program of a question: {error} (got {fields!r})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One document that a proof needs, and how to ask for it."""

    query: str
    """Names known before the document is read."""
    position: int
    """Position of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Why an answer is right."""

    answer: str
    """Name or year; `UNKNOWN` if the last document does not say it."""
    lookups: tuple[Lookup, ...]
    """The documents that say it, in the order in which they can be found."""


def prove(world: World, program: Program, named: Sequence[Thing]) -> Proof | None:
    """Return the proof of a question; None if it breaks one of the rules above.

    Args:
        world: What the question is about.
        program: What it asks.
        named: The things that it names, in order.
    """
    begun = _begin(world, program, named)
    if begun is None:
        return None
    start, others, first = begun
    walk = _walk(world, start, program.steps)
    if walk is None or (walk.answer == UNKNOWN and program.form is not Form.CHAIN):
        return None
    if walk.answer != UNKNOWN and not _is_only_way(world, program, walk, others):
        return None
    if any(world.name(thing) in program.starts for thing in walk.things[1:]):
        return None
    before = [render(world, thing) for thing in (*others, *walk.things[:-1])]
    if walk.answer in program.starts or any(_says(doc, walk.answer) for doc in before):
        return None
    if program.form is Form.BOTH and any(_says(render(world, t), walk.answer) for t in named):
        return None
    lookups = [
        *first,
        *(Lookup(query=world.name(thing), position=world.position(thing)) for thing in walk.things),
    ]
    unique = {lookup.position: lookup for lookup in reversed(lookups)}
    return Proof(
        answer=walk.answer,
        lookups=tuple(unique[p] for p in dict.fromkeys(lookup.position for lookup in lookups)),
    )


def _begin(
    world: World, program: Program, named: Sequence[Thing]
) -> tuple[Thing, tuple[Thing, ...], tuple[Lookup, ...]] | None:
    """Return the thing at the start, the others it is compared with, and lookups before it."""
    if program.form is Form.CHAIN:
        return named[0], (), ()
    if program.form is Form.BOTH:
        members = _members(world, program.kind, named)
        if len(members) != 1:
            return None
        query = " ".join(program.starts)
        return members[0], (), (Lookup(query=query, position=world.position(members[0])),)
    years = [_fact(world, thing, YEAR_OF[program.kind]) for thing in named]
    if None in years or len(set(years)) < len(years):
        return None
    best = (min if program.form is Form.FIRST else max)(years, key=lambda year: int(year or 0))
    start = named[years.index(best)]
    lookups = tuple(
        Lookup(query=world.name(thing), position=world.position(thing)) for thing in named
    )
    return start, tuple(thing for thing in named if thing != start), lookups


def _members(world: World, kind: Kind, named: Sequence[Thing]) -> list[Thing]:
    """Return the things of a kind that have both relations to the two named things."""
    first, second = named
    of_first = world.works_of(first) if kind is Kind.WORK else world.events_won_by(first)
    names = (world.name(first), world.name(second))
    relations = BOTH[kind]
    return [t for t in of_first if tuple(_fact(world, t, r) for r in relations) == names]


@dataclass(frozen=True, slots=True)
class _Walk:
    answer: str
    things: tuple[Thing, ...]


def _walk(world: World, start: Thing, steps: Sequence[Relation]) -> _Walk | None:
    """Follow the steps by what the documents say; None if they lead back or break off early."""
    things, value = [start], ""
    for number, step in enumerate(steps):
        said = _fact(world, things[-1], step)
        is_last = number == len(steps) - 1
        if said is None:
            is_open = is_last and SUBJECT[step] is things[-1].kind
            return _Walk(UNKNOWN, tuple(things)) if is_open else None
        value = said
        other = world.related(things[-1], step)
        if other is not None and (other in things or world.name(other) != said):
            return None
        if not is_last:
            if other is None:
                return None
            things.append(other)
    return _Walk(value, tuple(things))


def _is_only_way(world: World, program: Program, walk: _Walk, others: Sequence[Thing]) -> bool:
    """Whether no other start, no shorter way and no wrong relation gives the same answer."""
    steps = program.steps
    for other in others:
        found = _walk(world, other, steps)
        if found is not None and found.answer == walk.answer:
            return False
    for length in range(1, len(steps)):
        for shorter in itertools.combinations(steps, length):
            found = _walk(world, walk.things[0], shorter)
            if found is not None and found.answer == walk.answer:
                return False
    return not any(
        _end(world, thing, (wrong, *steps[number + 1 :])) == walk.answer
        for number, thing in enumerate(walk.things)
        for wrong in Relation
        if SUBJECT[wrong] is thing.kind and wrong is not steps[number]
    )


def _end(world: World, start: Thing, steps: Sequence[Relation]) -> str | None:
    """Return where steps lead, wherever they pass; None if they break off."""
    *before, last = steps
    thing: Thing | None = start
    for step in before:
        # What the documents leave out leads nowhere, whatever is true.
        thing = world.related(thing, step) if _fact(world, thing, step) is not None else None
        if thing is None:
            return None
    return _fact(world, thing, last)


def _fact(world: World, thing: Thing, relation: Relation) -> str | None:
    return _facts(world, thing).get(relation)


@functools.lru_cache(maxsize=4096)
def _facts(world: World, thing: Thing) -> dict[Relation, str]:
    # The shorter ways lead over the same documents again.
    return read_facts(render(world, thing))


def _says(document: Document, name: str) -> bool:
    """Whether a document holds a name, as whole words."""
    pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
    return re.search(pattern, document.indexed_text) is not None


_PHRASES: dict[Relation, tuple[str, ...]] = {
    Relation.MOTHER: ("the mother of {x}", "the woman who gave birth to {x}"),
    Relation.MENTOR: ("the mentor of {x}", "the person who taught {x}"),
    Relation.EMPLOYER: ("the employer of {x}", "the organisation that employed {x}"),
    Relation.BIRTHPLACE: ("the birthplace of {x}", "the place of birth of {x}"),
    Relation.BORN: ("the year of birth of {x}", "the birth year of {x}"),
    Relation.MAYOR: ("the mayor of {x}", "the person who governs {x}"),
    Relation.FOUNDER: ("the founder of {x}", "the person who set up {x}"),
    Relation.HEADQUARTERS: ("the headquarters of {x}", "the seat of {x}"),
    Relation.FOUNDED: ("the founding year of {x}", "the year of the establishment of {x}"),
    Relation.AUTHOR: ("the author of {x}", "the person who wrote {x}"),
    Relation.PUBLISHER: ("the publisher of {x}", "the organisation that brought out {x}"),
    Relation.SETTING: ("the setting of {x}", "the place of the story of {x}"),
    Relation.PUBLISHED: ("the year of publication of {x}", "the year of the first edition of {x}"),
    Relation.HOST: ("the host of {x}", "the place that hosted {x}"),
    Relation.WINNER: ("the winner of {x}", "the person who won {x}"),
    Relation.HELD: ("the year of {x}", "the year that saw {x}"),
}
_ASKED = {Kind.PERSON: "Who", Kind.PLACE: "Which place", Kind.ORGANISATION: "Which organisation"}
_COMPARED = {
    Kind.PERSON: "was born",
    Kind.ORGANISATION: "was established",
    Kind.WORK: "appeared",
    Kind.EVENT: "took place",
}
_DESCRIBED = {
    Kind.WORK: "the work that {a} wrote and the {b} published",
    Kind.EVENT: "the event that {a} won and {b} hosted",
}
_WITH_ARTICLE = (Kind.ORGANISATION, Kind.EVENT)


def ask(program: Program, *, style: str, chance: int) -> str:
    """Return the question in words.

    Args:
        program: What it asks.
        style: As of the documents; `plain` has one wording.
        chance: Number in [0, 2**64) that chooses the wording.
    """
    is_plain = style == "plain"
    phrase, before = _start(program, is_plain=is_plain)
    for step in program.steps:
        wordings = _PHRASES[step]
        phrase = wordings[0 if is_plain else chance % len(wordings)].format(x=phrase)
        chance //= len(wordings)
    last = OBJECT.get(program.steps[-1])
    asked = "What" if is_plain or last is None else _ASKED[last]
    return f"{before}{asked} is {phrase}?"


def _start(program: Program, *, is_plain: bool) -> tuple[str, str]:
    """Return the words for the thing at the start, and a sentence that comes before."""
    names = list(program.starts)
    if program.form is Form.BOTH:
        return _DESCRIBED[program.kind].format(a=names[0], b=names[1]), ""
    if program.kind in _WITH_ARTICLE and not is_plain:
        names = [f"the {name}" for name in names]
    if program.form is Form.CHAIN:
        return names[0], ""
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    sentence = f"Of {listed}, take the one that {_COMPARED[program.kind]} {program.form}. "
    return f"that {program.kind}", sentence
