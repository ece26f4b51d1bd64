from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.search.graph.hashing import Permutation, mix
from agentgym.envs.search.graph.knowledge_graph import OBJECT, SUBJECT, Kind, Relation, Thing, World
from agentgym.envs.search.graph.names import is_female
from agentgym.envs.search.graph.rendering import (
    _DISTRACTIONS,
    PLAIN_RELATIONS,
    WorldCorpus,
    read_facts,
    render,
)
from agentgym.envs.search.retrieval.documents import content_hash
from agentgym.errors import EnvError


@given(st.integers(1, 300), st.integers(0, 2**64))
def test_permutation_is_one_to_one_and_undone_by_its_inverse(size: int, key: int) -> None:
    permutation = Permutation(size, key=key)
    images = [permutation(number) for number in range(size)]
    assert sorted(images) == list(range(size))
    assert [permutation.inverse(image) for image in images] == list(range(size))


def test_permutation_sends_each_number_everywhere() -> None:
    counts = Counter(Permutation(5, key=key)(0) for key in range(2000))
    # 400 each; 5 standard deviations of a binomial are 5 * sqrt(2000 * 0.2 * 0.8) = 89.
    assert all(311 < counts[place] < 489 for place in range(5))


def test_mix_goes_on_where_it_stopped_and_sees_order() -> None:
    assert mix(1, 2) == mix(2, state=mix(1))
    assert mix(1, 2) != mix(2, 1)


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=11, size=1500, style="prose")


def _things(world: World) -> list[Thing]:
    return [Thing(kind, n) for kind, count in world.counts.items() for n in range(count)]


def test_each_thing_has_one_document_and_one_name(world: World) -> None:
    things = _things(world)
    assert len(things) == 1500
    assert sorted(world.position(thing) for thing in things) == list(range(1500))
    assert all(world.thing_at(world.position(thing)) == thing for thing in things)
    assert len({world.name(thing) for thing in things}) == 1500


def test_each_relation_leads_to_the_right_kind(world: World) -> None:
    for thing in _things(world):
        for relation in Relation:
            other = world.related(thing, relation)
            if other is not None:
                assert SUBJECT[relation] is thing.kind
                assert other.kind is OBJECT[relation]
                assert other != thing
                assert 0 <= other.number < world.counts[other.kind]


