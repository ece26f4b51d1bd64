"""What the registry says of a part."""

from __future__ import annotations

import pytest

from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Slot


@pytest.mark.parametrize(("slot", "name"), [(Slot.GATE, "dual_clip"), (Slot.FILTER, "stale")])
def test_a_part_knows_its_place_and_says_itself_in_one_line(slot: Slot, name: str) -> None:
    found = registry.find(slot, name)
    assert (found.slot, found.name) == (slot, name)
    (first, *_) = (found.function.__doc__ or "").splitlines()
    assert found.summary == first
    assert first.endswith(".")
