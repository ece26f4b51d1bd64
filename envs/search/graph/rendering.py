"""The documents of a world: plain lines or sentences, and the reader that gets the facts back.

In order: the sentences, `render`, `read_facts`, `WorldCorpus`. The reader knows the sentences and
nothing of the world: what it finds is what the corpus says, which is how questions are proved to
be answerable from the corpus alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentgym.envs.search.graph.knowledge_graph import Kind, Relation, Thing, World
from agentgym.envs.search.retrieval.documents import Document
from agentgym.records.task import canonical_json

TEXT_VERSION = 2
"""Counted up when any document of any world changes."""

PLAIN_RELATIONS = (
    Relation.MOTHER,
    Relation.EMPLOYER,
    Relation.BIRTHPLACE,
    Relation.FOUNDER,
    Relation.HEADQUARTERS,
    Relation.MAYOR,
)
"""What plain documents say: few lines, so that a small model can read them."""

# {s} is the document's own thing, {o} the other one.
_SENTENCES: dict[Relation, tuple[str, ...]] = {
    Relation.MOTHER: (
        "{s} is a child of {o}",
        "The mother of {s} was {o}",
        "{o} gave birth to {s}",
    ),
    Relation.MENTOR: (
        "{s} was taught by {o}",
        "The mentor of {s} was {o}",
        "{s} learned the trade from {o}",
    ),
    Relation.EMPLOYER: (
        "{s} worked for the {o}",
        "The {o} employed {s}",
        "{s} spent a career at the {o}",
    ),
    Relation.BIRTHPLACE: (
        "{s} was born in {o}",
        "{s} came into the world in {o}",
        "The birthplace of {s} is {o}",
    ),
    Relation.BORN: (
        "The year of birth of {s} is {o}",
        "{s} has been on record since {o}, the year of birth",
    ),
    Relation.MAYOR: (
        "The mayor of {s} is {o}",
        "{s} is governed by {o}",
        "In {s} the office of mayor was given to {o}",
    ),
    Relation.FOUNDER: (
        "The {s} was founded by {o}",
        "{o} set up the {s}",
        "The founder of the {s} was {o}",
    ),
    Relation.HEADQUARTERS: (
        "The {s} has its headquarters in {o}",
        "The {s} is based in {o}",
        "The seat of the {s} is {o}",
    ),
    Relation.FOUNDED: (
        "The {s} was established in {o}",
        "The history of the {s} begins in {o}",
    ),
    Relation.AUTHOR: (
        "{s} was written by {o}",
        "{o} wrote {s}",
        "The author of {s} is {o}",
    ),
    Relation.PUBLISHER: (
        "{s} was published by the {o}",
        "The {o} brought out {s}",
        "The publisher of {s} is the {o}",
    ),
    Relation.SETTING: (
        "{s} is set in {o}",
        "The story of {s} takes place in {o}",
    ),
    Relation.PUBLISHED: (
        "{s} appeared in {o}",
        "The first edition of {s} is dated {o}",
    ),
    Relation.HOST: (
        "The {s} was held in {o}",
        "{o} hosted the {s}",
    ),
    Relation.WINNER: (
        "The {s} was won by {o}",
        "{o} won the {s}",
        "The winner of the {s} was {o}",
    ),
    Relation.HELD: (
        "The {s} took place in {o}",
        "The year of the {s} was {o}",
    ),
}
# Things that are there to mislead: they match the words of a question and state no relation.
_DISTRACTIONS: dict[Kind, tuple[tuple[str, Kind], ...]] = {
    Kind.PERSON: (
        ("{s} once spent a summer in {o} and did not stay", Kind.PLACE),
        ("{s} is often mistaken for {o}", Kind.PERSON),
        ("{s} turned down an offer of the {o}", Kind.ORGANISATION),
    ),
    Kind.PLACE: (
        ("{s} is twinned with {o}", Kind.PLACE),
        ("A street of {s} is named after {o}", Kind.PERSON),
    ),
    Kind.ORGANISATION: (
        ("The {s} nearly merged with the {o}", Kind.ORGANISATION),
        ("The {s} once closed a branch in {o}", Kind.PLACE),
    ),
    Kind.WORK: (
        ("{s} is sometimes wrongly ascribed to {o}", Kind.PERSON),
        ("A copy of {s} was lost in {o}", Kind.PLACE),
    ),
    Kind.EVENT: (
        ("The {s} was nearly moved to {o}", Kind.PLACE),
        ("{o} came last at the {s}", Kind.PERSON),
    ),
}
_LABELS = frozenset(str(relation) for relation in Relation)
_SEPARATOR = ". "
_BITS_A_CHOICE = 5
"""A document has at most six sentences: 30 of its 64 bits of chance."""


def render(world: World, thing: Thing) -> Document:
    """Return the document of a thing."""
    title = world.name(thing)
    if world.style == "plain":
        lines = [
            f"{relation}: {value}"
            for relation, value in world.facts(thing).items()
            if relation in PLAIN_RELATIONS
        ]
        return Document(title=title, text="\n".join(lines))
    chance = world.chance(thing)
    facts = world.facts(thing)
    sentences = [_distraction(world, thing, chance, true=(title, *facts.values()))]
    for relation, value in facts.items():
        chance >>= _BITS_A_CHOICE
        choices = _SENTENCES[relation]
        sentences.append(choices[chance % len(choices)].format(s=title, o=value))
    # The order says nothing: it begins anywhere.
    start = chance % len(sentences)
    return Document(title=title, text=_SEPARATOR.join(sentences[start:] + sentences[:start]) + ".")


def read_facts(document: Document) -> dict[Relation, str]:
    """Return what a document says of its own thing: relation -> name or year.

    Raises:
        ValueError: If it says two things of one relation.
    """
    facts: dict[Relation, str] = {}
    for relation, value in _statements(document):
        if facts.setdefault(relation, value) != value:
            raise ValueError(f"{document.title!r} has two of {relation!r}")
    return facts


@dataclass(frozen=True, slots=True)
class WorldCorpus:
    """The documents of a world, made one at a time."""

    world: World

    @property
    def key(self) -> str:
        """Hash of all that the documents follow from."""
        spec = [TEXT_VERSION, self.world.seed, self.world.size, self.world.style]
        return hashlib.sha256(canonical_json(spec).encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yield every document, in order."""
        for position in range(self.world.size):
            yield self[position]

    def __len__(self) -> int:
        return self.world.size

    def __getitem__(self, position: int, /) -> Document:
        if not 0 <= position < self.world.size:
            raise IndexError(f"there is no document {position}")
        return render(self.world, self.world.thing_at(position))


