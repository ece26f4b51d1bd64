"""What holds for every test: no network, no clock, no window, and tensor shapes are checked.

Fixtures live beside the tests that use them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A deadline would make a test depend on time spent; without `derandomize` two runs of one commit
# could differ. The soak tests ask for more examples, and for chance, themselves.
settings.register_profile("agentgym", deadline=None, derandomize=True)
settings.load_profile("agentgym")

# The shapes in annotations (`Float[Tensor, "batch time"]`) are checked here and nowhere else. The
# hook acts on import, so it must be set before any test imports the package.
if find_spec("jaxtyping") and find_spec("beartype"):
    from jaxtyping import install_import_hook

    install_import_hook("agentgym.trainers", "beartype.beartype")


@pytest.fixture(autouse=True)
def _no_secrets_left() -> Iterator[None]:
    """Forget the secrets of one test before the next one, whose texts may hold the same words."""
    yield
    # Imported here, after the hook.
    from agentgym.redaction import forget

    forget()


@pytest.fixture
def checkpoint_state(tmp_path: Path) -> Callable[[Path], dict[str, Any]]:
    """Return what reads a run's newest checkpoint: tensors by path, and counters without times."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    def read(run: Path) -> dict[str, Any]:
        newest = sorted((run / "checkpoints").glob("step_*"))[-1]
        target = tmp_path / f"state-of-{run.name}.pt"
        dcp_to_torch_save(newest / "tensors", target)
        loop = json.loads((newest / "state.json").read_text())
        for name in ("elapsed_s", "step_s", "offsets"):
            del loop["loop"][name]
        return {**flat(torch.load(target, weights_only=False)), "state": loop}

    def flat(tree: object, path: str = "") -> dict[str, Any]:
        if not isinstance(tree, dict):
            return {path: tree}
        found: dict[str, Any] = {}
        for key, value in tree.items():
            found |= flat(value, f"{path}/{key}")
        return found

    return read
