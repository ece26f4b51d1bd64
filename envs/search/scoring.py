"""How answers are scored: exact match and F1 over normalised words, and F1 of the cited documents.

Normalised means: lower case, without punctuation, articles and doubled spaces, as is usual for
question answering since SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), with Unicode compatibility
forms folded first. Punctuation is what ASCII has of it, `$` and `+` included, and the signs that
Unicode calls so; signs that are not seen, such as a zero-width space, go too. A text that holds
nothing else keeps its articles, and one of punctuation alone its punctuation.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from agentgym.records.text import normalized

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CITATION = re.compile(r"\[\s*([0-9]{1,12}(?:\s*[,;]\s*[0-9]{1,12})*)\s*\]")
_NUMBER = re.compile(r"[0-9]+")
_PUNCTUATION = frozenset(string.punctuation)


def normalize(text: str) -> str:
    """Return the text as it is compared.

    Example:
        normalize(" The  Beatles. ") is "beatles".
    """
    folded = normalized(text, "NFKC").casefold()
    seen = "".join(sign for sign in folded if unicodedata.category(sign) != "Cf")
    bare = "".join(sign for sign in seen if not _is_punctuation(sign))
    texts = (" ".join(text.split()) for text in (_ARTICLES.sub(" ", bare), bare, seen))
    return next(filter(None, texts), "")


def _is_punctuation(sign: str) -> bool:
    return sign in _PUNCTUATION or unicodedata.category(sign).startswith("P")


def exact_match(answer: str, gold: Iterable[str]) -> float:
    """Return 1.0 if the answer equals any gold answer once normalised, else 0.0."""
    normal = normalize(answer)
    return float(bool(normal) and any(normal == normalize(text) for text in gold))


def f1(answer: str, gold: Iterable[str]) -> float:
    """Return the best F1 of the answer's words against a gold answer, in [0, 1]."""
    words = normalize(answer).split()
    return max((_overlap(words, normalize(text).split()) for text in gold), default=0.0)


def split_citations(answer: str) -> tuple[str, tuple[int, ...]]:
    """Return the answer without its citations, and the documents cited, each once.

    Example:
        split_citations("Alderford [3] [17, 4]") is ("Alderford", (3, 17, 4)).
    """
    cited = [int(n) for group in _CITATION.findall(answer) for n in _NUMBER.findall(group)]
    text = " ".join(_CITATION.sub(" ", answer).split())
    return text, tuple(dict.fromkeys(cited))


def citation_f1(cited: Collection[int], supporting: Collection[int]) -> float:
    """Return F1 of the documents cited against those that support the answer, in [0, 1]."""
    return _overlap(tuple(set(cited)), tuple(set(supporting)))


def _overlap(found: Sequence[object], wanted: Sequence[object]) -> float:
    common = sum((Counter(found) & Counter(wanted)).values())
    # 2PR / (P + R) with P = common / found and R = common / wanted.
    return 2 * common / (len(found) + len(wanted)) if common else 0.0
