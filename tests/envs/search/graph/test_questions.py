"""Questions are answerable from the corpus, and not by a shorter or another way."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import cast

import pytest

from agentgym.envs.search.graph import questions
from agentgym.envs.search.graph import tasks as graph_tasks
from agentgym.envs.search.graph.knowledge_graph import Kind, Relation, Thing, World
from agentgym.envs.search.graph.questions import BOTH, UNKNOWN, YEAR_OF, Form, Program, ask, prove
from agentgym.envs.search.graph.rendering import WorldCorpus, read_facts
from agentgym.envs.search.graph.tasks import LEVEL_TABLE, LEVELS, generate_task, world_of
from agentgym.envs.search.retrieval.documents import Document
from agentgym.errors import EnvError
from agentgym.records import Task

DOCUMENTS = 600
"""Few enough to read a whole corpus in a test."""


class Reader:
    """Answers questions from the documents alone: it never sees the world."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.facts = {document.title: read_facts(document) for document in documents}
        self.texts = {document.title: document.indexed_text for document in documents}

    def follow(self, name: str, steps: Sequence[Relation]) -> list[str] | None:
        """Return the names on the way and the answer; None if it breaks off."""
        way = [name]
        for step in steps:
            value = self.facts.get(way[-1], {}).get(step)
            if value is None:
                return None
            way.append(value)
        return way

    def starts(self, program: Program) -> list[str]:
        """Return every thing that fits the question's description."""
        if program.form is Form.CHAIN:
            return list(program.starts)
        if program.form is Form.BOTH:
            first, second = BOTH[program.kind]
            return [
                name
                for name, facts in self.facts.items()
                if (facts.get(first), facts.get(second)) == program.starts
            ]
        years = {name: self.facts[name][YEAR_OF[program.kind]] for name in program.starts}
        best = (min if program.form is Form.FIRST else max)(years.values())
        return [name for name, year in years.items() if year == best]


@functools.cache
def _task(level: int, index: int) -> Task:
    size = DOCUMENTS if LEVEL_TABLE[level].is_shared else None
    return generate_task(index, levels=(level,), documents=size)


def _tasks(level: int, count: int) -> list[Task]:
    return [_task(level, index) for index in range(count)]


def _reader(task: Task) -> tuple[Reader, Program]:
    spec = cast("dict", task.payload["world"])
    world = world_of(**{key: spec[key] for key in ("seed", "documents", "style")})
    reader = Reader(list(WorldCorpus(world).documents()))
    return reader, Program.from_json(cast("dict", task.payload["program"]))


@pytest.fixture(scope="module")
def shared() -> Reader:
    world = world_of(seed=graph_tasks.SHARED_SEED, documents=DOCUMENTS, style="prose")
    return Reader(list(WorldCorpus(world).documents()))


def _check(task: Task, reader: Reader, program: Program) -> None:
    starts = reader.starts(program)
    assert len(starts) == 1, "the description fits one thing"
    way = reader.follow(starts[0], program.steps)
    if task.answers == (UNKNOWN,):
        assert way is None
        before = reader.follow(starts[0], program.steps[:-1])
        assert before is not None, "only the last step is missing"
        return
    assert way is not None
    assert way[-1] == task.answers[0]
    assert len(set(way)) == len(way)
    others = [name for name in program.starts if name != starts[0]]
    for name in [*way[:-2], *(others if program.form is not Form.CHAIN else [])]:
        assert not _says(reader.texts[name], way[-1]), "the answer stands in the last document only"
    assert not _says(task.prompt, way[-1])
    for length in range(1, len(program.steps)):
        for shorter in itertools.combinations(program.steps, length):
            short = reader.follow(starts[0], shorter)
            assert short is None or short[-1] != way[-1]
    for number in range(len(program.steps)):
        for wrong in set(Relation) - {program.steps[number]}:
            steps = (*program.steps[:number], wrong, *program.steps[number + 1 :])
            other = reader.follow(starts[0], steps)
            assert other is None or other[-1] != way[-1], "no wrong relation gives the answer"
    if program.form in {Form.FIRST, Form.LAST}:
        for name in others:
            other = reader.follow(name, program.steps)
            assert other is None or other[-1] != way[-1]


