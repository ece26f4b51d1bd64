from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from agentgym.envs.search.corpus.dictd import DictdCorpus, read_number
from agentgym.errors import TaskError


# A is 0, B 1, a 26, / 63; BA = 1 * 64 + 0; Kj = 10 * 64 + 35.
@pytest.mark.parametrize(("text", "value"), [("A", 0), ("/", 63), ("BA", 64), ("Kj", 675), ("", 0)])
def test_read_number_matches_hand_value(text: str, value: int) -> None:
    assert read_number(text) == value


def _dictionary(folder: Path, index: str, *, packed: bool) -> DictdCorpus:
    # 0-8 "about us", 8-20 "cat\n  animal", 20-27 "dog pet"
    data = b"about us" + b"cat\n  animal" + b"dog pet"
    (folder / "tiny.index").write_text(index, encoding="utf-8")
    if packed:
        (folder / "tiny.dict.dz").write_bytes(gzip.compress(data))
    else:
        (folder / "tiny.dict").write_bytes(data)
    return DictdCorpus((folder / "tiny",))


# I = 8, M = 12, U = 20, H = 7
INDEX = "00-database-info\tA\tI\ncat\tI\tM\ntomcat\tI\tM\ndog\tU\tH\n"


@pytest.mark.parametrize("packed", [True, False])
def test_entries_are_read_once_and_the_file_about_itself_is_left_out(
    tmp_path: Path, packed: bool
) -> None:
    found = list(_dictionary(tmp_path, INDEX, packed=packed).documents())
    assert [(document.title, document.text) for document in found] == [
        ("cat", "cat animal"),
        ("dog", "dog pet"),
    ]


def test_key_follows_the_content(tmp_path: Path) -> None:
    first = _dictionary(tmp_path, INDEX, packed=False).key
    assert _dictionary(tmp_path, INDEX, packed=False).key == first
    assert _dictionary(tmp_path, INDEX.replace("dog", "dig"), packed=False).key != first


@pytest.mark.parametrize("line", ["cat\tI\tBA", "cat\tI\t?", "cat"])
def test_index_that_does_not_fit_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(TaskError, match="index"):
        list(_dictionary(tmp_path, line, packed=False).documents())


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nothing\.dict"):
        list(DictdCorpus((tmp_path / "nothing",)).documents())
