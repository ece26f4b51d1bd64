"""`NameWatch`: says once which named turn rewards of a preset no episode has earned."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from agentgym.trainers.objective.preset import Preset
from agentgym.trainers.parts import registry

logger = logging.getLogger(__name__)

PATIENCE = 10
"""Updates without a name after which it is taken for a typo; a rare reward may come later still."""


class NameWatch:
    """Watches over a run which names the batches have.

    A batch without a name is no error, since nobody may have earned it. A name that never comes
    counts nowhere, as if its weight were 0, so it is said.

    Args:
        preset: The objective; the names are those that its `turn_rewards` weigh.
    """

    def __init__(self, preset: Preset) -> None:
        weighed = [one.parameters.get("weights", {}) for one in preset.rewards]
        self._missing = {name for weights in weighed for name in weights}
        self._known: set[str] = set()
        self._updates = 0

    def see(self, names: Iterable[str]) -> None:
        """Take note of the names of a batch; warn at the `PATIENCE`-th."""
        self._known.update(names)
        self._missing -= self._known
        self._updates += 1
        if self._updates != PATIENCE:
            return
        for name in sorted(self._missing):
            logger.warning(
                "no episode of %d updates has earned a turn reward named %r, so it counts "
                "nowhere%s",
                PATIENCE,
                name,
                registry.hint(name, self._known),
            )


__all__ = ["PATIENCE", "NameWatch"]
