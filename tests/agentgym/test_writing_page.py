"""The environments of the page on writing one run, and keep the contract."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym import check_env, registry

PAGE = Path(__file__).parents[2] / "docs" / "envs" / "writing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    before = set(registry.list_envs())
    yield
    for env_id in set(registry.list_envs()) - before:
        registry.unregister_env(env_id)


@pytest.mark.parametrize(("number", "env_id"), [(0, "lab/parrot-v0"), (1, "lab/drawer-v0")])
def test_environment_of_the_page_keeps_the_contract(number: int, env_id: str) -> None:
    exec(compile(BLOCKS[number], str(PAGE), "exec"), {"__name__": "page"})
    report = check_env(env_id)
    assert report.is_ok, str(report)
