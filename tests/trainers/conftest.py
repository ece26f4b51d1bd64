"""What several files of tests of the trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def telling_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model, with a tied head, that tells ids apart: a fresh one hardly does."""
    torch = pytest.importorskip("torch")
    from agentgym.env.suites import load_suite
    from agentgym.trainers.models.load import load_model
    from agentgym.trainers.models.tiny import build_tiny

    suite = load_suite("math/arithmetic")
    corpus = [suite.task("train", index).prompt for index in range(200)]
    target = build_tiny(tmp_path_factory.mktemp("telling") / "tiny", corpus=corpus, seed=7)
    model: Any = load_model(target)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(target)
    return target
