"""AgentGym: text environments and multi-turn reinforcement learning for language models.

The Python door: `make`, `register_env`, `rollout`, `train`, `evaluate`. Names are resolved when
they are first used, so that importing the package loads no trainer and no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "Action": "agentgym.env",
    "Limits": "agentgym.limits",
    "Reply": "agentgym.env",
    "Task": "agentgym.records",
    "TextEnv": "agentgym.env",
    "ToolEnv": "agentgym.tool_env",
    "UnicodeText": "agentgym.env",
    "check_env": "agentgym.checks.env",
    "evaluate": "agentgym.door",
    "make": "agentgym.registry",
    "register_env": "agentgym.registry",
    "rollout": "agentgym.door",
    "tool": "agentgym.tools",
    "train": "agentgym.door",
}

__version__ = "0.1.0"
__all__ = [*sorted(_EXPORTS), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'agentgym' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


# Gymnasium has no entry points: `gymnasium.make(id)` knows the ids once this package is imported,
# as in `gymnasium.make("agentgym:math/arithmetic-v0")`. The table holds strings; no environment is
# imported here.
importlib.import_module("agentgym.registry").register_with_gymnasium()
