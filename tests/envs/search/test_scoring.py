from __future__ import annotations

import pytest

from agentgym.envs.search import scoring


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("beatles.", "The Beatles", 1.0),
        ("Beatles and Stones", "The Beatles", 0.0),
        ("  THE   beatles ", "Beatles", 1.0),
        ("1,200", "1200", 1.0),
        ("", "The", 0.0),
        ("the", "The", 1.0),  # nothing but an article: kept
        ("a", "the", 0.0),
        ("ﬁne", "fine", 1.0),  # compatibility form of f and i
        ("café", "cafe", 0.0),  # accents are letters
        ("«Alderford»", "Alderford", 1.0),
        ("5 million", "$5 million", 1.0),
        ("a+b<c=d>e^f|g~h`i", "abcdefghi", 1.0),  # ASCII's punctuation that Unicode calls symbols
        ("5 €", "5", 0.0),  # not ASCII, so a symbol, as in SQuAD
        ("\u200bParis\u00ad", "Paris", 1.0),  # zero-width space, soft hyphen
        ("???", "???", 1.0),  # nothing but punctuation: kept
        ("!!!", "???", 0.0),
        ("\u200b", "\u200b", 0.0),  # nothing at all
    ],
)
def test_exact_match_matches_hand_value_l10(answer: str, gold: str, score: float) -> None:
    assert scoring.exact_match(answer, [gold]) == score


def test_any_gold_answer_will_do() -> None:
    assert scoring.exact_match("NYC", ["New York", "NYC"]) == 1.0
    assert scoring.exact_match("NYC", []) == 0.0


# 2 * common / (words of the answer + words of the gold answer)
@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("Ana Halberg", ["Ana Halberg"], 1.0),
        ("Ana", ["Ana Halberg"], 2 / 3),  # 2*1 / (1+2)
        ("Ana Ana Halberg", ["Ana Halberg"], 4 / 5),  # a repeated word counts once: 2*2 / (3+2)
        ("Bo", ["Ana Halberg", "Bo Ruiz"], 2 / 3),
        ("", ["Ana"], 0.0),
        ("Bo", [], 0.0),
    ],
)
def test_f1_matches_hand_value(answer: str, gold: list[str], score: float) -> None:
    assert scoring.f1(answer, gold) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "text", "cited"),
    [
        ("Alderford [3] [17, 4]", "Alderford", (3, 17, 4)),
        ("[3]Alderford[3]", "Alderford", (3,)),
        ("Alderford", "Alderford", ()),
        ("x[i] [a1] [-3] []", "x[i] [a1] [-3] []", ()),
        ("1987 [ 5;6 ]", "1987", (5, 6)),
        (f"a [{'9' * 5000}]", f"a [{'9' * 5000}]", ()),
    ],
)
def test_citations_are_taken_out_of_the_answer(answer: str, text: str, cited: tuple) -> None:
    assert scoring.split_citations(answer) == (text, cited)


# F1 of sets: cited {1, 2, 3}, supporting {2, 3}: 2*2 / (3+2)
@pytest.mark.parametrize(
    ("cited", "supporting", "score"),
    [((1, 2, 3), {2, 3}, 0.8), ((2, 2, 2), {2}, 1.0), ((), {2}, 0.0), ((1,), set(), 0.0)],
)
def test_citation_f1_matches_hand_value(cited: tuple, supporting: set, score: float) -> None:
    assert scoring.citation_f1(cited, supporting) == pytest.approx(score)