def _says(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


@pytest.mark.parametrize("level", [1, 2])
def test_easy_questions_are_answered_by_one_way_only(level: int) -> None:
    for task in _tasks(level, 60):
        reader, program = _reader(task)
        _check(task, reader, program)
        assert program.form is Form.CHAIN
        assert len(program.steps) == level


@pytest.mark.parametrize("level", [3, 4, 5])
def test_hard_questions_are_answered_by_one_way_only(level: int, shared: Reader) -> None:
    for task in _tasks(level, 120):
        _check(task, shared, Program.from_json(cast("dict", task.payload["program"])))


@pytest.mark.parametrize("level", LEVELS)
def test_lookups_are_the_documents_of_the_proof(level: int, shared: Reader) -> None:
    for task in _tasks(level, 30):
        spec = cast("dict", task.payload["world"])
        corpus = WorldCorpus(world_of(**spec))
        program = Program.from_json(cast("dict", task.payload["program"]))
        lookups = cast("list", task.payload["lookups"])
        read = [corpus[position].title for _, position in lookups]
        assert len(set(read)) == len(read)
        known = set(program.starts)
        for (query, _), title in zip(lookups, read, strict=True):
            # Each is found by names that the question or an earlier document holds.
            assert all(any(word in name for name in known) for word in query.split())
            known |= {title, *read_facts(corpus[read.index(title)]).values()}
            known |= set(
                read_facts(next(corpus[p] for _, p in lookups if corpus[p].title == title)).values()
            )


def test_every_form_of_question_is_asked() -> None:
    tags = {tag for level in LEVELS for task in _tasks(level, 60) for tag in task.tags}
    assert {"chain", "first", "last", "both", UNKNOWN} <= tags
    assert {f"steps-{n}" for n in range(1, 6)} <= tags


def test_share_of_unknown_is_what_the_null_score_says() -> None:
    tasks = _tasks(4, 300)
    share = sum(task.answers == (UNKNOWN,) for task in tasks) / len(tasks)
    # 0.12 within 3.3 standard errors of sqrt(0.12 * 0.88 / 300) = 0.019
    assert 0.058 < share < 0.182
    assert not any(task.answers == (UNKNOWN,) for level in (1, 2, 3) for task in _tasks(level, 60))


def test_splits_are_disjoint_by_names_m6() -> None:
    names = {
        split: {
            tuple(sorted(cast("dict", task.payload["program"])["starts"]))
            for task in (generate_task(i, split=split, documents=DOCUMENTS) for i in range(300))
        }
        for split in graph_tasks.SPLITS
    }
    assert names["train"].isdisjoint(names["held_out"])
    assert len(names["held_out"]) > 30


def test_task_depends_on_its_index_alone() -> None:
    assert generate_task(7, levels=(2, 4)) == generate_task(7, levels=(4, 2))
    assert len({generate_task(i, levels=(2,)).content_hash for i in range(50)}) == 50


# Found by hand in the world of seed 1: the walk mother, mother leads from the fourth generation to
# the second; a mother of the first generation is in no document.
def test_missing_last_step_is_unknown_and_a_missing_step_before_is_no_question() -> None:
    world = World(seed=1, size=400, style="prose")
    first = Thing(Kind.PERSON, 0)  # of the first generation: no mother, no mentor, no employer
    program = Program(
        form=Form.CHAIN,
        kind=Kind.PERSON,
        starts=(world.name(first),),
        steps=(Relation.MENTOR,),
    )
    proof = prove(world, program, (first,))
    assert proof is not None
    assert proof.answer == UNKNOWN
    longer = Program(
        form=Form.CHAIN,
        kind=Kind.PERSON,
        starts=(world.name(first),),
        steps=(Relation.MENTOR, Relation.BIRTHPLACE),
    )
    assert prove(world, longer, (first,)) is None


# Found by hand in the world of 10,000: the mother and the mentor of the mentor of the author of The
# Unseen Winter and the Fountain were both born in 1705, and the birthplaces of the two differ.
@pytest.mark.parametrize("step", [Relation.MOTHER, Relation.MENTOR])
def test_question_that_a_wrong_relation_answers_is_none(step: Relation) -> None:
    world = world_of(seed=0, documents=10_000, style="prose")
    name = "The Unseen Winter and the Fountain"
    things = (Thing(Kind.WORK, number) for number in range(world.counts[Kind.WORK]))
    work = next(thing for thing in things if world.name(thing) == name)

    def program(last: Relation) -> Program:
        steps = (Relation.AUTHOR, Relation.MENTOR, step, last)
        return Program(form=Form.CHAIN, kind=Kind.WORK, starts=(name,), steps=steps)

    assert prove(world, program(Relation.BORN), (work,)) is None
    assert prove(world, program(Relation.BIRTHPLACE), (work,)) is not None


@pytest.mark.parametrize("documents", [20, 25, 30, 60])
def test_small_worlds_have_questions_of_both_splits(documents: int) -> None:
    # Of 25 documents no intersection of level 4 is held out: another form is asked instead.
    for split, level in itertools.product(graph_tasks.SPLITS, LEVELS):
        task = generate_task(0, levels=(level,), documents=documents, split=split)
        assert (task.split, task.difficulty) == (split, level)


def test_world_without_a_question_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_tasks, "_draw", lambda *_: None)
    with pytest.raises(EnvError, match=r"no held_out question of level 4 .* world of 25 documents"):
        generate_task(0, levels=(4,), documents=25, split="held_out")


