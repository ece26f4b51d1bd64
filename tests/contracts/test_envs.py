"""The contract of environments over everything registered: Gymnasium's checker and `check_env`.

What an environment needs and this machine lacks (an optional package, a service) skips it, with the
reason.
"""

from __future__ import annotations

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from agentgym import registry
from agentgym.checks.env import check_env
from agentgym.env import TextEnv
from agentgym.errors import InfrastructureError, MissingExtraError, SandboxError

ENVS = registry.list_envs()
ABSENT = (MissingExtraError, InfrastructureError, SandboxError)


def require_available(env_id: str) -> None:
    """Skip where the environment cannot be made or reset for a reason that is not its own."""
    try:
        env = registry.make(env_id)
        try:
            env.reset(seed=0)
        finally:
            env.close()
    except ABSENT as error:
        pytest.skip(f"{env_id}: {error}")


def test_environments_are_registered() -> None:
    assert "math/arithmetic-v0" in ENVS


@pytest.mark.parametrize("env_id", ENVS)
def test_environment_keeps_the_contract(env_id: str) -> None:
    require_available(env_id)
    report = check_env(env_id)
    assert report.is_ok, str(report)


@pytest.mark.parametrize("env_id", ENVS)
def test_environment_passes_gymnasiums_checker(env_id: str) -> None:
    require_available(env_id)
    with warnings.catch_warnings():
        # Gymnasium advises by warnings on spaces that are not boxes; its errors are exceptions.
        warnings.simplefilter("ignore")
        env = gymnasium.make(env_id)
        try:
            gymnasium_check_env(env.unwrapped, skip_render_check=True)
        finally:
            env.close()


@pytest.mark.parametrize("env_id", ENVS)
def test_gymnasium_make_gives_what_make_gives(env_id: str) -> None:
    require_available(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped, bare = gymnasium.make(env_id), registry.make(env_id)
        try:
            assert type(wrapped.unwrapped) is type(bare)
            assert wrapped.reset(seed=4)[0] == bare.reset(seed=4)[0]
            assert isinstance(bare, TextEnv)
            assert bare.env_id == env_id
        finally:
            wrapped.close()
            bare.close()
