"""The environments of the page on writing one run, and keep the contract."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym import check_env, rollout
from agentgym.env import registry

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


def test_a4_async_grade_of_the_page_is_awaited_and_its_judge_may_be_away() -> None:
    """Nobody listens at port 9: an infrastructure failure, tried again, never a score."""
    exec(compile(BLOCKS[2], str(PAGE), "exec"), {"__name__": "page"})
    records = rollout("lab/essay-v0", lambda request: "<answer>Tea is hot. I like it.</answer>")
    record = records[-1]
    assert record.failure is not None
    assert (record.failure.kind, record.failure.exception) == (
        "infrastructure",
        "InfrastructureError",
    )
    assert "the judge did not answer" in record.failure.message
    assert record.attempt == 2
