"""Whether the turn rewards that a preset weighs are ones that the environments declare."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, cast

from agentgym.config.schema import RunConfig
from agentgym.config.validation import Problem
from agentgym.env import registry
from agentgym.env.suites import load_suite
from agentgym.errors import AgentGymError, nearest

_UNNAMED = ("reward",)
"""Name under which the reward of an environment without names is recorded."""


def weight_problems(config: RunConfig, names: Set[str]) -> Iterator[Problem]:
    """Yield a problem for each weighed turn reward that no environment of a run declares.

    Args:
        config: The run.
        names: Names that its preset weighs.
    """
    if not names:
        return
    declared: set[str] = set()
    for source in config.envs:
        try:
            suite = load_suite(source.name, env_kwargs=cast("Any", source.kwargs))
            env = registry.make(suite.env_id, **suite.env_kwargs).unwrapped
        except (AgentGymError, TypeError, ValueError):  # said where the sources are looked at
            return
        declared |= {*getattr(env, "reward_weights", _UNNAMED)}
        env.close()
    for name in sorted(names - declared):
        known = ", ".join(repr(one) for one in sorted(declared)) or "none"
        text = (
            f"no environment of this run declares a turn reward {name!r}{nearest(name, declared)}; "
            f"declared: {known}. An environment names its own in 'reward_weights', such as "
            f"reward_weights = {{{name!r}: 0.0}}"
        )
        yield Problem(key="preset_overrides", text=text)
