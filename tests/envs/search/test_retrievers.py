"""One contract for every retriever: pitfalls L, with their values."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.search import scoring
from agentgym.envs.search.retrieval import bm25s_backend, retriever, tantivy_backend
from agentgym.envs.search.retrieval.documents import Document, ListCorpus
from agentgym.envs.search.retrieval.fts5_backend import MemoryRetriever
from agentgym.envs.search.retrieval.index_cache import BACKENDS, open_library
from agentgym.envs.search.retrieval.retriever import Hit, NoRetriever, Retriever
from agentgym.errors import InfrastructureError

KINDS = (*BACKENDS, "memory")
Open = Callable[[Sequence[str]], Retriever]


def _documents(texts: Iterable[str]) -> list[Document]:
    return [Document(title="", text=text) for text in texts]


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A function that indexes texts with one kind of retriever."""
    kept = []  # a library lives as long as somebody holds it

    def open_index(texts: Sequence[str]) -> Retriever:
        if request.param == "memory":
            return MemoryRetriever(_documents(texts))
        library = open_library(ListCorpus(_documents(texts)), backend=request.param, cache=tmp_path)
        kept.append(library)
        return library.retriever

    return open_index


def _positions(hits: Sequence[Hit]) -> list[int]:
    return [hit.position for hit in hits]


@pytest.mark.parametrize("query", ["zzz", "", "   ", "+-*/ ()", '"'])
def test_query_without_a_known_word_has_no_hit_l1(index: Open, query: str) -> None:
    assert index(["hello world", "my world"]).search(query, 3) == ()


def test_k_larger_than_the_corpus_gives_what_there_is_l2(index: Open) -> None:
    found = index(["a cat", "a dog", "a cat and a dog", "a bird", "a fish"]).search("cat dog", 9)
    assert set(_positions(found)) == {0, 1, 2}


@pytest.mark.parametrize("k", [2**31, 2**63, 2**64, 10**30])
def test_enormous_k_gives_what_there_is(index: Open, k: int) -> None:
    assert _positions(index(["a cat", "a dog"]).search("cat", k)) == [0]


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_gives_no_hit(index: Open, k: int) -> None:
    assert index(["cat"]).search("cat", k) == ()


def test_second_corpus_knows_nothing_of_the_first_l3(index: Open) -> None:
    first, second = index(["hello world"]), index(["my world"])
    assert _positions(second.search("world", 5)) == [0]
    assert second.search("hello", 5) == ()
    assert _positions(first.search("hello", 5)) == [0]


def test_equal_documents_have_equal_positive_scores_l4(index: Open) -> None:
    found = index(["foo", "dog", "baz", "quick god", "quick fox"]).search("quick", 5)
    assert _positions(found) == [3, 4]
    assert found[0].score == found[1].score > 0


def test_ties_go_to_the_lower_position_l5(index: Open) -> None:
    opened = index(["same text"] * 10)
    assert _positions(opened.search("same", 3)) == [0, 1, 2]
    assert _positions(opened.search("same", 5)) == [0, 1, 2, 3, 4]
    assert len({opened.search("text same", 4) for _ in range(5)}) == 1


def test_scores_fall_also_where_fewer_match_than_k_l6(index: Open) -> None:
    texts = ["red", "red red blue", "blue", "red blue green and much else", "grey"]
    scores = [hit.score for hit in index(texts).search("red", 10)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("query", "position"),
    [("don't", 0), ("multi-agent", 1), ("ubuntu 20.04", 2), ("C++", 3), ("café", 4), ("CAFE", 4)],
)
def test_punctuation_case_and_accents_find_their_document_l7(
    index: Open, query: str, position: int
) -> None:
    texts = ["I don't know", "multi-agent systems", "ubuntu 20.04 release", "C++ code", "Café noir"]
    assert _positions(index(texts).search(query, 1)) == [position]


