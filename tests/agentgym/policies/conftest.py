"""One tiny model with its folder, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny

CORPUS = ("The product of 37 and 48 is 1776, and 1776 is the answer. hello again ",) * 30


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), corpus=CORPUS, seed=7)


@pytest.fixture
def load_tiny(tiny_folder: Path) -> Callable[[], Any]:
    """Return a function that gives a fresh model: tests change weights."""
    return lambda: load_model(tiny_folder)