def test_words_of_questions() -> None:
    chain = Program(
        form=Form.CHAIN,
        kind=Kind.ORGANISATION,
        starts=("Halberg Foundry",),
        steps=(Relation.FOUNDER, Relation.BIRTHPLACE),
    )
    plain = "What is the birthplace of the founder of Halberg Foundry?"
    assert ask(chain, style="plain", chance=1) == plain
    # chance 1: the second wording, then 1 // 2 = 0: the first one
    assert ask(chain, style="prose", chance=1) == (
        "Which place is the birthplace of the person who set up the Halberg Foundry?"
    )
    last = Program(
        form=Form.LAST,
        kind=Kind.PERSON,
        starts=("Ana Halberg", "Bo Marley", "Carl Norton"),
        steps=(Relation.BORN,),
    )
    assert ask(last, style="prose", chance=0) == (
        "Of Ana Halberg, Bo Marley and Carl Norton, take the one that was born last. "
        "What is the year of birth of that person?"
    )
    both = Program(
        form=Form.BOTH,
        kind=Kind.EVENT,
        starts=("Ana Halberg", "Alderford"),
        steps=(Relation.HELD,),
    )
    assert ask(both, style="prose", chance=0) == (
        "What is the year of the event that Ana Halberg won and Alderford hosted?"
    )


def test_program_survives_json_and_refuses_what_is_none() -> None:
    task = generate_task(0, levels=(4,), documents=DOCUMENTS)
    fields = cast("dict", task.payload["program"])
    assert Program.from_json(fields).to_json() == fields
    with pytest.raises(EnvError, match="not the program of a question"):
        Program.from_json({**fields, "steps": ["flies"]})


def test_answer_that_stands_earlier_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed=1, size=400, style="prose")
    task = next(t for t in _tasks(3, 50) if "steps-2" in t.tags and "chain" in t.tags)
    program = Program.from_json(cast("dict", task.payload["program"]))
    world = world_of(**cast("dict", task.payload["world"]))
    start = world.thing_at(cast("list", task.payload["lookups"])[0][1])
    assert prove(world, program, (start,)) is not None
    original = questions.render

    def telling(world: World, thing: Thing) -> Document:
        document = original(world, thing)
        if thing != start:
            return document
        return Document(title=document.title, text=f"{document.text} Also {task.answers[0]}.")

    monkeypatch.setattr(questions, "render", telling)
    assert prove(world, program, (start,)) is None