SCRIPTS = (
    *("Толстой", "ТОЛСТОЙ и мир", "Λόγος", "Σίσυφος", "서울", "대한민국", "İstanbul", "がんばる"),
    *("हिन्दी भाषा", "日本語", "ภาษาไทย", "שָׁלוֹם", "العَرَبِيَّة", "தமிழ்", "Việt Nam", "Łódź"),
    *("Ångström", "straße", "naïve", "ﬁne", "x²", "Ⅷ", "١٢٣", "cafe\u0301 \ud800"),
    # Longer than 40 bytes: Korean of 14 syllables, Thai and Japanese without spaces.
    *(
        "대한민국임시정부수립기념관",
        "ประวัติศาสตร์ไทยสมัยใหม่",
        "吾輩は猫である名前はまだ無いどこで生れたか",
    ),
)


def test_text_of_every_script_is_found_by_itself_and_by_its_capitals(index: Open) -> None:
    opened = index(SCRIPTS)
    for position, text in enumerate(SCRIPTS):
        for query in (text, text.upper(), f"«{text}»"):
            assert _positions(opened.search(query, 1)) == [position], query
    # The word that two share: the shorter document first.
    assert _positions(opened.search("толстой", 9)) == [0, 1]


def test_every_back_end_has_the_same_hits_in_every_script(tmp_path: Path) -> None:
    corpus = ListCorpus(_documents(SCRIPTS))
    opened = [open_library(corpus, backend=kind, cache=tmp_path) for kind in BACKENDS]
    for text in SCRIPTS:
        found = [_positions(library.retriever.search(text, 9)) for library in opened]
        assert found == [found[0]] * len(BACKENDS), text


def test_plain_text_leaves_ascii_alone() -> None:
    assert retriever.plain_text("Don't PANIC_now!") == "Don't PANIC_now!"
    assert retriever.plain_text("Толстой, café_noir!") == "толстои cafe noir"
    assert retriever.plain_text("Café_noir, naïve!") == "cafe_noir, naive!"
    assert retriever.words("서울 STRASSE Straße") == ["서", "울", "서울", "strasse", "strasse"]


@pytest.mark.parametrize(
    "query",
    [
        "cat AND zzz",
        "cat NOT dog",
        "title:cat",
        'cat"',
        "cat*",
        "-cat",
        "(cat",
        "cat OR",
        "body:[a TO cat]",
        "NEAR(cat dog)",
        "cat^9",
        "\ud800cat \x00 dog",
        "cat " * 10_000,
    ],
)
def test_no_query_syntax_is_exposed_l7(index: Open, query: str) -> None:
    # Were a sign or an upper-case word an operator, the first document would be lost.
    assert 0 in _positions(index(["a cat", "a dog", "a bird"]).search(query, 5))


def test_three_documents_and_three_scores_for_seven_matches_l9(index: Open) -> None:
    found = index([f"match number{n}" for n in range(7)]).search("match", 3)
    assert len(found) == 3
    assert all(hit.score > 0 for hit in found)


def test_empty_corpus_and_empty_documents_have_no_hit(index: Open) -> None:
    assert index([]).search("cat", 3) == ()
    assert index(["", ""]).search("cat", 3) == ()
    assert _positions(index(["", "cat"]).search("cat", 3)) == [1]


@pytest.mark.parametrize("kind", ["tantivy", "fts5"])
def test_stemming_finds_other_forms_of_a_word(kind: str, tmp_path: Path) -> None:
    library = open_library(
        ListCorpus(_documents(["two cities", "a dog"])), backend=kind, cache=tmp_path
    )
    assert _positions(library.retriever.search("city", 3)) == [0]


WORDS = st.sampled_from(["ant", "bee", "cat", "dog", "elk", "fox"])


@given(
    texts=st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=1, max_size=12),
    query=st.lists(WORDS, min_size=1, max_size=3),
    k=st.integers(1, 14),
)
def test_hits_are_ordered_complete_and_a_prefix_of_more_hits(
    texts: list[str], query: list[str], k: int
) -> None:
    for opened in (MemoryRetriever(_documents(texts)), _in_memory_bm25s(texts)):
        everything = opened.search(" ".join(query), 99)
        matching = {n for n, text in enumerate(texts) if set(query) & set(text.split())}
        assert set(_positions(everything)) == matching
        assert list(everything) == sorted(everything, key=lambda hit: (-hit.score, hit.position))
        assert opened.search(" ".join(query), k) == everything[:k]
        opened.close()


