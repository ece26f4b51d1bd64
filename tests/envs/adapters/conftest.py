"""A package of somebody else's, as text, for tests that import it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

WritePackage = Callable[[Path, str], None]


@pytest.fixture
def write_echo() -> WritePackage:
    """Return a function that writes a module which registers an echo under an id."""

    def write(path: Path, env_id: str) -> None:
        text = """
            import gymnasium
            from gymnasium import spaces

            class Echo(gymnasium.Env):
                observation_space = action_space = spaces.Text(max_length=9)
                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    return "go", {}
                def step(self, action):
                    return action, 1.0, True, False, {}

            gymnasium.register(id=ENV_ID, entry_point=Echo)
        """
        path.write_text(textwrap.dedent(text).replace("ENV_ID", repr(env_id)))

    return write
