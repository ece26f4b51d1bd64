"""AgentGym: text environments and multi-turn reinforcement learning for language models.

The Python door: `make`, `register_env`, `rollout`, `train`, `evaluate`. Names are resolved when
they are first used, so that importing the package loads no trainer and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym.api import evaluate, rollout, train
    from agentgym.checks.env import check_env
    from agentgym.checks.suite import check_suite
    from agentgym.config import EvalConfig, RunConfig
    from agentgym.env.contract import Action, Reply, TextEnv, UnicodeText
    from agentgym.env.registry import list_envs, make, register_env
    from agentgym.env.suite import GeneratedSplit, Suite
    from agentgym.env.suites import check_leaks, list_suites, load_suite, register_suite
    from agentgym.env.task_files import Origin
    from agentgym.env.tool_env import ToolEnv
    from agentgym.errors import EnvError, InfrastructureError, ToolError
    from agentgym.records import Sampling, Task
    from agentgym.records.limits import Limits
    from agentgym.tool_formats.tools import tool

__all__ = [
    "Action",
    "EnvError",
    "EvalConfig",
    "GeneratedSplit",
    "InfrastructureError",
    "Limits",
    "Origin",
    "Reply",
    "RunConfig",
    "Sampling",
    "Suite",
    "Task",
    "TextEnv",
    "ToolEnv",
    "ToolError",
    "UnicodeText",
    "__version__",
    "check_env",
    "check_leaks",
    "check_suite",
    "evaluate",
    "list_envs",
    "list_suites",
    "load_suite",
    "make",
    "register_env",
    "register_suite",
    "rollout",
    "tool",
    "train",
]

_EXPORTS = {
    "Action": "agentgym.env.contract",
    "EnvError": "agentgym.errors",
    "EvalConfig": "agentgym.config",
    "GeneratedSplit": "agentgym.env.suite",
    "InfrastructureError": "agentgym.errors",
    "Limits": "agentgym.records.limits",
    "Origin": "agentgym.env.task_files",
    "Reply": "agentgym.env.contract",
    "RunConfig": "agentgym.config",
    "Sampling": "agentgym.records",
    "Suite": "agentgym.env.suite",
    "Task": "agentgym.records",
    "TextEnv": "agentgym.env.contract",
    "ToolEnv": "agentgym.env.tool_env",
    "ToolError": "agentgym.errors",
    "UnicodeText": "agentgym.env.contract",
    "check_env": "agentgym.checks.env",
    "check_leaks": "agentgym.env.suites",
    "check_suite": "agentgym.checks.suite",
    "evaluate": "agentgym.api",
    "list_envs": "agentgym.env.registry",
    "list_suites": "agentgym.env.suites",
    "load_suite": "agentgym.env.suites",
    "make": "agentgym.env.registry",
    "register_env": "agentgym.env.registry",
    "register_suite": "agentgym.env.suites",
    "rollout": "agentgym.api",
    "tool": "agentgym.tool_formats.tools",
    "train": "agentgym.api",
}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'agentgym' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


# Gymnasium has no entry points: `gymnasium.make(id)` knows the ids once this package is imported,
# as in `gymnasium.make("agentgym:math/arithmetic-v0")`. The table holds strings; no environment is
# imported here.
importlib.import_module("agentgym.env.registry").register_with_gymnasium()