def _in_memory_bm25s(texts: Sequence[str]) -> Retriever:
    with tempfile.TemporaryDirectory() as folder:
        bm25s_backend.build(Path(folder), _documents(texts))
        return bm25s_backend.open(Path(folder))


def test_tantivy_tie_over_several_segments_keeps_the_rule_l5(tmp_path: Path) -> None:
    import tantivy

    index = tantivy.Index(tantivy_backend._schema(tantivy), path=str(tmp_path))
    tantivy_backend._register(tantivy, index)
    # Segments in an order other than the positions': 5 to 9 come before 0 to 4.
    for start in (5, 0):
        writer = index.writer(20_000_000, 1)
        for position in range(start, start + 5):
            writer.add_document(tantivy.Document(body="same", position=position))
        writer.commit()
        writer.wait_merging_threads()
    index.reload()
    opened = tantivy_backend.TantivyRetriever(index)
    assert index.searcher().num_segments == 2
    assert _positions(opened.search("same", 3)) == [0, 1, 2]
    assert _positions(opened.search("same", 7)) == [0, 1, 2, 3, 4, 5, 6]


# scores 1, 3, 0, 3, 1: the two 3 first, then of the two 1 the lower position; 0 is no hit.
@pytest.mark.parametrize(
    ("k", "positions"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 0]), (9, [1, 3, 0, 4])]
)
def test_best_positions_matches_hand_value(k: int, positions: list[int]) -> None:
    scores = np.array([1.0, 3.0, 0.0, 3.0, 1.0], dtype=np.float32)
    assert list(bm25s_backend.best_positions(scores, k)) == positions


def test_words_of_a_query() -> None:
    assert retriever.words("Don't café C++ 20.04 snake_case") == [
        *("don", "t", "cafe", "c", "20", "04", "snake", "case")
    ]
    assert retriever.query_words("a b a B") == ["a", "b"]
    assert len(retriever.query_words(" ".join(map(str, range(1000))))) == 64


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("上海", 0),
        ("在上海工作", 0),
        ("北京", 1),
        ("北", 1),
        ("東京タワー", 2),
        ("タワー", 2),
        ("서울", 3),
        ("ไทย", 4),
        ("GPU", 5),
        ("显卡", 5),
    ],
)
def test_f39_part_of_a_text_without_spaces_finds_it(index: Open, query: str, position: int) -> None:
    texts = [
        "我在上海工作",
        "他去北京",
        "昨日東京タワーへ行った",
        "서울에서",
        "ภาษาไทยง่าย",
        "GPU显卡",
    ]
    assert _positions(index(texts).search(query, 9)) == [position]


@pytest.mark.parametrize("query", ["the", "of the", "a THE an", "is there"])
def test_f39_query_of_stop_words_has_no_hit(index: Open, query: str) -> None:
    opened = index(["the cat is there", "the dog of the year", "a fish"])
    assert opened.search(query, 9) == ()
    assert 0 in _positions(opened.search(f"{query} cat", 9))


def test_f39_names_that_are_small_words_are_found(index: Open) -> None:
    opened = index(["The Who played", "Will Smith", "It, a novel"])
    assert [_positions(opened.search(q, 1)) for q in ("the who", "Will", "it")] == [[0], [1], [2]]


# Class: *search to the end for each opening* (F33): marks are sorted by insertion.
@pytest.mark.parametrize("mark", ["\u0301\u0316", "\u0f73", "\u0344\u0316"])
def test_f33_heap_of_marks_costs_no_more_than_its_length(mark: str) -> None:
    assert retriever.words("a" + mark * 200_000 + " b") == ["a", "b"]
    assert len(scoring.normalize("a" + mark * 200_000)) <= 61 + 30


