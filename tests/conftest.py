"""What holds for every test: no network, no clock, no window, and tensor shapes are checked.

Fixtures live beside the tests that use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

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