def _distraction(world: World, thing: Thing, chance: int, *, true: Sequence[str]) -> str:
    """Return a sentence on the thing and one that it has no relation to, nor is.

    A work that was wrongly ascribed to its author would be a contradiction. There is always one
    more: the mother and the mentor of a person are both of one generation.
    """
    choices = _DISTRACTIONS[thing.kind]
    template, kind = choices[chance % len(choices)]
    other = chance // len(choices) % world.counts[kind]
    while world.name(Thing(kind, other)) in true:
        other = (other + 1) % world.counts[kind]
    return template.format(s=true[0], o=world.name(Thing(kind, other)))


def _statements(document: Document) -> Iterator[tuple[Relation, str]]:
    title = document.title
    ends = [
        (relation, *template.replace("{s}", title).split("{o}"))
        for relation, templates in _SENTENCES.items()
        for template in templates
    ]
    for line in document.text.splitlines():
        label, colon, value = line.partition(": ")
        if colon and label in _LABELS:
            yield Relation(label), value
            continue
        for sentence in line.removesuffix(".").split(_SEPARATOR):
            for relation, before, after in ends:
                if sentence.startswith(before) and sentence.endswith(after):
                    value = sentence[len(before) : len(sentence) - len(after)]
                    if value:
                        yield relation, value