def test_people_are_consistent(world: World) -> None:
    without = 0
    for number in range(world.counts[Kind.PERSON]):
        person = Thing(Kind.PERSON, number)
        born = world.year(person, Relation.BORN)
        mother, mentor = (world.related(person, r) for r in (Relation.MOTHER, Relation.MENTOR))
        employer = world.related(person, Relation.EMPLOYER)
        without += mentor is None
        assert born is not None
        if mother is not None:
            assert is_female(world.name(mother))
            assert 21 <= born - (world.year(mother, Relation.BORN) or 0) <= 39
        if mentor is not None:
            assert 21 <= born - (world.year(mentor, Relation.BORN) or 0) <= 39
        if employer is not None:
            # Nobody works, from 20 on, for what was not there yet.
            assert (world.year(employer, Relation.FOUNDED) or 9999) < born + 20
    assert without == -(-world.counts[Kind.PERSON] // 4)  # the first of four generations


def test_organisations_works_and_events_are_consistent(world: World) -> None:
    for thing in _things(world):
        if thing.kind is Kind.ORGANISATION:
            founder = world.related(thing, Relation.FOUNDER)
            assert founder is not None
            age = (world.year(thing, Relation.FOUNDED) or 0) - _born(world, founder)
            assert 30 <= age <= 34
        if thing.kind is Kind.WORK:
            author, publisher = (
                world.related(thing, r) for r in (Relation.AUTHOR, Relation.PUBLISHER)
            )
            assert author is not None
            assert publisher is not None
            year = world.year(thing, Relation.PUBLISHED) or 0
            assert 25 <= year - _born(world, author) <= 44
            assert (world.year(publisher, Relation.FOUNDED) or 9999) < year
            assert thing in world.works_of(author)
        if thing.kind is Kind.EVENT:
            winner = world.related(thing, Relation.WINNER)
            assert winner is not None
            assert 20 <= (world.year(thing, Relation.HELD) or 0) - _born(world, winner) <= 44
            assert thing in world.events_won_by(winner)


def _born(world: World, person: Thing) -> int:
    return world.year(person, Relation.BORN) or 0


def test_works_and_events_of_a_person_are_all_of_them(world: World) -> None:
    works = Counter(
        world.related(Thing(Kind.WORK, n), Relation.AUTHOR) for n in range(world.counts[Kind.WORK])
    )
    for number in range(world.counts[Kind.PERSON]):
        person = Thing(Kind.PERSON, number)
        assert len(world.works_of(person)) == works[person]
        assert len(world.events_won_by(person)) <= 2


@pytest.mark.parametrize(("size", "style"), [(20, "plain"), (30, "plain"), (400, "prose")])
def test_documents_say_what_is_true_and_nothing_else(size: int, style: str) -> None:
    world = World(seed=3, size=size, style=style)
    for position, document in enumerate(WorldCorpus(world).documents()):
        thing = world.thing_at(position)
        assert document.title == world.name(thing)
        true = world.facts(thing)
        if style == "plain":
            true = {relation: v for relation, v in true.items() if relation in PLAIN_RELATIONS}
        assert read_facts(document) == true


@pytest.mark.parametrize("size", [20, 30, 1000])
def test_no_sentence_that_misleads_names_what_is_true(size: int) -> None:
    """Nothing was nearly moved to where it was held, nor wrongly ascribed to its author."""
    starts = {kind: [template.split("{o}") for template, _ in _DISTRACTIONS[kind]] for kind in Kind}
    contradictions, read = [], 0
    for seed in range(6):
        world = World(seed=seed, size=size, style="prose")
        for thing in map(world.thing_at, range(size)):
            title, true = world.name(thing), set(world.facts(thing).values())
            for sentence in render(world, thing).text.removesuffix(".").split(". "):
                for before, after in starts[thing.kind]:
                    head, tail = before.format(s=title), after.format(s=title)
                    if sentence.startswith(head) and sentence.endswith(tail):
                        other = sentence[len(head) : len(sentence) - len(tail)]
                        read += 1
                        contradictions += [sentence] * (other in true | {title})
    assert read == 6 * size
    assert contradictions == []


def test_seed_style_and_size_make_another_world() -> None:
    def hash_of(seed: int, size: int, style: str) -> str:
        return content_hash(WorldCorpus(World(seed=seed, size=size, style=style)).documents())

    hashes = [hash_of(1, 50, "plain"), hash_of(2, 50, "plain"), hash_of(1, 51, "plain")]
    hashes += [hash_of(1, 51, "prose"), hash_of(1, 50, "plain")]
    assert len(set(hashes)) == 4
    assert hashes[0] == hashes[4]


def test_documents_are_the_same_on_every_machine() -> None:
    # An index is found by the world's numbers and not by its text: if these hashes change,
    # rendering.TEXT_VERSION must change too, or old indexes are taken for new ones.
    found = {
        style: content_hash(WorldCorpus(World(seed=7, size=300, style=style)).documents())[:16]
        for style in ("plain", "prose")
    }
    assert found == {"plain": "38a0ffe843ac465a", "prose": "71505b39fb5fd1d6"}


def test_key_depends_on_all_that_the_documents_follow_from() -> None:
    keys = {
        WorldCorpus(World(seed=seed, size=size, style=style)).key
        for seed in (1, 2)
        for size in (50, 60)
        for style in ("plain", "prose")
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("size", "style", "message"),
    [
        (19, "plain", r"'documents' must be a whole number from 20 to 1000000 \(got 19\)"),
        (0, "plain", r"\(got 0\)"),
        (20.5, "prose", r"\(got 20.5\)"),
        (True, "prose", r"\(got True\)"),
        ("50", "prose", r"\(got '50'\)"),
        (1_000_001, "prose", r"\(got 1000001\)"),
        (50, "verse", r"'style' must be one of .*\(got 'verse'\)"),
    ],
)
def test_world_that_cannot_be_is_refused(size: Any, style: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        World(seed=0, size=size, style=style)


def test_world_of_a_million_is_read_anywhere_at_once() -> None:
    world = World(seed=0, size=1_000_000, style="prose")
    corpus = WorldCorpus(world)
    for position in (0, 1, 499_999, 999_999):
        thing = world.thing_at(position)
        assert world.position(thing) == position
        assert read_facts(corpus[position]) == world.facts(thing)
    with pytest.raises(IndexError):
        corpus[1_000_000]
