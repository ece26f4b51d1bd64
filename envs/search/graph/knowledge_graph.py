"""A generated, consistent world: people, places, organisations, works and events, with relations.

Everything follows from the seed and the number of things, one thing at a time: a world of a million
documents takes no memory. What is consistent: a mother is a woman and 21 to 39 years older than her
child, a mentor is of the generation before; an organisation was founded by a grown-up and before
anyone who works for it, or whom it published, was 20; a work appeared when its author was 25 to 44;
an event was won by a grown-up. The people of the first generation have no mother, mentor or
employer in the world: questions for these have no answer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum

from agentgym.envs.search.graph.hashing import Permutation, mix
from agentgym.envs.search.graph.names import Names, is_female
from agentgym.errors import EnvError

SMALLEST, LARGEST = 20, 1_000_000
"""Documents that a world may have."""


class Kind(StrEnum):
    """What a thing is."""

    PERSON = "person"
    PLACE = "place"
    ORGANISATION = "organisation"
    WORK = "work"
    EVENT = "event"


class Relation(StrEnum):
    """What one thing is to another, or a year to a thing. Each thing has at most one of each."""

    MOTHER = "mother"
    MENTOR = "mentor"
    EMPLOYER = "employer"
    BIRTHPLACE = "birthplace"
    BORN = "born"
    MAYOR = "mayor"
    FOUNDER = "founder"
    HEADQUARTERS = "headquarters"
    FOUNDED = "founded"
    AUTHOR = "author"
    PUBLISHER = "publisher"
    SETTING = "setting"
    PUBLISHED = "published"
    HOST = "host"
    WINNER = "winner"
    HELD = "held"


SUBJECT: dict[Relation, Kind] = {
    **dict.fromkeys(
        (
            Relation.MOTHER,
            Relation.MENTOR,
            Relation.EMPLOYER,
            Relation.BIRTHPLACE,
            Relation.BORN,
        ),
        Kind.PERSON,
    ),
    Relation.MAYOR: Kind.PLACE,
    **dict.fromkeys((Relation.FOUNDER, Relation.HEADQUARTERS, Relation.FOUNDED), Kind.ORGANISATION),
    **dict.fromkeys(
        (Relation.AUTHOR, Relation.PUBLISHER, Relation.SETTING, Relation.PUBLISHED), Kind.WORK
    ),
    **dict.fromkeys((Relation.HOST, Relation.WINNER, Relation.HELD), Kind.EVENT),
}
"""Relation -> kind of the thing that has it."""
OBJECT: dict[Relation, Kind] = {
    Relation.MOTHER: Kind.PERSON,
    Relation.MENTOR: Kind.PERSON,
    Relation.EMPLOYER: Kind.ORGANISATION,
    Relation.BIRTHPLACE: Kind.PLACE,
    Relation.MAYOR: Kind.PERSON,
    Relation.FOUNDER: Kind.PERSON,
    Relation.HEADQUARTERS: Kind.PLACE,
    Relation.AUTHOR: Kind.PERSON,
    Relation.PUBLISHER: Kind.ORGANISATION,
    Relation.SETTING: Kind.PLACE,
    Relation.HOST: Kind.PLACE,
    Relation.WINNER: Kind.PERSON,
}
"""Relation -> kind of the other thing; a relation that is not here gives a year."""

_OF_KIND = {kind: tuple(r for r in Relation if SUBJECT[r] is kind) for kind in Kind}
_SHARES = {
    "plain": {Kind.PERSON: 0.6, Kind.PLACE: 0.2, Kind.ORGANISATION: 0.2},
    "prose": {
        Kind.PERSON: 0.44,
        Kind.PLACE: 0.06,
        Kind.ORGANISATION: 0.15,
        Kind.WORK: 0.25,
        Kind.EVENT: 0.10,
    },
}
"""Style -> part of the documents of each kind."""
STYLES = tuple(_SHARES)
_MOST_PLACES = 10_000
"""Above, there are no names; the people of a large world share its places."""
_GENERATIONS = 4
_FIRST_YEAR, _YEARS_A_GENERATION, _YEARS_OF_BIRTH = 1700, 30, 10
WORKS_AN_AUTHOR, EVENTS_A_WINNER = 3, 2
_TRIES = 12
"""Draws for a mother: in a generation of few people there may be no woman."""
_TAGS = {
    tag: number for number, tag in enumerate((*Relation, *Kind, "position", "authors", "text"))
}


@dataclass(frozen=True, slots=True, order=True)
class Thing:
    """One thing of a world: its kind and its number within that kind.

    Example:
        Thing(Kind.PERSON, 17)
    """

    kind: Kind
    number: int


class World:
    """A world of `size` things, each with one document.

    Args:
        seed: All that is in it follows from the seed, the size and the style.
        size: Number of documents.
        style: `plain` (people, places, organisations) or `prose` (works and events too).

    Raises:
        EnvError: If the size or the style is not allowed.
    """

    def __init__(self, *, seed: int, size: int, style: str) -> None:
        if type(size) is not int or not SMALLEST <= size <= LARGEST:
            raise EnvError(
                f"'documents' must be a whole number from {SMALLEST} to {LARGEST} (got {size!r})"
            )
        if style not in STYLES:
            raise EnvError(f"'style' must be one of {STYLES} (got {style!r})")
        self.seed, self.size, self.style = seed, size, style
        self.counts = _counts(size, style)
        self._states = {tag: mix(seed, number) for tag, number in _TAGS.items()}
        self._starts = _starts(self.counts)
        self._names = {
            kind: Names(kind, count, key=self._hash(kind)) for kind, count in self.counts.items()
        }
        self._positions = Permutation(size, key=self._hash("position"))
        self._first_of = [-(-g * self.counts[Kind.PERSON] // _GENERATIONS) for g in range(5)]
        # People of the first generation write nothing.
        self._writers = Permutation(
            self._first_of[4] - self._first_of[1], key=self._hash("authors")
        )
        self._winners = Permutation(self._first_of[4], key=self._hash(Relation.WINNER))
        # A document names some six things, and places are named again and again.
        self.name = functools.lru_cache(maxsize=1 << 16)(self._name)

    def thing_at(self, position: int) -> Thing:
        """Return the thing whose document has a position in the corpus."""
        index = self._positions(position)
        kind = max((start, kind) for kind, start in self._starts.items() if start <= index)[1]
        return Thing(kind, index - self._starts[kind])

    def position(self, thing: Thing) -> int:
        """Return the position of a thing's document in the corpus."""
        return self._positions.inverse(self._starts[thing.kind] + thing.number)

    def chance(self, thing: Thing) -> int:
        """Return a number in [0, 2**64) for whatever is left to chance in a thing's document."""
        return self._hash("text", self._starts[thing.kind] + thing.number)

    def related(self, thing: Thing, relation: Relation) -> Thing | None:
        """Return the thing that has a relation to `thing`; None if there is none, or a year."""
        if SUBJECT[relation] is not thing.kind or relation not in OBJECT:
            return None
        return _RELATED[relation](self, thing.number)

    def year(self, thing: Thing, relation: Relation) -> int | None:
        """Return the year that a relation gives; None if it gives none."""
        if SUBJECT[relation] is not thing.kind or relation in OBJECT:
            return None
        return _YEARS[relation](self, thing.number)

    def value(self, thing: Thing, relation: Relation) -> str | None:
        """Return the name or the year that a relation gives; None if there is none."""
        if relation not in OBJECT:
            year = self.year(thing, relation)
            return None if year is None else str(year)
        other = self.related(thing, relation)
        return None if other is None else self.name(other)

    def facts(self, thing: Thing) -> dict[Relation, str]:
        """Return what is true of a thing: relation -> name or year."""
        values = ((relation, self.value(thing, relation)) for relation in _OF_KIND[thing.kind])
        return {relation: value for relation, value in values if value is not None}

    def works_of(self, person: Thing) -> tuple[Thing, ...]:
        """Return the works that a person wrote."""
        number = person.number - self._first_of[1]
        if person.kind is not Kind.PERSON or number < 0:
            return ()
        slot = self._writers.inverse(number)
        return self._block(Kind.WORK, slot, WORKS_AN_AUTHOR)

    def events_won_by(self, person: Thing) -> tuple[Thing, ...]:
        """Return the events that a person won."""
        if person.kind is not Kind.PERSON:
            return ()
        return self._block(Kind.EVENT, self._winners.inverse(person.number), EVENTS_A_WINNER)

    def _block(self, kind: Kind, slot: int, length: int) -> tuple[Thing, ...]:
        stop = min((slot + 1) * length, self.counts.get(kind, 0))
        return tuple(Thing(kind, number) for number in range(slot * length, stop))

    def _name(self, thing: Thing) -> str:
        return self._names[thing.kind][thing.number]

    def _hash(self, tag: str, *numbers: int) -> int:
        return mix(*numbers, state=self._states[tag])

    def _generation(self, person: int) -> int:
        return max(g for g in range(_GENERATIONS) if self._first_of[g] <= person)

    def _in_generation(self, generation: int, draw: int) -> int:
        start, stop = self._first_of[generation], self._first_of[generation + 1]
        return start + draw % (stop - start)

    # -- one function a relation -----------------------------------------------------------

    def _mother(self, person: int) -> Thing | None:
        generation = self._generation(person)
        for attempt in range(_TRIES if generation else 0):
            draw = self._hash(Relation.MOTHER, person, attempt)
            mother = Thing(Kind.PERSON, self._in_generation(generation - 1, draw))
            if is_female(self.name(mother)):
                return mother
        return None

    def _mentor(self, person: int) -> Thing | None:
        generation = self._generation(person)
        if not generation:
            return None
        draw = self._hash(Relation.MENTOR, person)
        return Thing(Kind.PERSON, self._in_generation(generation - 1, draw))

    def _organisation_before(self, generation: int, draw: int) -> Thing | None:
        """Return one that was founded by a generation before; None for the first generation."""
        count = self.counts[Kind.ORGANISATION]
        old = -(-generation * count // (_GENERATIONS - 1))
        return Thing(Kind.ORGANISATION, draw % old) if generation else None

    def _employer(self, person: int) -> Thing | None:
        draw = self._hash(Relation.EMPLOYER, person)
        return self._organisation_before(self._generation(person), draw)

    def _place(self, relation: Relation, number: int) -> Thing:
        return Thing(Kind.PLACE, self._hash(relation, number) % self.counts[Kind.PLACE])

    def _mayor(self, place: int) -> Thing:
        draw = self._hash(Relation.MAYOR, place)
        start = self._first_of[_GENERATIONS - 2]
        return Thing(Kind.PERSON, start + draw % (self._first_of[_GENERATIONS] - start))

    def _founder(self, organisation: int) -> Thing:
        generation = organisation * (_GENERATIONS - 1) // self.counts[Kind.ORGANISATION]
        draw = self._hash(Relation.FOUNDER, organisation)
        return Thing(Kind.PERSON, self._in_generation(generation, draw))

    def _author(self, work: int) -> Thing:
        return Thing(Kind.PERSON, self._first_of[1] + self._writers(work // WORKS_AN_AUTHOR))

    def _publisher(self, work: int) -> Thing | None:
        generation = self._generation(self._author(work).number)
        return self._organisation_before(generation, self._hash(Relation.PUBLISHER, work))

    def _winner(self, event: int) -> Thing:
        return Thing(Kind.PERSON, self._winners(event // EVENTS_A_WINNER))

    def _born(self, person: int) -> int:
        generation = self._generation(person)
        spread = self._hash(Relation.BORN, person) % _YEARS_OF_BIRTH
        return _FIRST_YEAR + _YEARS_A_GENERATION * generation + spread

    def _founded(self, organisation: int) -> int:
        spread = self._hash(Relation.FOUNDED, organisation) % 5
        return self._born(self._founder(organisation).number) + 30 + spread

    def _published(self, work: int) -> int:
        spread = self._hash(Relation.PUBLISHED, work) % 20
        return self._born(self._author(work).number) + 25 + spread

    def _held(self, event: int) -> int:
        spread = self._hash(Relation.HELD, event) % 25
        return self._born(self._winner(event).number) + 20 + spread


_RELATED = {
    Relation.MOTHER: World._mother,
    Relation.MENTOR: World._mentor,
    Relation.EMPLOYER: World._employer,
    Relation.BIRTHPLACE: lambda world, number: world._place(Relation.BIRTHPLACE, number),
    Relation.MAYOR: World._mayor,
    Relation.FOUNDER: World._founder,
    Relation.HEADQUARTERS: lambda world, number: world._place(Relation.HEADQUARTERS, number),
    Relation.AUTHOR: World._author,
    Relation.PUBLISHER: World._publisher,
    Relation.SETTING: lambda world, number: world._place(Relation.SETTING, number),
    Relation.HOST: lambda world, number: world._place(Relation.HOST, number),
    Relation.WINNER: World._winner,
}
_YEARS = {
    Relation.BORN: World._born,
    Relation.FOUNDED: World._founded,
    Relation.PUBLISHED: World._published,
    Relation.HELD: World._held,
}


def _counts(size: int, style: str) -> dict[Kind, int]:
    counts = {kind: max(4, int(size * share)) for kind, share in _SHARES[style].items()}
    counts[Kind.PLACE] = min(counts[Kind.PLACE], _MOST_PLACES)
    rest = sum(count for kind, count in counts.items() if kind is not Kind.PERSON)
    counts[Kind.PERSON] = size - rest
    return counts


def _starts(counts: dict[Kind, int]) -> dict[Kind, int]:
    starts: dict[Kind, int] = {}
    total = 0
    for kind, count in counts.items():
        starts[kind] = total
        total += count
    return starts
