"""tests/pitfalls.md names only pitfalls and tests that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = TESTS / "tools" / "pitfalls_map.py"
    spec = importlib.util.spec_from_file_location("pitfalls_map", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_lists_only_tests_that_exist(tool: ModuleType) -> None:
    listed = re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "pitfalls.md").read_text("utf-8"))
    assert listed
    gone = [
        f"{file}::{name}"
        for file, name in listed
        if not (TESTS / file).exists()
        or name not in {function.name for function in tool.test_functions(TESTS / file)}
    ]
    assert gone == [], "renamed or removed: run `make pitfalls`"


def test_every_claimed_pitfall_exists(tool: ModuleType) -> None:
    assert set(tool.collect()) <= set(tool.titles())


def test_titles_are_all_there(tool: ModuleType) -> None:
    # Pitfalls of each letter: A10 B9 C12 D17 E14 F16 G13 H11 I10 J12 K11 L10 M14 N11, 170 in all.
    assert len(tool.titles()) == 10 + 9 + 12 + 17 + 14 + 16 + 13 + 11 + 10 + 12 + 11 + 10 + 14 + 11


@pytest.mark.parametrize(
    ("name", "docstring", "is_trainer", "ids"),
    [
        ("test_closing_tag_c1", "", False, {"C1"}),
        ("test_masks_b1_b3", "Holds Pitfall C12.", False, {"B1", "B3", "C12"}),
        ("test_masks", "Pitfalls B1, B2 and N11: one file.", False, {"B1", "B2", "N11"}),
        ("test_kl_k3", "", True, set()),  # an estimator
        ("test_kl_k3_f11", "", True, {"F11"}),
        ("test_success_k1", "", False, {"K1"}),
        ("test_a2tgpo", "The A2TGPO widths; see C1.", True, set()),  # mentions, claims nothing
    ],
)
def test_ids_are_read_from_name_and_docstring(
    tool: ModuleType, name: str, docstring: str, is_trainer: bool, ids: set[str]
) -> None:
    assert tool.ids_of(name, docstring, is_trainer=is_trainer) == ids