@pytest.mark.parametrize("kind", BACKENDS)
def test_damaged_index_is_an_infrastructure_error_l8(kind: str, tmp_path: Path) -> None:
    corpus = ListCorpus(_documents(["a cat"]))
    library = open_library(corpus, backend=kind, cache=tmp_path)
    del library
    folder = next(tmp_path.glob(f"*/{kind}"))
    for file in folder.iterdir():
        if file.name != "manifest.json" and not file.name.startswith("."):
            # Another file in its place: a thread of the library may still have this one mapped.
            file.unlink()
            file.write_bytes(b"damaged")
    with pytest.raises(InfrastructureError, match=str(folder)):
        open_library(corpus, backend=kind, cache=tmp_path)


def _flipped(content: bytes, start: int) -> bytes:
    part = content[start : start + 40]
    return content[:start] + bytes(byte ^ 0xFF for byte in part) + content[start + 40 :]


@pytest.mark.parametrize("start", [0, 40, 100, 160])
def test_damaged_tantivy_files_never_panic_through(start: int, tmp_path: Path) -> None:
    """A panic is a `BaseException` that no caller knows: it must not leave the back end."""
    failed = 0
    for kind in ("*.fast", "*.idx", "*.term", "*.fieldnorm", "*.store"):
        folder = tmp_path / kind[2:]
        folder.mkdir()
        tantivy_backend.build(folder, _documents(f"cat number{n}" for n in range(60)))
        for file in folder.glob(kind):
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(_flipped(content, start))
        try:
            hits = tantivy_backend.open(folder).search("cat", 60)
        except InfrastructureError:
            failed += 1
        else:
            assert all(0 <= hit.position < 60 for hit in hits)
    assert failed


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_failure_of_tantivy_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), tantivy_backend._infrastructure("search"):
        raise kind


@pytest.mark.parametrize("content", [b"{}", b"[]", b"3", b'{"k1": "x"}', b'{"none": 1}', b"\xff"])
@pytest.mark.parametrize("name", ["params.index.json", "words.json"])
def test_damaged_bm25s_files_are_an_infrastructure_error(
    name: str, content: bytes, tmp_path: Path
) -> None:
    bm25s_backend.build(tmp_path, _documents(["a cat", "a dog"]))
    (tmp_path / name).write_bytes(content)
    with contextlib.suppress(InfrastructureError):
        bm25s_backend.open(tmp_path).search("cat none", 3)


@contextlib.contextmanager
def _as_another_user(folder: Path) -> Iterator[None]:
    """Take away the right to write below a folder, which root has whatever its mode says."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    set_user = ctypes.CDLL(None).setfsuid  # of this thread, for files alone
    set_user(65534 if os.getuid() == 0 else os.getuid())
    try:
        yield
    finally:
        set_user(os.getuid())
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.parametrize("kind", BACKENDS)
def test_index_in_a_folder_that_cannot_be_written_is_opened(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = ListCorpus(_documents(["a cat", "a dog"]))
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as scratch:
        for folder, mode in ((cache, 0o755), (scratch, 0o777)):
            Path(folder).chmod(mode)
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        library = open_library(corpus, backend=kind, cache=Path(cache))
        del library
        with _as_another_user(Path(cache)):
            library = open_library(corpus, backend=kind, cache=Path(cache))
            assert _positions(library.retriever.search("dog", 3)) == [1]
            assert library.documents[1].text == "a dog"
            library.retriever.close()
            library.retriever.close()
        assert list(Path(scratch).iterdir()) == []


@pytest.mark.parametrize("kind", BACKENDS)
def test_one_retriever_serves_many_threads(kind: str, tmp_path: Path) -> None:
    texts = [f"word{n} shared" for n in range(50)]
    library = open_library(ListCorpus(_documents(texts)), backend=kind, cache=tmp_path)
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        found[number] = _positions(library.retriever.search(f"word{number}", 1))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number] for number in range(16)}


def test_no_retriever_finds_nothing() -> None:
    assert NoRetriever().search("cat", 5) == ()
