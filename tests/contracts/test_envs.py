"""The contract of environments over everything registered: Gymnasium's checker and `check_env`.

What an environment needs and this machine lacks (an optional package, a service) skips it, with the
reason.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from agentgym.checks.env import check_env
from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.errors import InfrastructureError, MissingExtraError, SandboxError

ENVS = registry.list_envs()
EPISODES_EACH = 12
"""Half of what `agentgym envs check` plays: every commit runs this over every environment."""
SLOW = {"code": 3, "web": 2}
"""Family -> episodes of each player, where one starts programs or a browser."""
ABSENT = (MissingExtraError, InfrastructureError, SandboxError)


@pytest.fixture
def kwargs(env_id: str, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments that an environment cannot do without: its files."""
    if env_id != "math/file-v0":
        return {}
    path = tmp_path / "problems.jsonl"
    rows = [
        {
            "question": f"Ann has {n} pens and buys {3 * n + 1}. How many?",
            "answer": f"#### {4 * n + 1}",
        }
        for n in range(20, 70)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return {"path": str(path)}


def require_available(env_id: str, kwargs: dict[str, Any]) -> None:
    """Skip where the environment cannot be made or reset for a reason that is not its own."""
    try:
        env = registry.make(env_id, **kwargs)
        try:
            env.reset(seed=0)
        finally:
            env.close()
    except ABSENT as error:
        pytest.skip(f"{env_id}: {error}")


def test_environments_are_registered() -> None:
    assert "math/arithmetic-v0" in ENVS


@pytest.mark.parametrize("env_id", ENVS)
def test_environment_keeps_the_contract(env_id: str, kwargs: dict[str, Any]) -> None:
    require_available(env_id, kwargs)
    episodes_each = SLOW.get(env_id.split("/")[0], EPISODES_EACH)
    report = check_env(env_id, env_kwargs=kwargs, episodes_each=episodes_each)
    assert report.is_ok, str(report)


@pytest.mark.parametrize("env_id", ENVS)
def test_environment_passes_gymnasiums_checker(env_id: str, kwargs: dict[str, Any]) -> None:
    require_available(env_id, kwargs)
    with warnings.catch_warnings():
        # Gymnasium advises by warnings on spaces that are not boxes; its errors are exceptions.
        warnings.simplefilter("ignore")
        env = gymnasium.make(env_id, **kwargs)
        try:
            gymnasium_check_env(env.unwrapped, skip_render_check=True)
        finally:
            env.close()


@pytest.mark.parametrize("env_id", ENVS)
def test_gymnasium_make_gives_what_make_gives(env_id: str, kwargs: dict[str, Any]) -> None:
    require_available(env_id, kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped, bare = gymnasium.make(env_id, **kwargs), registry.make(env_id, **kwargs)
        try:
            assert type(wrapped.unwrapped) is type(bare)
            assert wrapped.reset(seed=4)[0] == bare.reset(seed=4)[0]
            assert isinstance(bare, TextEnv)
            assert bare.env_id == env_id
        finally:
            wrapped.close()
            bare.close()
