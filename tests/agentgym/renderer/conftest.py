"""Tiny model folders, one for each shipped chat format."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.renderer.formats import Fixture, fixture_format
from agentgym.trainers.models.tiny import build_tiny

CORPUS = ("The product of 37 and 48 is 1776, and 1776 is the answer. hello again ",) * 30


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Fixture, Path]:
    root = tmp_path_factory.mktemp("formats")
    return {
        name: build_tiny(root / name, corpus=CORPUS, chat=fixture_format(name), seed=5)
        for name in Fixture
    }
